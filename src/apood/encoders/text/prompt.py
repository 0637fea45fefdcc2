"""Prompts that a model has read once, for their states and to generate from them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apood.encoders.text.model import Hidden, TextModel
from apood.encoders.text.padding import Padded
from apood.tokens.batch import Ragged

__all__ = ["Prompt", "read_prompts"]


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
