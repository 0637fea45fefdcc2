"""One batch through a text model: the states of a mode, and the channels that come with them."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.encoders.base.hidden import LayerReader
from apood.encoders.base.pretrained import Kind
from apood.encoders.text.generation import Generated, Generator, Prompt, Samples, draw_numbers, read_prompts
from apood.encoders.text.model import Hidden, Mode, TextModel, compute_token_logprobs
from apood.encoders.text.tokenising import Padded, find_places
from apood.tokens.batch import Ragged, upload

__all__ = ["Rows", "TextPass"]


class Rows(NamedTuple):
    """Rows of consecutive sequences, on any device, and the number of rows per sequence, on the CPU."""

    lengths: Tensor
    values: Tensor


class TextPass:
    """Runs batches through a model, in one mode.

    The attribute `model` is the model, which makes states of the chosen layers.

    Args:
        model: a model of transformers.
        kind: what the model does with text.
        mode: `input` for the states of the text, `output` for those of the output, `reference` for those of a target.
        reader: makes the states of the chosen layers, found by `probe_model` for the same mode.
        summary: whether to compute the channel `summary`.
        fill: the id to pad with.
        special_ids: tokens whose states are left out.
        logprobs: whether to compute the channel `token_logprobs`.
        generator: required for mode `output` and for samples.
        samples: the number of outputs per text to sample for the channel `sample_logprobs`.
        seed: the seed of the samples.
    """

    def __init__(
        self,
        model: Any,
        kind: Kind,
        *,
        mode: Mode,
        reader: LayerReader,
        fill: int,
        special_ids: Tensor | None,
        logprobs: bool,
        generator: Generator | None = None,
        samples: int = 0,
        seed: int = 0,
        summary: bool = False,
    ) -> None:
        self.model = TextModel(model, kind, reader, reader.make_other() if summary else None)
        self._reader = TextModel(model, kind)  # a decoder always attends to the encoder's last state
        self._mode, self._fill, self._special_ids, self._logprobs = mode, fill, special_ids, logprobs
        self._generator, self._samples, self._seed = generator, samples, seed

    def run(self, sources: Ragged, targets: Ragged | None = None) -> Mapping[str, Rows]:
        """Return `states` and the channels of sources, none of them empty; `targets` are those of mode `reference`."""
        if self._mode == "input":
            return self._run_input(sources)
        return self._run_output(sources) if targets is None else self._run_reference(sources, targets)

    def compute_input(self, prompt: Prompt, sources: Ragged) -> dict[str, Rows]:
        """Return the states and channels of mode `input` from prompts that were read at these layers."""
        width = prompt.padded.ids.shape[1]
        first = None if prompt.encoder_decoder else width - sources.lengths
        return self._compute_sources(prompt.hidden, sources, width, first)

    def compute_output(self, prompt: Prompt, generated: Generated) -> dict[str, Rows]:
        """Return the states and channels of mode `output` from generated outputs, without reading the prompts again."""
        if prompt.encoder_decoder:
            hidden = self.model.run_decoder(prompt.hidden.last, prompt.padded, generated.before)
        else:
            hidden = self.model.read_on(prompt.padded, copy.deepcopy(prompt.cache), generated.padded)
        places = find_places(generated.tokens.lengths, generated.padded.shape[1])
        return self._compute_targets(hidden, generated.tokens, places)

    def find_kept(self, tokens: Ragged) -> Ragged:
        """Return the positions in `tokens.values` of the tokens whose states are kept, as ragged rows."""
        if self._special_ids is None:
            return Ragged(torch.arange(len(tokens.values)), tokens.offsets)
        kept = ~torch.isin(tokens.values, self._special_ids)
        return Ragged(kept.nonzero().flatten(), torch.cat([torch.zeros(1).long(), kept.cumsum(0)])[tokens.offsets])

    def _run_input(self, sources: Ragged) -> dict[str, Rows]:
        if self._samples and self.model.kind == "causal":
            prompt = read_prompts(self.model, sources, self._fill)
            if prompt.cache is not None:  # without a cache, states must not come from prompts padded on the left
                return self._add_samples(self.compute_input(prompt, sources), prompt, sources)
        padded = Padded.pad(sources, self.model.device, fill=self._fill)
        hidden = self.model.read(padded)
        found = self._compute_sources(hidden, sources, padded.ids.shape[1])
        if hidden.logits is not None:
            found["logits"] = Rows(torch.ones_like(sources.lengths), hidden.logits)
        if not self._samples:
            return found
        encoded = self.model.kind == "encoder-decoder"
        prompt = Prompt(hidden, padded, None, encoder_decoder=True) if encoded else self._read(sources)
        return self._add_samples(found, prompt, sources)

    def _compute_sources(
        self, hidden: Hidden, sources: Ragged, width: int, first: Tensor | None = None
    ) -> dict[str, Rows]:
        found = self._select_states(hidden, sources, find_places(sources.lengths, width, first))
        if self._logprobs:
            # Each token is predicted from the one before it, and the first from nothing.
            counts = sources.lengths - 1
            rest = torch.ones(len(sources.values), dtype=torch.bool)
            rest[sources.offsets[:-1]] = False
            places = find_places(counts, width, first)
            found["token_logprobs"] = self._compute_logprobs(hidden, sources.values[rest], counts, places)
        return found

    def _run_output(self, sources: Ragged) -> dict[str, Rows]:
        assert self._generator is not None
        prompt, samples = self._read(sources), None
        if self._samples:
            generated, samples = self._generator.generate_with_samples(prompt, self._draw(sources))
        else:
            generated = self._generator.generate(prompt)
        if prompt.encoder_decoder or prompt.cache is not None:
            found = self.compute_output(prompt, generated)
        else:
            found = self._continue_sources(sources, generated.tokens)
        return found if samples is None else found | {"sample_logprobs": self._make_sample_rows(samples)}

    def _run_reference(self, sources: Ragged, targets: Ragged) -> dict[str, Rows]:
        if self.model.kind == "causal":
            found = self._continue_sources(sources, targets)
            return self._add_samples(found, self._read(sources), sources) if self._samples else found
        prompt = self._read(sources)
        decoder_ids = self._shift_right(targets)
        hidden = self.model.run_decoder(prompt.hidden.last, prompt.padded, decoder_ids)
        found = self._compute_targets(hidden, targets, find_places(targets.lengths, decoder_ids.shape[1]))
        return self._add_samples(found, prompt, sources) if self._samples else found

    def _shift_right(self, targets: Ragged) -> Tensor:
        """Return the decoder's input: the target shifted by one, after the model's start token, padded on the right."""
        model = self.model.model
        labels = Padded.pad(targets, self.model.device, fill=-100).ids
        if hasattr(model, "prepare_decoder_input_ids_from_labels"):  # mBART's targets begin with their last token
            shifted: Tensor = model.prepare_decoder_input_ids_from_labels(labels=labels)
            return shifted
        # M2M100 and Blenderbot can shift, but only inside a pass that computes the loss.
        start = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] < 0, self._fill)], 1)

    def _continue_sources(self, sources: Ragged, targets: Ragged) -> dict[str, Rows]:
        """Return the states and channels of targets after sources, all read by a causal model in one pass."""
        # Nothing is predicted from the last token of a target.
        both = [torch.cat([source, target[:-1]]) for source, target in zip(sources, targets, strict=True)]
        tokens = Ragged.from_lengths(torch.cat(both), [len(row) for row in both])
        padded = Padded.pad(tokens, self.model.device, fill=self._fill)
        places = find_places(targets.lengths, padded.ids.shape[1], first=sources.lengths - 1)
        return self._compute_targets(self.model.read(padded), targets, places)

    def _compute_targets(self, hidden: Hidden, targets: Ragged, places: Tensor) -> dict[str, Rows]:
        found = self._select_states(hidden, targets, places)
        if self._logprobs:
            found["token_logprobs"] = self._compute_logprobs(hidden, targets.values, targets.lengths, places)
        return found

    def _add_samples(self, found: dict[str, Rows], prompt: Prompt, sources: Ragged) -> dict[str, Rows]:
        assert self._generator is not None
        samples = self._generator.sample(prompt, self._draw(sources))
        return found | {"sample_logprobs": self._make_sample_rows(samples)}

    def _draw(self, sources: Ragged) -> Tensor:
        assert self._generator is not None
        return draw_numbers(sources, self._samples, self._generator.max_new_tokens, self._seed)

    def _make_sample_rows(self, samples: Samples) -> Rows:
        counts = samples.tokens.lengths.to(samples.logprobs.device, samples.logprobs.dtype)
        lengths = torch.full((len(counts) // self._samples,), self._samples)
        return Rows(lengths, torch.stack([samples.logprobs, counts], 1))

    def _read(self, sources: Ragged) -> Prompt:
        return read_prompts(self._reader, sources, self._fill)

    def _select_states(self, hidden: Hidden, tokens: Ragged, places: Tensor) -> dict[str, Rows]:
        kept = self.find_kept(tokens)
        found = {
            "states": Rows(kept.lengths, self._select(hidden.states, places[kept.values])),
            "input_ids": Rows(kept.lengths, tokens.values[kept.values]),
        }
        if hidden.other is not None:
            found["summary"] = self._summarise(hidden.other, tokens, kept, places)
        return found

    def _summarise(self, states: Tensor, tokens: Ragged, kept: Ragged, places: Tensor) -> Rows:
        """Return the mean kept state of each sequence that has any, without the sink at the start of a causal text."""
        taken = torch.ones(len(kept.values), dtype=torch.bool)
        if self.model.kind == "causal" and self._mode == "input":
            taken = kept.values != tokens.offsets[:-1].repeat_interleave(kept.lengths)
            taken |= (kept.lengths == 1).repeat_interleave(kept.lengths)
        counts = torch.cat([torch.zeros(1, dtype=torch.int64), taken.cumsum(0)])[kept.offsets].diff()
        rows = self._select(states, places[kept.values[taken]]).float()
        # The rows of a sequence are added in their order, so the sum does not depend on its neighbours.
        filled = counts[counts > 0]
        means = torch.segment_reduce(rows, "mean", lengths=upload(filled, rows.device)) if len(filled) else rows
        return Rows((counts > 0).long(), means)

    def _compute_logprobs(self, hidden: Hidden, ids: Tensor, lengths: Tensor, places: Tensor) -> Rows:
        last = self._select(hidden.last, places)
        ids = upload(ids.to(torch.int64), self.model.device)
        return Rows(lengths, compute_token_logprobs(self.model.model, last, ids))

    def _select(self, states: Tensor, places: Tensor) -> Tensor:
        return states.flatten(0, 1).index_select(0, upload(places, self.model.device))
