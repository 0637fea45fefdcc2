"""One batch through a text model: the states of a mode, and the channels that come with them."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.encoders.base.pretrained import Kind
from apood.encoders.text.batching import Padded, places
from apood.encoders.text.generation import Generated, Generator, Prompt, Samples, draws, read_prompts
from apood.encoders.text.model import Hidden, Mode, TextModel, token_logprobs
from apood.tokens.batch import Ragged, upload

__all__ = ["Rows", "TextPass"]


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
        return self._output(sources) if targets is None else self._reference(sources, targets)

    def of_prompt(self, prompt: Prompt, sources: Ragged) -> dict[str, Rows]:
        """What mode `input` gives of sources that were read at this layer, as prompts to generate from."""
        width = prompt.padded.ids.shape[1]
        first = None if prompt.encoder_decoder else width - sources.lengths
        return self._of_sources(prompt.hidden, sources, width, first)

    def of_output(self, prompt: Prompt, generated: Generated) -> dict[str, Rows]:
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
        if self._samples and self._model.kind == "causal":
            prompt = read_prompts(self._model, sources, self._fill)
            if prompt.cache is not None:  # else a prompt must not be padded on the left for its states
                return self._with_samples(self.of_prompt(prompt, sources), self._sampled(prompt, sources))
        padded = Padded.of(sources, self._model.device, fill=self._fill)
        hidden = self._model.read(padded)
        found = self._of_sources(hidden, sources, padded.ids.shape[1])
        if hidden.logits is not None:
            found["logits"] = Rows(torch.ones_like(sources.lengths), hidden.logits)
        if self._samples:
            encoded = self._model.kind == "encoder-decoder"
            prompt = Prompt(hidden, padded, None, encoder_decoder=True) if encoded else self._read(sources)
            found = self._with_samples(found, self._sampled(prompt, sources))
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

    def _output(self, sources: Ragged) -> dict[str, Rows]:
        assert self._generator is not None
        prompt, samples = self._read(sources), None
        if self._samples:
            generated, samples = self._generator.output_and_samples(prompt, self._draws(sources))
        else:
            generated = self._generator.output(prompt)
        if prompt.encoder_decoder or prompt.cache is not None:
            found = self.of_output(prompt, generated)
        else:
            found = self._continued(sources, generated.tokens)
        return self._with_samples(found, samples)

    def _reference(self, sources: Ragged, targets: Ragged) -> dict[str, Rows]:
        if self._model.kind == "causal":
            prompt = self._read(sources) if self._samples else None
            found = self._continued(sources, targets)
        else:
            prompt = self._read(sources)
            decoder_ids = self._before(targets)
            hidden = self._model.follow(prompt.hidden.last, prompt.padded, decoder_ids)
            found = self._of_targets(hidden, targets, places(targets.lengths, decoder_ids.shape[1]))
        return found if prompt is None else self._with_samples(found, self._sampled(prompt, sources))

    def _continued(self, sources: Ragged, targets: Ragged) -> dict[str, Rows]:
        """What a causal model gives of targets behind sources, both read anew."""
        # The last token of a target predicts nothing that is asked for.
        both = [torch.cat([source, target[:-1]]) for source, target in zip(sources, targets, strict=True)]
        padded = Padded.of(
            Ragged.from_lengths(torch.cat(both), [len(row) for row in both]), self._model.device, fill=self._fill
        )
        at = places(targets.lengths, padded.ids.shape[1], first=sources.lengths - 1)
        return self._of_targets(self._model.read(padded), targets, at)

    def _of_targets(self, hidden: Hidden, targets: Ragged, at: Tensor) -> dict[str, Rows]:
        found = self._states(hidden, targets, at)
        if self._logprobs:
            found["token_logprobs"] = self._token_logprobs(hidden, targets.values, targets.lengths, at)
        return found

    def _sampled(self, prompt: Prompt, sources: Ragged) -> Samples | None:
        if not self._samples:
            return None
        assert self._generator is not None
        return self._generator.samples(prompt, self._draws(sources))

    def _draws(self, sources: Ragged) -> Tensor:
        assert self._generator is not None
        return draws(sources, self._samples, self._generator.max_new_tokens, self._seed)

    def _with_samples(self, found: dict[str, Rows], samples: Samples | None) -> dict[str, Rows]:
        if samples is not None:
            counts = samples.tokens.lengths.to(samples.logprobs.device, samples.logprobs.dtype)
            each = torch.full((len(counts) // self._samples,), self._samples)
            found["sample_logprobs"] = Rows(each, torch.stack([samples.logprobs, counts], 1))
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
            "states": Rows(kept.lengths, hidden.at(upload(at[kept.values], self._model.device))),
            "input_ids": Rows(kept.lengths, tokens.values[kept.values]),
        }

    def _token_logprobs(self, hidden: Hidden, ids: Tensor, lengths: Tensor, at: Tensor) -> Rows:
        last = hidden.last_at(upload(at, self._model.device))
        ids = upload(ids.to(torch.int64), self._model.device)
        return Rows(lengths, token_logprobs(self._model.model, last, ids))
