"""What a model generates from prompts that it has read: its output, or samples of it."""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.encoders.base.pretrained import quiet
from apood.encoders.text.decoding import Decoded, Rules, decode
from apood.encoders.text.prompt import Prompt
from apood.tokens.batch import Ragged

__all__ = ["Generated", "Generator", "Samples", "cut_outputs"]

# Settings that `decode` follows, and those that decide nothing where neither beams nor samples are asked for.
_KNOWN = {
    "transformers_version", "_from_model_config", "eos_token_id", "pad_token_id", "bos_token_id", "do_sample",
    "decoder_start_token_id", "forced_eos_token_id", "suppress_tokens", "max_new_tokens", "max_length", "use_cache",
    "temperature", "top_k", "top_p", "min_p", "typical_p", "penalty_alpha", "num_beams", "num_return_sequences",
    "early_stopping", "length_penalty", "renormalize_logits", "output_attentions", "output_hidden_states",
}  # fmt: skip


@dataclass(frozen=True)
class Generated:
    """Token ids that a model generated, each sequence up to its end-of-sequence token, which is in.

    Attributes:
        tokens: the ids, on the CPU.
        padded: the same ids `[sequences, longest]` on the device, with anything behind their ends.
        before: the id that each of them followed, in an encoder-decoder model's decoder: its input.
    """

    tokens: Ragged
    padded: Tensor
    before: Tensor


class Samples(NamedTuple):
    """Sampled outputs, those of a prompt one behind the other, and the log-probability of each, on the device."""

    tokens: Ragged
    logprobs: Tensor


class Generator:
    """Generates with a model that is not used for anything else: its generation settings are put aside.

    Args:
        model: a causal or an encoder-decoder model.
        max_new_tokens: where an output ends at the latest.
        beams: 1 for greedy search.
        fill: the id to pad with.
    """

    def __init__(self, model: Any, max_new_tokens: int, beams: int, fill: int) -> None:
        from transformers import GenerationConfig

        self._model, self.max_new_tokens = model, max_new_tokens
        own = copy.deepcopy(model.generation_config)
        ends = own.eos_token_id if own.eos_token_id is not None else model.config.eos_token_id
        self._ends = torch.tensor([] if ends is None else ends, dtype=torch.int64).flatten()
        tokens = {
            "eos_token_id": ends,
            "pad_token_id": fill,
            "bos_token_id": own.bos_token_id,
            "decoder_start_token_id": own.decoder_start_token_id,
            "max_new_tokens": max_new_tokens,
            "use_cache": True,
        }
        # What is None in the settings of a call is taken from the model's own, which may ask for anything.
        model.generation_config = GenerationConfig(**tokens)
        unused = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p", "max_length", "penalty_alpha"))
        own.update(**tokens, **unused, do_sample=False, num_beams=beams, num_return_sequences=1)
        self._settings, self._beams = own, beams
        self._greedy = beams == 1 and _is_plain(own)
        self._rules = _rules(own, self._ends, model.config)

    def output(self, prompt: Prompt) -> Generated:
        """The model's output for each prompt, by greedy or beam search."""
        if self._greedy:
            return self._outputs(prompt, self._decoded(prompt, _most_probable(prompt, self.max_new_tokens)).ids)
        with quiet():
            sequences = self._model.generate(**prompt.arguments(self._beams), generation_config=self._settings)
        return cut_outputs(prompt, sequences, self._ends)

    def samples(self, prompt: Prompt, numbers: Tensor) -> Samples:
        """Outputs for each prompt, drawn from the model's own distribution with `numbers`, as `draws` gives them."""
        return self._samples(self._decoded(prompt, numbers))

    def output_and_samples(self, prompt: Prompt, numbers: Tensor) -> tuple[Generated, Samples]:
        """Both of them: where the search is greedy, at once, since a step of more rows costs little more."""
        if not self._greedy:
            return self.output(prompt), self.samples(prompt, numbers)
        every = 1 + numbers.shape[1]
        decoded = self._decoded(prompt, torch.cat([_most_probable(prompt, self.max_new_tokens), numbers], 1))
        sampled = torch.arange(len(decoded.ids)) % every > 0
        chosen = sampled.nonzero().flatten().to(decoded.ids.device)
        return (
            self._outputs(prompt, decoded.ids[::every]),
            self._samples(Decoded(decoded.ids[chosen], decoded.logprobs[chosen])),
        )

    def _decoded(self, prompt: Prompt, numbers: Tensor) -> Decoded:
        return decode(self._model, prompt, numbers, self._rules)

    def _outputs(self, prompt: Prompt, ids: Tensor) -> Generated:
        tokens = _until_end(ids.cpu(), self._ends)
        padded = ids[:, : int(tokens.lengths.max())]
        start = self._rules.start
        first = prompt.padded.ids[:, -1:] if start is None else torch.full_like(ids[:, :1], start)
        return Generated(tokens, padded, torch.cat([first, padded[:, :-1]], 1))

    def _samples(self, decoded: Decoded) -> Samples:
        tokens = _until_end(decoded.ids.cpu(), self._ends)
        real = torch.arange(decoded.ids.shape[1]) < tokens.lengths[:, None]
        return Samples(tokens, (decoded.logprobs * real.to(decoded.logprobs.device)).sum(1))


def _is_plain(settings: Any) -> bool:
    """Whether greedy search with these settings is what `decode` does."""
    changed = settings.to_diff_dict()
    words = changed.pop("bad_words_ids", None) or []
    return changed.keys() <= _KNOWN and all(len(word) == 1 for word in words)


def _rules(settings: Any, ends: Tensor, config: Any) -> Rules:
    start = None
    if config.is_encoder_decoder:
        start = settings.decoder_start_token_id
        start = config.decoder_start_token_id if start is None else start
    # Among bad words, transformers overlooks the end of a sequence.
    words = {word[0] for word in settings.bad_words_ids or [] if len(word) == 1} - {*ends.tolist()}
    never = torch.tensor([*words, *(settings.suppress_tokens or [])], dtype=torch.int64)
    last = settings.forced_eos_token_id
    return Rules(start, ends, never, min(last) if isinstance(last, list) else last)  # equals: the lowest id wins


def cut_outputs(prompt: Prompt, sequences: Tensor, ends: Tensor) -> Generated:
    """What `model.generate` has added to prompts, each output up to the first of the ids `ends`, on the CPU."""
    start = 1 if prompt.encoder_decoder else prompt.padded.ids.shape[1]
    tokens = _until_end(sequences[:, start:].cpu(), ends)
    longest = int(tokens.lengths.max())
    return Generated(tokens, sequences[:, start : start + longest], sequences[:, start - 1 : start - 1 + longest])


def _until_end(ids: Tensor, ends: Tensor) -> Ragged:
    """Rows `[outputs, tokens]`, each up to the first of the ids `ends`."""
    ended = torch.isin(ids, ends)
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, ids.shape[1])
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    return Ragged.from_lengths(ids[real].to(torch.int32), lengths)


def _most_probable(prompt: Prompt, steps: int) -> Tensor:
    """Numbers that `decode` takes for one greedy output of each prompt."""
    return torch.full((len(prompt.padded.lengths), 1, steps), -1.0, dtype=torch.float64)
