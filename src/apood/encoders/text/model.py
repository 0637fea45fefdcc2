"""A text model of any family: its passes over padded token ids, the log-probabilities of its head, and its shape."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from apood.encoders.base.hidden import LayerReader, StackSearch
from apood.encoders.base.layers import LayersLike, resolve_layers
from apood.encoders.base.pretrained import Kind, LoadedTextModel
from apood.encoders.text.tokenising import Padded
from apood.support.errors import InputError
from apood.tokens.batch import Ragged

__all__ = ["Hidden", "Mode", "Probe", "TextModel", "compute_token_logprobs", "probe_model"]

Mode = Literal["input", "output", "reference"]

_BLOCK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 26}
_SCALED_IF_TIED = {"t5", "longt5", "switch_transformers", "umt5"}
_CAPS = ("final_logit_softcapping", "logits_soft_cap")


@dataclass(frozen=True)
class Hidden:
    """Hidden states of a padded batch, `[sequences, longest, D]` each.

    Attributes:
        states: the states of the requested layers.
        last: the states that the model's head reads.
        other: the states of the other view, for summaries, if they are wanted.
        logits: the class logits `[sequences, classes]` of a classifier.
    """

    states: Tensor
    last: Tensor
    other: Tensor | None = None
    logits: Tensor | None = None

    def select(self, rows: Any) -> "Hidden":
        """Return some of the sequences, or the same places of all of them; without logits."""
        return Hidden(self.states[rows], self.last[rows], None if self.other is None else self.other[rows])


class TextModel:
    """A loaded model and the layers that states are made of.

    Args:
        model: a model of transformers.
        kind: what the model does with text.
        reader: makes the states of the layers while the model runs; by default those of the last one. It belongs to one
            module: the decoder, if states are those of a decoder, else the encoder or causal model.
        other: makes the states of the other view in the same pass; None if no summaries are wanted.
    """

    def __init__(
        self, model: Any, kind: Kind, reader: LayerReader | None = None, other: LayerReader | None = None
    ) -> None:
        self.model, self.kind, self._reader, self._other = model, kind, reader or LayerReader(), other
        self._all_layers = self._reader.needs_all or (other is not None and other.needs_all)

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
        module = _find_module(self.model, self.kind, "input")
        if self.kind == "causal":
            # A mask of padding on the right would change nothing, and rule out the fastest attention.
            return self._run(module, input_ids=prompts.ids, use_cache=False)
        return self._run(module, input_ids=prompts.ids, attention_mask=prompts.mask)

    def read_with_cache(self, prompts: Padded) -> tuple[Hidden, Any]:
        """Return the states of a causal model's prompts, padded on the left, and the cache of keys and values."""
        return self._run_cached(prompts.ids, prompts.full_mask, None)

    def read_on(self, prompts: Padded, cache: Any, ids: Tensor) -> Hidden:
        """Return the states of a causal model that predict each of `ids [sequences, tokens]`, which follow the prompts.

        `cache` holds the keys and values of the first tokens of the prompts, and is extended; None if there are none.
        """
        known = 0 if cache is None else int(cache.get_seq_length())
        # Nothing is predicted from the last token.
        whole, ones = torch.cat([prompts.ids, ids[:, :-1]], 1), torch.ones_like(ids[:, :-1])
        hidden, _ = self._run_cached(whole[:, known:], torch.cat([prompts.full_mask, ones], 1), cache)
        return hidden.select((slice(None), slice(-ids.shape[1], None)))

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
        with self._watch() as finish:
            output = part(**inputs, output_hidden_states=self._all_layers, return_dict=True)
        return finish(output.last_hidden_state, output.hidden_states)

    @contextmanager
    def _watch(self) -> Iterator[Callable[[Tensor, Any], Hidden]]:
        """Watch a pass; yield a function of `last_hidden_state` and `hidden_states` that returns the states."""
        with self._reader.watch() as finish, self._other.watch() if self._other else nullcontext() as finish_other:
            yield lambda last, hidden: Hidden(
                finish(last, hidden), last, None if finish_other is None else finish_other(last, hidden)
            )

    def _run_cached(self, ids: Tensor, mask: Tensor, cache: Any) -> tuple[Hidden, Any]:
        """Run a causal model over the tokens after those in the cache, and return their states and the cache.

        The mask covers both; padding is on the left.
        """
        base = self.model.base_model
        # Models that bias the attention instead of adding positions have no such argument.
        takes_positions = "position_ids" in inspect.signature(base.forward).parameters
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with self._watch() as finish:
            output = base(
                input_ids=ids,
                attention_mask=mask,
                **({"position_ids": positions} if takes_positions else {}),
                past_key_values=cache,
                output_hidden_states=self._all_layers,
                use_cache=True,
                return_dict=True,
            )
        hidden = finish(output.last_hidden_state, output.hidden_states)
        return hidden, getattr(output, "past_key_values", None)  # a recurrent model has another kind of memory

    def _classify(self, prompts: Padded) -> Hidden:
        """Compute logits and states in one pass."""
        with self._watch() as finish:
            last, hidden, logits = _classify(self.model, prompts.ids, prompts.mask, all_layers=self._all_layers)
        return replace(finish(last, hidden), logits=logits)


