"""A simple encoder that fails on demand: each word of a text is a token, and its letters are the state."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from apood.support.errors import InputError
from apood.tokens.batch import Ragged, TokenBatch, encode_texts
from apood.tokens.identity import EncoderIdentity

__all__ = ["WordEncoder", "Words"]


class Words(NamedTuple):
    texts: list[str]
    words: list[list[str]]
    cut: frozenset[int]

    @property
    def refused(self) -> dict[int, str]:
        return {}


class WordEncoder:
    """Raises an error in `prepare` or `run` if a text contains this word."""

    def __init__(self, max_tokens: int = 4) -> None:
        self.device, self.dim = torch.device("cpu"), 8
        self.max_tokens = max_tokens
        self.identity: EncoderIdentity = {"model": "words", "max_tokens": max_tokens}
        self.truncated = 0
        self.ran: list[str] = []

    def prepare(self, items: Sequence[str]) -> Words:
        _fail("prepare", items)
        cut = frozenset(i for i, item in enumerate(items) if len(item.split()) > self.max_tokens)
        return Words(list(items), [item.split()[: self.max_tokens] for item in items], cut)

    def run(self, prepared: Words) -> TokenBatch:
        _fail("run", prepared.texts)
        self.ran += prepared.texts
        self.truncated += len(prepared.cut)
        rows = [[float(ord(letter)) for letter in word.ljust(8)[:8]] for words in prepared.words for word in words]
        values = torch.tensor(rows).reshape(-1, self.dim)
        tokens = Ragged.from_lengths(values, [len(words) for words in prepared.words])
        return TokenBatch(tokens.values, tokens.offsets, {"text": encode_texts(prepared.texts)}, self.identity)

    def encode(self, items: Sequence[str]) -> TokenBatch:
        return self.run(self.prepare(items))


def _fail(stage: str, texts: Sequence[str]) -> None:
    for text in texts:
        if stage in text.split():
            raise InputError(f"{stage} failed at {text!r}.")
