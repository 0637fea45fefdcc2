"""One batch through a text model: the states of a mode, and the channels that come with them."""

import copy
import zlib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from apood.encoders.language.generation import Generated, Generator, Prompt, read_prompts
from apood.encoders.language.padding import Padded, places, to_device
from apood.encoders.language.text_model import Hidden, TextModel
from apood.encoders.language.token_logprobs import token_logprobs
from apood.encoders.pretrained import Kind
from apood.tokens.batch import Ragged

__all__ = ["Mode", "Rows", "TextPass"]

Mode = Literal["input", "output", "reference"]


class Rows(NamedTuple):
    """Rows of consecutive sequences, on any device, and how many each sequence has, on the CPU."""

    lengths: Tensor
    values: Tensor


class TextPass:
    """Runs batches of one mode.

    Args:
        model: as transformers loads it.
        kind: what it does with text.
        mode: whose states are wanted: the text's, the output's or a given target's.
        layer: which hidden states.
        fill: the id to pad with.
        special_ids: tokens whose states are left out.
        logprobs: whether to give `token_logprobs`.
        generator: for mode `output` and samples.
        samples: how many outputs to sample for `sample_logprobs`.
        seed: of the samples.
    """

    def __init__(
        self,
        model: Any,
        kind: Kind,
        *,
        mode: Mode,
        layer: int,
        fill: int,
        special_ids: Tensor | None,
        logprobs: bool,
        generator: Generator | None = None,
        samples: int = 0,
        seed: int = 0,
    ) -> None:
        self._model = TextModel(model, kind, layer)
        self._reader = TextModel(model, kind)  # what a decoder looks at is always the encoder's last state
        self._mode, self._fill, self._special_ids, self._logprobs = mode, fill, special_ids, logprobs
        self._generator, self._samples, self._seed = generator, samples, seed

    def __call__(self, sources: Ragged, targets: Ragged | None = None) -> Mapping[str, Rows]:
        """`states` and channels of sources that all have tokens; `targets` are those of mode `reference`."""
        if self._mode == "input":
            return self._input(sources)
        if self._model.kind == "encoder-decoder":
            return self._decoded(sources, targets)
        return self._continued(sources, targets)

    def of_prompt(self, prompt: Prompt, sources: Ragged) -> Mapping[str, Rows]:
        """What mode `input` gives of sources that were read at this layer, as prompts to generate from."""
        width = prompt.padded.ids.shape[1]
        first = None if prompt.encoder_decoder else width - sources.lengths
        return self._of_sources(prompt.hidden, sources, width, first)

    def of_output(self, prompt: Prompt, generated: Generated) -> Mapping[str, Rows]:
        """What mode `output` gives of outputs that were generated elsewhere, without reading the prompts again."""
        if prompt.encoder_decoder:
            hidden = self._model.follow(prompt.hidden.last, prompt.padded, generated.before)
        else:
            hidden = self._model.read_on(prompt.padded, copy.deepcopy(prompt.cache), generated.padded)
        at = places(generated.tokens.lengths, generated.padded.shape[1])
        return self._of_targets(hidden, generated.tokens, at)

    def kept(self, tokens: Ragged) -> Ragged:
        """Which tokens have a state in the result: their places in `tokens.values`, ragged."""
        if self._special_ids is None:
            return Ragged(torch.arange(len(tokens.values)), tokens.offsets)
        kept = ~torch.isin(tokens.values, self._special_ids)
        return Ragged(kept.nonzero().flatten(), torch.cat([torch.zeros(1).long(), kept.cumsum(0)])[tokens.offsets])

    def _input(self, sources: Ragged) -> dict[str, Rows]:
        padded = Padded.of(sources, self._model.device, fill=self._fill)
        hidden = self._model.read(padded)
        found = self._of_sources(hidden, sources, padded.ids.shape[1])
        if hidden.logits is not None:
            found["logits"] = Rows(torch.ones_like(sources.lengths), hidden.logits)
        if self._samples:
            encoded = self._model.kind == "encoder-decoder"
            prompt = Prompt(hidden, padded, None, encoder_decoder=True) if encoded else self._read(sources)
            found["sample_logprobs"] = self._sample_logprobs(prompt, sources)
        return found

    def _of_sources(self, hidden: Hidden, sources: Ragged, width: int, first: Tensor | None = None) -> dict[str, Rows]:
        found = self._states(hidden, sources, places(sources.lengths, width, first))
        if self._logprobs:
            # Each token is predicted by the one before it, and nothing predicts the first.
            counts = sources.lengths - 1
            rest = torch.ones(len(sources.values), dtype=torch.bool)
            rest[sources.offsets[:-1]] = False
            at = places(counts, width, first)
            found["token_logprobs"] = self._token_logprobs(hidden, sources.values[rest], counts, at)
        return found

    def _decoded(self, sources: Ragged, targets: Ragged | None) -> dict[str, Rows]:
        prompt = self._read(sources)
        if targets is None:
            assert self._generator is not None
            generated = self._generator.output(prompt)
            targets, decoder_ids = generated.tokens, generated.before
        else:
            decoder_ids = self._before(targets)
        hidden = self._model.follow(prompt.hidden.last, prompt.padded, decoder_ids)
        found = self._of_targets(hidden, targets, places(targets.lengths, decoder_ids.shape[1]))
        return self._with_samples(found, prompt, sources)

    def _continued(self, sources: Ragged, targets: Ragged | None) -> dict[str, Rows]:
        prompt = self._read(sources) if targets is None or self._samples else None
        if targets is None:
            assert self._generator is not None and prompt is not None
            targets = self._generator.output(prompt).tokens
        # The last token of a target predicts nothing that is asked for.
        both = [torch.cat([source, target[:-1]]) for source, target in zip(sources, targets, strict=True)]
        padded = Padded.of(
            Ragged.from_lengths(torch.cat(both), [len(row) for row in both]), self._model.device, fill=self._fill
        )
        at = places(targets.lengths, padded.ids.shape[1], first=sources.lengths - 1)
        return self._with_samples(self._of_targets(self._model.read(padded), targets, at), prompt, sources)

    def _of_targets(self, hidden: Hidden, targets: Ragged, at: Tensor) -> dict[str, Rows]:
        found = self._states(hidden, targets, at)
        if self._logprobs:
            found["token_logprobs"] = self._token_logprobs(hidden, targets.values, targets.lengths, at)
        return found

    def _with_samples(self, found: dict[str, Rows], prompt: Prompt | None, sources: Ragged) -> dict[str, Rows]:
        if self._samples:
            assert prompt is not None
            found["sample_logprobs"] = self._sample_logprobs(prompt, sources)
        return found

    def _read(self, sources: Ragged) -> Prompt:
        return read_prompts(self._reader, sources, self._fill)

    def _before(self, targets: Ragged) -> Tensor:
        """The decoder's input for targets: shifted by one, behind whatever the model begins with."""
        labels = Padded.of(targets, self._model.device, fill=-100).ids
        shifted: Tensor = self._model.model.prepare_decoder_input_ids_from_labels(labels=labels)
        return shifted

    def _states(self, hidden: Hidden, tokens: Ragged, at: Tensor) -> dict[str, Rows]:
        kept = self.kept(tokens)
        return {
            "states": Rows(kept.lengths, hidden.at(to_device(at[kept.values], self._model.device))),
            "input_ids": Rows(kept.lengths, tokens.values[kept.values]),
        }

    def _token_logprobs(self, hidden: Hidden, ids: Tensor, lengths: Tensor, at: Tensor) -> Rows:
        last = hidden.last_at(to_device(at, self._model.device))
        ids = to_device(ids.to(torch.int64), self._model.device)
        return Rows(lengths, token_logprobs(self._model.model, last, ids))

    def _sample_logprobs(self, prompt: Prompt, sources: Ragged) -> Rows:
        assert self._generator is not None
        # Other prompts, other random numbers, whatever was sampled before.
        seed = zlib.crc32(sources.values.numpy().tobytes(), self._seed)
        generated, logprobs = self._generator.samples(prompt, self._samples, seed)
        counts = generated.tokens.lengths.to(logprobs.device, logprobs.dtype)
        return Rows(torch.full((len(sources),), self._samples), torch.stack([logprobs, counts], 1))
