"""A text model of any family: its passes over padded token ids, the log-probabilities of its head, and its shape."""

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from apood.encoders.base.pretrained import Kind, LoadedTextModel, resolve_layer
from apood.encoders.text.tokenising import Padded
from apood.support.errors import InputError

__all__ = ["Hidden", "Mode", "Probe", "TextModel", "compute_token_logprobs", "probe_model"]

Mode = Literal["input", "output", "reference"]

_BLOCK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}


@dataclass(frozen=True)
class Hidden:
    """Hidden states of a padded batch, `[sequences, longest, D]` each.

    Attributes:
        states: the states of the requested layer.
        last: the states that the model's head reads.
        layers: the number of hidden layers that the model returned.
        logits: the class logits `[sequences, classes]` of a classifier.
    """

    states: Tensor
    last: Tensor
    layers: int = 1
    logits: Tensor | None = None


class TextModel:
    """A loaded model and the layer that states are taken from.

    Args:
        model: a model of transformers.
        kind: what the model does with text.
        layer: -1 for the last hidden state as the model returns it; any other number picks from `hidden_states`.
    """

    def __init__(self, model: Any, kind: Kind, layer: int = -1) -> None:
        self.model, self.kind, self.layer = model, kind, layer

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        found: torch.device = self.model.device
        return found

    def read(self, prompts: Padded) -> Hidden:
        """Return the states of prompts; for an encoder-decoder model, those of its encoder.

        The prompts of a causal model must be padded on the right.
        """
        if self.kind == "classifier":
            return self._classify(prompts)
        if self.kind == "causal":
            # A mask of padding on the right would change nothing, and rule out the fastest attention.
            return self._run(self.model.base_model, input_ids=prompts.ids, use_cache=False)
        reader = self.model.get_encoder() if self.model.config.is_encoder_decoder else self.model
        return self._run(reader, input_ids=prompts.ids, attention_mask=prompts.mask)

    def read_with_cache(self, prompts: Padded) -> tuple[Hidden, Any]:
        """Return the states of a causal model's prompts, padded on the left, and the cache of keys and values."""
        output = self._run_cached(prompts.ids, prompts.full_mask, None)
        cache = getattr(output, "past_key_values", None)  # a recurrent model has another kind of memory
        return self._pick(output.last_hidden_state, output.hidden_states), cache

    def read_on(self, prompts: Padded, cache: Any, ids: Tensor) -> Hidden:
        """Return the states of a causal model that predict each of `ids [sequences, tokens]`, which follow the prompts.

        `cache` holds the keys and values of the first tokens of the prompts, and is extended; None if there are none.
        """
        known = 0 if cache is None else int(cache.get_seq_length())
        # Nothing is predicted from the last token.
        whole, ones = torch.cat([prompts.ids, ids[:, :-1]], 1), torch.ones_like(ids[:, :-1])
        output = self._run_cached(whole[:, known:], torch.cat([prompts.full_mask, ones], 1), cache)
        hidden, count = self._pick(output.last_hidden_state, output.hidden_states), ids.shape[1]
        return Hidden(hidden.states[:, -count:], hidden.last[:, -count:], hidden.layers)

    def run_decoder(self, encoded: Tensor, prompts: Padded, decoder_ids: Tensor) -> Hidden:
        """Return the states of an encoder-decoder model's decoder, which predict the token after each of `decoder_ids`.

        `encoded` holds the encoder's last states. `decoder_ids` are padded on the right.
        """
        return self._run(
            self.model.get_decoder(),
            input_ids=decoder_ids,
            encoder_hidden_states=encoded,
            encoder_attention_mask=prompts.mask,
            use_cache=False,
        )

    def _run(self, part: Any, **inputs: Any) -> Hidden:
        output = part(**inputs, output_hidden_states=self.layer != -1, return_dict=True)
        return self._pick(output.last_hidden_state, output.hidden_states)

    def _run_cached(self, ids: Tensor, mask: Tensor, cache: Any) -> Any:
        """Run a causal model over the tokens after those in the cache. The mask covers both; padding is on the left."""
        base = self.model.base_model
        # Models that bias the attention instead of adding positions have no such argument.
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

    def _pick(self, last: Tensor, hidden: Any, logits: Tensor | None = None) -> Hidden:
        states = last if self.layer == -1 else hidden[self.layer]
        return Hidden(states, last, 1 if hidden is None else len(hidden), logits)

    def _classify(self, prompts: Padded) -> Hidden:
        """Compute logits and states in one pass: a hook sees the last state, which the classifier does not return."""
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


