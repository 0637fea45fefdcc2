"""Generation from prompts that a model has read: outputs, and samples of them."""

import copy
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apood.encoders.base.pretrained import silence_transformers
from apood.encoders.text.batching import Padded
from apood.encoders.text.model import Hidden, TextModel
from apood.tokens.batch import Ragged

__all__ = [
    "Decoded",
    "Generated",
    "Generator",
    "Prompt",
    "Rules",
    "Samples",
    "cut_outputs",
    "decode",
    "draws",
    "read_prompts",
]


@dataclass(frozen=True)
class Prompt:
    """Prompts that a model has read: their states, and what it needs to generate from them.

    Attributes:
        hidden: states of the prompts (of the encoder, where there is one), padded as `padded` is.
        padded: their token ids.
        cache: the keys and values of a causal model's prompts, all but their last token.
    """

    hidden: Hidden
    padded: Padded
    cache: Any
    encoder_decoder: bool

    def sequence(self, index: int) -> Tensor:
        """The states of one prompt, `[tokens, D]`."""
        states, length = self.hidden.states[index], int(self.padded.lengths[index])
        return states[:length] if self.encoder_decoder else states[len(states) - length :]

    def select(self, indices: Sequence[int]) -> "Prompt":
        """Some of the prompts, as they were read."""
        if list(indices) == list(range(len(self.padded.lengths))):
            return self
        chosen = torch.tensor(indices, dtype=torch.int64)
        at = chosen.to(self.padded.ids.device)
        hidden = replace(self.hidden, states=self.hidden.states[at], last=self.hidden.last[at])
        mask = None if self.padded.mask is None else self.padded.mask[at]
        cache = copy.deepcopy(self.cache)
        if cache is not None:
            cache.batch_select_indices(at)
        return Prompt(
            hidden, Padded(self.padded.ids[at], mask, self.padded.lengths[chosen]), cache, self.encoder_decoder
        )

    def arguments(self, outputs: int = 1, *, apart: bool = False) -> dict[str, Any]:
        """What `model.generate` takes to go on from here, with so many beams or samples for each prompt.

        It repeats the prompts itself, unless they are repeated here to be prompts `apart`. Generating changes these
        arguments, not the prompt: ask for them again to generate again.
        """
        times = outputs if apart else 1
        # An encoder-decoder model needs the ids, too, where its settings forbid to repeat what is in the prompt.
        arguments: dict[str, Any] = {
            "input_ids": _repeated(self.padded.ids, times),
            "attention_mask": _repeated(self.padded.whole_mask, times),
        }
        if self.encoder_decoder:
            from transformers.modeling_outputs import BaseModelOutput

            arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=_repeated(self.hidden.last, times))
        elif self.cache is not None:
            arguments["past_key_values"] = cache = copy.deepcopy(self.cache)
            if outputs > 1:
                cache.batch_repeat_interleave(outputs)
        return arguments


def _repeated(rows: Tensor, times: int) -> Tensor:
    return rows if times == 1 else rows.repeat_interleave(times, 0)


def read_prompts(text_model: TextModel, tokens: Ragged, fill: int) -> Prompt:
    """Reads prompts of at least one token each, padded with `fill`: the only pass over them that generation needs.

    A causal model's prompts are padded on the left, since what it generates must follow them at once.
    """
    if text_model.kind == "encoder-decoder":
        padded = Padded.of(tokens, text_model.device, fill=fill)
        return Prompt(text_model.read(padded), padded, None, encoder_decoder=True)
    padded = Padded.of(tokens, text_model.device, fill=fill, left=True)
    hidden, cache = text_model.read_with_cache(padded)
    return Prompt(hidden, padded, _without_last(cache), encoder_decoder=False)


def _without_last(cache: Any) -> Any:
    """The cache without the last token, which generation reads again to predict the first new one.

    None where nothing is left, or where a cache cannot forget (a sliding window, a recurrent state): the prompt is
    then read again.
    """
    try:
        if cache.get_seq_length() < 2:
            return None
        cache.crop(-1)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
    return cache


_LOOK_EVERY = 4  # steps; whether outputs have ended is known only after a wait for the device


def draws(prompts: Ragged, count: int, steps: int, seed: int) -> Tensor:
    """Random numbers `[prompts, count, steps]` in [0, 1), one for each token of each sample.

    Those of a prompt come from its token ids and the seed, so they are the same in every batch.
    """
    found = np.empty((len(prompts), count, steps))
    for row, ids in zip(found, prompts, strict=True):
        digest = hashlib.blake2b(f"{seed} ".encode() + ids.to(torch.int64).numpy().tobytes(), digest_size=16).digest()
        row[:] = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(row.shape)
    return torch.from_numpy(found)


class Decoded(NamedTuple):
    """Token ids `[outputs, tokens]`, and of those drawn the log-probabilities; anything behind the ends of outputs."""

    ids: Tensor
    logprobs: Tensor


class Rules(NamedTuple):
    """How outputs begin and end: the id that an encoder-decoder model begins with, and the ids that end an output.

    Two more are for greedy outputs alone: the ids that are `never` chosen, and the one that stands `last` in an output
    that has not ended before.
    """

    start: int | None
    ends: Tensor
    never: Tensor
    last: int | None


