"""A text model of any family: its passes over padded token ids, its head, and its shape."""

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from apood.encoders.base.encoder import resolve_layer
from apood.encoders.base.pretrained import Kind, LoadedTextModel
from apood.encoders.text.batching import Padded
from apood.support.errors import InputError

__all__ = [
    "Hidden",
    "Mode",
    "Probe",
    "TextModel",
    "head_logits",
    "probe_model",
    "refuse_unknown_head",
    "token_logprobs",
]


Mode = Literal["input", "output", "reference"]


@dataclass(frozen=True)
class Hidden:
    """Hidden states of a padded batch, `[sequences, longest, D]` each.

    Attributes:
        states: those of the layer that was asked for.
        last: those that the model's head reads.
        layers: how many hidden states the model gave.
        logits: the class logits `[sequences, classes]` of a classifier.
    """

    states: Tensor
    last: Tensor
    layers: int = 1
    logits: Tensor | None = None

    def at(self, places: Tensor) -> Tensor:
        """The states `[N, D]` at places in the flattened batch."""
        return self.states.flatten(0, 1).index_select(0, places)

    def last_at(self, places: Tensor) -> Tensor:
        """What the head reads at places in the flattened batch."""
        return self.last.flatten(0, 1).index_select(0, places)


class TextModel:
    """A loaded model and the layer that states are taken from.

    Args:
        model: as transformers loads it.
        kind: what it does with text.
        layer: -1 for the last hidden state as the model returns it; any other number picks from `hidden_states`.
    """

    def __init__(self, model: Any, kind: Kind, layer: int = -1) -> None:
        self.model, self.kind, self.layer = model, kind, layer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = self.model.device
        return found

    def read(self, prompts: Padded) -> Hidden:
        """States of the prompt itself; of an encoder-decoder model, those of its encoder.

        The padding of a causal model's prompts must be on the right.
        """
        if self.kind == "classifier":
            return self._classify(prompts)
        if self.kind == "causal":
            # Behind the tokens a mask would change nothing, and cost the fastest attention there is.
            return self._hidden(self.model.base_model, input_ids=prompts.ids, use_cache=False)
        return self._hidden(_reader(self.model), input_ids=prompts.ids, attention_mask=prompts.mask)

    def read_with_cache(self, prompts: Padded) -> tuple[Hidden, Any]:
        """States of a causal model's prompts, padded on the left, and their keys and values to go on from, if any."""
        output = self._behind(prompts.ids, prompts.whole_mask, None)
        cache = getattr(output, "past_key_values", None)  # a recurrent model keeps something else
        return self._pick(output.last_hidden_state, output.hidden_states), cache

    def read_on(self, prompts: Padded, cache: Any, ids: Tensor) -> Hidden:
        """States of a causal model that predict each of `ids [sequences, tokens]`, which follow prompts at once.

        `cache` has keys and values of some of the prompts' tokens, and gets those of the rest; None for none of them.
        """
        known = 0 if cache is None else int(cache.get_seq_length())
        # The last token predicts nothing that is asked for.
        whole, ones = torch.cat([prompts.ids, ids[:, :-1]], 1), torch.ones_like(ids[:, :-1])
        output = self._behind(whole[:, known:], torch.cat([prompts.whole_mask, ones], 1), cache)
        hidden, asked = self._pick(output.last_hidden_state, output.hidden_states), ids.shape[1]
        return Hidden(hidden.states[:, -asked:], hidden.last[:, -asked:], hidden.layers)

    def _behind(self, ids: Tensor, mask: Tensor, cache: Any) -> Any:
        """A pass over tokens behind those in the cache; the mask is of both, padding on the left."""
        base = self.model.base_model
        # Models without positions (that bias attention instead) take none.
        takes_positions = "position_ids" in inspect.signature(base.forward).parameters
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return base(
            input_ids=ids,
            attention_mask=mask,
            **({"position_ids": positions} if takes_positions else {}),
            past_key_values=cache,
            output_hidden_states=self.layer != -1,
            use_cache=True,
            return_dict=True,
        )

    def follow(self, encoded: Tensor, prompts: Padded, decoder_ids: Tensor) -> Hidden:
        """States of an encoder-decoder model's decoder, which predict the tokens behind each of `decoder_ids`.

        `encoded` are the encoder's last states. Padding of the decoder is on the right, where it sees none of it.
        """
        return self._hidden(
            self.model.get_decoder(),
            input_ids=decoder_ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompts.mask,
            use_cache=False,
        )

    def _hidden(self, part: Any, **inputs: Any) -> Hidden:
        output = part(**inputs, output_hidden_states=self.layer != -1, return_dict=True)
        return self._pick(output.last_hidden_state, output.hidden_states)

    def _pick(self, last: Tensor, hidden: Any, logits: Tensor | None = None) -> Hidden:
        states = last if self.layer == -1 else hidden[self.layer]
        return Hidden(states, last, 1 if hidden is None else len(hidden), logits)

    def _classify(self, prompts: Padded) -> Hidden:
        """One pass for logits and states: the classifier's output lacks the last state, its base model's has it."""
        seen: list[Any] = []
        hook = self.model.base_model.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        try:
            output = self.model(
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                output_hidden_states=self.layer != -1,
                return_dict=True,
            )
        finally:
            hook.remove()
        if "encoder_last_hidden_state" in seen[0]:
            return self._pick(seen[0].encoder_last_hidden_state, seen[0].encoder_hidden_states, output.logits)
        return self._pick(seen[0].last_hidden_state, seen[0].hidden_states, output.logits)


