"""Outputs of prompts token by token, many at once: greedy ones and samples; those that have ended drop out."""

import hashlib
import inspect
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apood.encoders.text.prompt import Prompt
from apood.tokens.batch import Ragged

__all__ = ["Decoded", "Rules", "decode", "draws"]

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