def decode(model: Any, prompt: Prompt, numbers: Tensor, rules: Rules) -> Decoded:
    """What a causal or an encoder-decoder model gives for prompts, from its own distribution.

    `numbers [prompts, outputs, tokens]` pick one token each from the cumulated probabilities; a negative one picks
    the most probable token.
    """
    device = prompt.padded.ids.device
    rows = _Rows(model, prompt, numbers.shape[1], rules.start)
    sampling = bool((numbers >= 0).any())
    numbers = numbers.flatten(0, 1).to(device, torch.float32)
    ends, never = rules.ends.to(device), rules.never.to(device)
    ids = torch.zeros(numbers.shape, dtype=torch.int64, device=device)
    logprobs = torch.zeros(numbers.shape, device=device)
    going = torch.arange(len(numbers), device=device)  # which outputs the rows are
    ended = torch.zeros(len(numbers), dtype=torch.bool, device=device)
    steps = numbers.shape[1]
    for step in range(steps):
        now = numbers[going, step]
        chosen, logprob = _choose(rows.logits(), now, never, sampling=sampling)
        if rules.last is not None and step == steps - 1:
            chosen = torch.where(now < 0, rules.last, chosen)
        ids[going, step], logprobs[going, step] = chosen, logprob
        ended = ended | torch.isin(chosen, ends)
        rows.go_on(chosen)
        if (step + 1) % _LOOK_EVERY == 0:
            left = (~ended).nonzero().flatten()
            if len(left) == 0:
                return Decoded(ids[:, : step + 1], logprobs[:, : step + 1])
            # less would not be worth the copy of what is kept
            if len(left) <= 0.8 * len(ended) and rows.can_forget:
                rows.keep(left)
                going, ended = going[left], ended[left]
    return Decoded(ids, logprobs)


def _choose(logits: Tensor, numbers: Tensor, never: Tensor, *, sampling: bool) -> tuple[Tensor, Tensor]:
    """A token for each row and, of those drawn, the log-probability; a greedy row gets none of those in `never`."""
    if not sampling:
        return logits.index_fill_(1, never, -torch.inf).argmax(1), torch.zeros_like(numbers)
    cumulated = logits.softmax(-1).cumsum(-1)
    total = cumulated[:, -1:]
    # Rounded, a number near 1 could reach the total, behind which there is no token.
    reached = torch.minimum(numbers[:, None] * total, total * (1 - 2**-22))
    drawn = torch.searchsorted(cumulated, reached, right=True)
    drawn.clamp_max_(logits.shape[1] - 1)  # behind it lies what NaN draws, which would break the GPU's whole context
    logprobs = logits.gather(1, drawn) - logits.logsumexp(1, keepdim=True)
    best = logits.index_fill_(1, never, -torch.inf).argmax(1, keepdim=True)
    return torch.where(numbers[:, None] < 0, best, drawn).squeeze(1), logprobs.squeeze(1)


class _Rows:
    """What the model needs to go on: for each row the last token, what it may look at, and its keys and values."""

    def __init__(self, model: Any, prompt: Prompt, outputs: int, start: int | None) -> None:
        given = prompt.arguments(outputs, apart=True)
        self._model, self._cache = model, given.get("past_key_values")
        self._mask: Tensor = given["attention_mask"]
        self._encoded: Tensor | None = None
        if prompt.encoder_decoder:
            self._encoded = given["encoder_outputs"].last_hidden_state
            assert start is not None, "an encoder refuses a model that has nothing to begin with"
            self._ids = torch.full((len(self._mask), 1), start, device=self._mask.device)
        else:
            known = 0 if self._cache is None else self._cache.get_seq_length()
            self._ids = given["input_ids"][:, known:]
            takes = inspect.signature(model.forward).parameters
            self._takes_positions = "position_ids" in takes
            self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def logits(self) -> Tensor:
        """Of the next token of each row."""
        if self._encoded is None:
            output = self._read_on()
        else:
            from transformers.modeling_outputs import BaseModelOutput

            output = self._model(
                encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
                attention_mask=self._mask,
                decoder_input_ids=self._ids,
                past_key_values=self._cache,
                use_cache=True,
                return_dict=True,
            )
        self._cache = getattr(output, "past_key_values", None)  # a recurrent model keeps something else
        logits: Tensor = output.logits[:, -1].to(torch.float32, copy=True)
        return logits

    def _read_on(self) -> Any:
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -self._ids.shape[1] :]
        return self._model(
            input_ids=self._ids,
            attention_mask=self._mask,
            **({"position_ids": positions} if self._takes_positions else {}),
            past_key_values=self._cache,
            use_cache=True,
            return_dict=True,
            **self._options,
        )

    def go_on(self, chosen: Tensor) -> None:
        """Takes the next token of each row."""
        new = chosen[:, None]
        self._ids = new if self._cache is not None else torch.cat([self._ids, new], 1)
        if self._encoded is None:
            self._mask = torch.cat([self._mask, torch.ones_like(new)], 1)

    @property
    def can_forget(self) -> bool:
        """Whether single rows can be left out: not of the bare tuples that older versions of transformers keep."""
        return self._cache is None or hasattr(self._cache, "reorder_cache")

    def keep(self, rows: Tensor) -> None:
        """Forgets all other rows."""
        self._ids, self._mask = self._ids[rows], self._mask[rows]
        if self._encoded is not None:
            self._encoded = self._encoded[rows]
        if self._cache is not None:
            self._cache.reorder_cache(rows)


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
        with silence_transformers():
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