def _reader(model: Any) -> Any:
    """The part of a model without a causal head that reads the prompt."""
    return model.get_encoder() if model.config.is_encoder_decoder else model


_BLOCK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}


def token_logprobs(model: Any, states: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities `[N]`, in float32, of `tokens [N]`, each under the distribution that a last hidden state gives.

    The logits of all tokens would be far larger than the states, so they exist for a block of tokens at a time.
    """
    head = model.get_output_embeddings()
    block = max(1, _BLOCK_LOGITS.get(states.device.type, 1 << 23) // head.weight.shape[0])
    parts = []
    for some, ids in zip(torch.split(states, block), torch.split(tokens, block), strict=True):
        logits = head_logits(model, some).float()
        parts.append(logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(1))
    return torch.cat(parts) if parts else states.new_empty(0, dtype=torch.float32)


def head_logits(model: Any, states: Tensor) -> Tensor:
    """Logits `[N, vocabulary]` as the model's own forward makes them from its last hidden states `[N, D]`."""
    config = model.config
    if _scales_states(config):
        states = states * config.d_model**-0.5
    logits: Tensor = model.get_output_embeddings()(states)
    if (bias := getattr(model, "final_logits_bias", None)) is not None:
        logits = logits + bias
    if (scale := getattr(config, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits


def _scales_states(config: Any) -> bool:
    """T5 and its kin do so where the head is the embedding matrix; transformers 5 says it in a name of its own."""
    tied = config.model_type in {"t5", "longt5"} and config.tie_word_embeddings
    return bool(getattr(config, "scale_decoder_outputs", tied))


def refuse_unknown_head(model: Any, states: Tensor, logits: Tensor, name: str) -> None:
    """Refuses a model whose own `logits [N, vocabulary]` are not those that `head_logits` makes of its states."""
    made = head_logits(model, states).float()
    # In half precision the two differ by rounding, far less than by a factor or a bias that is missing.
    tolerance = 1e-3 if states.dtype in (torch.float32, torch.float64) else 0.05
    if not torch.allclose(made, logits.float(), rtol=tolerance, atol=tolerance * float(logits.float().abs().max())):
        raise InputError(
            f"The log-probabilities of {name!r} cannot be computed, since {type(model).__name__} turns states into "
            "logits in its own way: switch them off with logprobs=False."
        )


@dataclass(frozen=True)
class Probe:
    """The shape of a model.

    Attributes:
        dim: D of the layer asked for.
        layer: its number, see `resolve_layer`.
        layers: how many hidden states there are.
        classes: how many logits a classifier gives; 0 for other models.
    """

    dim: int
    layer: int
    layers: int
    classes: int


def probe_model(loaded: LoadedTextModel, name: str, mode: Mode, layer: int, *, with_head: bool) -> Probe:
    """Refuses a model without states for token ids or such a layer; `with_head`, also one whose head is unknown."""
    # Some classifiers look at nothing but an end of sequence.
    end = getattr(loaded.config, "eos_token_id", None) if loaded.kind == "classifier" else 0
    one = torch.full((1, 1), end if isinstance(end, int) else 0, dtype=torch.int64, device=loaded.model.device)
    try:
        with torch.inference_mode():
            layers = _hidden(loaded, mode, 0, one).layers
    except Exception as error:  # a model for other inputs fails in its own way
        raise InputError(
            f"The model {name!r} ({type(loaded.model).__name__}) gives no hidden states for token ids: "
            "allowed are text encoders, causal language models and encoder-decoder models."
        ) from error
    chosen = resolve_layer(layer, layers, name)
    with torch.inference_mode():
        hidden = _hidden(loaded, mode, chosen, one)
        if with_head:
            inputs = {"input_ids": one} if loaded.kind == "causal" else {"input_ids": one, "decoder_input_ids": one}
            logits = loaded.model(**inputs, return_dict=True).logits
            refuse_unknown_head(loaded.model, hidden.last.flatten(0, 1), logits.flatten(0, 1), name)
    classes = 0 if hidden.logits is None else hidden.logits.shape[-1]
    return Probe(hidden.states.shape[-1], chosen, layers, classes)


def _hidden(loaded: LoadedTextModel, mode: Mode, layer: int, one: Tensor) -> Hidden:
    model, padded = TextModel(loaded.model, loaded.kind, layer), Padded(one, None, torch.ones(1, dtype=torch.int64))
    if mode == "input" or loaded.kind == "causal":
        return model.read(padded)
    return model.follow(TextModel(loaded.model, loaded.kind).read(padded).last, padded, one)