def compute_token_logprobs(model: Any, states: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities `[N]` of `tokens [N]` in float32, each predicted from one of the last `states`.

    The logits of all tokens would be far larger than the states, so they are computed in blocks of tokens.
    """
    head = model.get_output_embeddings()
    block = max(1, _BLOCK_LOGITS.get(states.device.type, 1 << 23) // head.weight.shape[0])
    parts = []
    for some, ids in zip(torch.split(states, block), torch.split(tokens, block), strict=True):
        logits = _compute_logits(model, some).float()
        parts.append(logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(1))
    return torch.cat(parts) if parts else states.new_empty(0, dtype=torch.float32)


def _compute_logits(model: Any, states: Tensor) -> Tensor:
    """Return the logits `[N, vocabulary]` that the model's own forward computes from its last states `[N, D]`."""
    config = model.config
    # T5 scales the states if the head is the embedding matrix; transformers 5 has a setting for it.
    tied = config.model_type in {"t5", "longt5"} and config.tie_word_embeddings
    if getattr(config, "scale_decoder_outputs", tied):
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


def _check_head(model: Any, states: Tensor, logits: Tensor, name: str) -> None:
    """Raise InputError if `_compute_logits` does not reproduce the model's own `logits [N, vocabulary]`."""
    computed = _compute_logits(model, states).float()
    # In half precision the two differ by rounding, far less than by a missing factor or bias.
    tolerance = 1e-3 if states.dtype in (torch.float32, torch.float64) else 0.05
    if not torch.allclose(computed, logits.float(), rtol=tolerance, atol=tolerance * float(logits.float().abs().max())):
        raise InputError(
            f"The log-probabilities of {name!r} cannot be computed, because {type(model).__name__} computes logits "
            "in its own way: switch them off with logprobs=False."
        )


@dataclass(frozen=True)
class Probe:
    """The shape of a model.

    Attributes:
        dim: D of the requested layer.
        layer: the number of that layer, as returned by `resolve_layer`.
        layers: the number of hidden layers.
        classes: the number of logits of a classifier; 0 for other models.
    """

    dim: int
    layer: int
    layers: int
    classes: int


def probe_model(loaded: LoadedTextModel, name: str, mode: Mode, layer: int, *, with_head: bool) -> Probe:
    """Return the shape of a model, found by a pass over one token, because configurations name it in many ways.

    Raise InputError if the model has no states for token ids, or no such layer, or, `with_head`, an unknown head.
    """
    # Some classifiers need an end-of-sequence token.
    end = getattr(loaded.config, "eos_token_id", None) if loaded.kind == "classifier" else 0
    one = torch.full((1, 1), end if isinstance(end, int) else 0, dtype=torch.int64, device=loaded.model.device)
    try:
        with torch.inference_mode():
            layers = _read_one(loaded, mode, 0, one).layers
    except Exception as error:  # a model for other inputs may fail in any way
        raise InputError(
            f"The model {name!r} ({type(loaded.model).__name__}) gives no hidden states for token ids: "
            "allowed are text encoders, causal language models and encoder-decoder models."
        ) from error
    layer = resolve_layer(layer, layers, name)
    with torch.inference_mode():
        hidden = _read_one(loaded, mode, layer, one)
        if with_head:
            inputs = {"input_ids": one} if loaded.kind == "causal" else {"input_ids": one, "decoder_input_ids": one}
            logits = loaded.model(**inputs, return_dict=True).logits
            _check_head(loaded.model, hidden.last.flatten(0, 1), logits.flatten(0, 1), name)
    classes = 0 if hidden.logits is None else hidden.logits.shape[-1]
    return Probe(hidden.states.shape[-1], layer, layers, classes)


def _read_one(loaded: LoadedTextModel, mode: Mode, layer: int, one: Tensor) -> Hidden:
    model, padded = TextModel(loaded.model, loaded.kind, layer), Padded(one, None, torch.ones(1, dtype=torch.int64))
    if mode == "input" or loaded.kind == "causal":
        return model.read(padded)
    return model.run_decoder(TextModel(loaded.model, loaded.kind).read(padded).last, padded, one)