def _find_module(model: Any, kind: Kind, mode: Mode) -> Any:
    """Return the part of a model that makes the states of a mode."""
    whole = model.base_model if kind in ("causal", "classifier") else model
    if not model.config.is_encoder_decoder:
        return whole
    return whole.get_encoder() if mode == "input" else whole.get_decoder()


def _classify(model: Any, ids: Tensor, mask: Tensor | None, *, all_layers: bool) -> tuple[Tensor, Any, Tensor]:
    """Return the last state, the states of all layers if they are wanted, and the logits of a classifier.

    A hook sees the last state, which the classifier does not return.
    """
    seen: list[Any] = []
    hook = model.base_model.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        output = model(input_ids=ids, attention_mask=mask, output_hidden_states=all_layers, return_dict=True)
    finally:
        hook.remove()
    if "encoder_last_hidden_state" in seen[0]:
        return seen[0].encoder_last_hidden_state, seen[0].encoder_hidden_states, output.logits
    return seen[0].last_hidden_state, seen[0].hidden_states, output.logits


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
    config = model.config.get_text_config()
    # T5 scales the states if the head is the embedding matrix; transformers 5 has a setting for it in some models.
    tied = config.model_type in _SCALED_IF_TIED and config.tie_word_embeddings
    if getattr(config, "scale_decoder_outputs", tied):
        states = states * config.d_model**-0.5
    logits: Tensor = model.get_output_embeddings()(states)
    if (bias := getattr(model, "final_logits_bias", None)) is not None:
        logits = logits + bias
    if (scale := getattr(config, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    cap = next((found for name in _CAPS if (found := getattr(config, name, None)) is not None), None)
    if cap is not None:
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
        dim: D of the requested layers.
        summary_dim: the length of a summary, which is made of other layers.
        reader: makes the states of the layers.
        classes: the number of logits of a classifier; 0 for other models.
        mixes_padding: whether the states of a text depend on the padding beside it, so that a batch must have texts of
            one length.
    """

    dim: int
    summary_dim: int
    reader: LayerReader
    classes: int
    mixes_padding: bool


def probe_model(loaded: LoadedTextModel, name: str, mode: Mode, layers: LayersLike, *, with_head: bool) -> Probe:
    """Return the shape of a model, found by passes over a few tokens, because configurations name it in many ways.

    Raise InputError if the model has no states for token ids, or no such layers, or, `with_head`, an unknown head.
    """
    model, kind = loaded.model, loaded.kind
    try:
        ids = _make_probe_ids(loaded)
        search = StackSearch(_find_module(model, kind, mode))
        with torch.inference_mode(), search.watch():
            last, hidden, logits = _run_probe(model, kind, mode, ids)
        depth = len(hidden) - 1
    except Exception as error:  # a model for other inputs may fail in any way
        raise InputError(
            f"The model {name!r} ({type(model).__name__}) gives no hidden states for token ids ({error}): allowed are "
            "text encoders, causal language models and encoder-decoder models, and for sounds, audio spectrogram "
            "transformers and Whisper."
        ) from error
    resolved = resolve_layers(layers, kind, depth, name, mode)
    reader = search.find(resolved, last, hidden)
    with torch.inference_mode():
        if with_head:
            inputs = {"input_ids": ids} if kind == "causal" else {"input_ids": ids, "decoder_input_ids": ids}
            own = model(**inputs, return_dict=True).logits
            _check_head(model, last.flatten(0, 1), own.flatten(0, 1), name)
        try:
            states, beside = _read_padded(loaded, mode, reader, ids)
        except RuntimeError as error:  # such as states of different lengths, which cannot be added
            raise InputError(
                f"The layers {resolved} of {name!r} ({type(model).__name__}) do not give one state of one length per "
                f"token ({error}): allowed are models whose layers do."
            ) from error
    assert states.other is not None
    return Probe(
        dim=states.states.shape[-1],
        summary_dim=states.other.shape[-1],
        reader=reader,
        classes=0 if logits is None else logits.shape[-1],
        mixes_padding=beside and not _are_alike(states.last[0], last[0]),
    )


def _read_padded(loaded: LoadedTextModel, mode: Mode, reader: LayerReader, ids: Tensor) -> tuple[Hidden, bool]:
    """Return the states of `ids [1, N]`, and whether they were read beside a longer text, with padding."""
    model, kind, (count,) = loaded.model, loaded.kind, ids.shape[1:]
    rows = [ids[0], torch.cat([ids[0, :1].expand(count), ids[0]])]
    if 2 * count > loaded.context or (kind == "classifier" and not loaded.pads):
        del rows[1]
    tokens = Ragged.from_lengths(torch.cat(rows).cpu(), [len(row) for row in rows])
    left = kind == "causal" and mode != "input"  # as prompts are
    padded = Padded.pad(tokens, model.device, fill=loaded.padding_id, left=left)
    text_model = TextModel(model, kind, reader, reader.make_other())
    width = padded.ids.shape[1]
    if left:
        hidden, _ = text_model.read_with_cache(padded)
    elif mode != "input":
        encoded = TextModel(model, kind).read(padded).last
        hidden, width = text_model.run_decoder(encoded, padded, ids.expand(len(rows), -1)), count
    else:
        hidden = text_model.read(padded)
    for states in (hidden.states, hidden.other):
        if states is not None and states.shape[1] != width:  # Pegasus-X pads inside
            raise RuntimeError(f"{states.shape[1]} states for {width} tokens")
    return hidden.select((slice(None), slice(-count, None) if left else slice(count))), len(rows) > 1


def _are_alike(states: Tensor, others: Tensor) -> bool:
    """Return whether states `[N, D]` differ by no more than rounding."""
    tolerance = 1e-3 if states.dtype in (torch.float32, torch.float64) else 0.05
    differences = (states.float() - others.float()).norm(dim=-1)
    return bool((differences <= tolerance * others.float().norm(dim=-1)).all())


def _make_probe_ids(loaded: LoadedTextModel) -> Tensor:
    """Return a few token ids `[1, N]`, not one alone, because the embedding of a padding token may be zero."""
    known = loaded.model.get_input_embeddings().num_embeddings
    ids = [token % known for token in range(min(3, loaded.context))]
    # Some classifiers need an end-of-sequence token.
    end = getattr(loaded.config, "eos_token_id", None) if loaded.kind == "classifier" else None
    return torch.tensor([[*ids[:-1], end] if isinstance(end, int) else ids], device=loaded.model.device)


def _run_probe(model: Any, kind: Kind, mode: Mode, ids: Tensor) -> tuple[Tensor, Any, Tensor | None]:
    """Return the last state, the states of all layers, and the logits of a classifier."""
    if kind == "classifier":
        return _classify(model, ids, None, all_layers=True)
    inputs: dict[str, Any] = {"input_ids": ids}
    if kind == "encoder-decoder" and mode != "input":
        read = _find_module(model, kind, "input")(input_ids=ids, return_dict=True)
        inputs |= {"encoder_hidden_states": read.last_hidden_state, "use_cache": False}
    elif kind == "causal":
        inputs["use_cache"] = False
    output = _find_module(model, kind, mode)(**inputs, output_hidden_states=True, return_dict=True)
    return output.last_hidden_state, output.hidden_states, None
