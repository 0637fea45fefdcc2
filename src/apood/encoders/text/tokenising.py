"""Texts as token ids, cut at a limit and counted, and token ids as text."""

import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.tokens.batch import Ragged

__all__ = ["Tokenised", "Tokeniser"]

_PLACE = "{text}"


class Tokenised(NamedTuple):
    """Token ids (int32) of some texts, and which of the texts were cut at the limit."""

    ids: Ragged
    cut: list[int]


class Tokeniser:
    """A model's tokenizer with a limit, and a template that texts are put into.

    Texts may be tokenised in several threads at once.

    Args:
        tokenizer: as transformers loads it.
        name: of the model, for messages.
        limit: longer texts are cut at their end, the special tokens and what the template has behind them kept.
        template: has `{text}` where the text goes; None for the text alone.
    """

    def __init__(self, tokenizer: Any, name: str, limit: int, template: str | None = None) -> None:
        if template is not None and template.count(_PLACE) != 1:
            raise InputError(f"A template must have {_PLACE} exactly once, where the text goes, got {template!r}.")
        self._tokenizer, self._limit = tokenizer, limit
        self._before, _, self._behind = (template or _PLACE).partition(_PLACE)
        self._lock = threading.Lock()
        self._tokenizer.truncation_side = "right"
        self._rust = _without_limits(tokenizer)
        self._suffix = 0 if self._rust is None else _suffix(self._rust)
        if self._behind and self._rust is None:
            raise InputError(
                f"The tokenizer of {name!r} is written in Python and cannot keep {self._behind!r} behind a text that "
                f"it cuts: allowed is a template that ends with {_PLACE}."
            )
        added = len(self._ids([self._before + self._behind])[0])
        if limit <= added:
            what = "special tokens" if template is None else "special tokens and those of the template"
            raise InputError(
                f"max_tokens must be at least {added + 1} for {name!r}, whose tokenizer adds {added} {what} "
                f"to every text, got {limit}."
            )

    @property
    def special_ids(self) -> Tensor:
        """The ids of special tokens; an unknown word is none, though tokenizers name its id among them."""
        tokenizer = self._tokenizer
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
        ids = set(tokenizer.all_special_ids)
        if tokenizer.unk_token_id not in {getattr(tokenizer, name, None) for name in names}:
            ids.discard(tokenizer.unk_token_id)
        return torch.tensor(sorted(ids), dtype=torch.int32)

    def sources(self, texts: Sequence[str]) -> Tokenised:
        """The ids of texts in the template, with the special tokens that the tokenizer adds by itself."""
        whole = [self._before + _readable(text) + self._behind for text in texts]
        rows = self._ids(whole)
        long = [index for index, row in enumerate(rows) if len(row) > self._limit]
        if self._rust is None:
            cut = self._hf([whole[index] for index in long], truncation=True, max_length=self._limit)
            rows = _replaced(rows, long, cut)
        else:
            kept = self._kept_behind([whole[index] for index in long])
            cut = [rows[i][: self._limit - n] + rows[i][len(rows[i]) - n :] for i, n in zip(long, kept, strict=True)]
            rows = _replaced(rows, long, cut)
        return Tokenised(_ragged(rows), long)

    def targets(self, texts: Sequence[str], limit: int) -> Tokenised:
        """The ids of targets as an encoder-decoder model learns them: with the end-of-sequence token."""
        return self._limited([_readable(text) for text in texts], limit, "text_target", {})

    def continuations(self, texts: Sequence[str], limit: int) -> Tokenised:
        """The ids of what follows a prompt: no special tokens, since nothing begins there and nothing need end."""
        return self._limited([_readable(text) for text in texts], limit, "text", {"add_special_tokens": False})

    def texts(self, ids: Ragged) -> list[str]:
        """What sequences of ids read as, without special tokens."""
        return [str(self._tokenizer.decode(row.tolist(), skip_special_tokens=True)) for row in ids]

    def pieces(self, input_ids: Sequence[int] | Tensor) -> list[str]:
        """What each token reads as; joined, the pieces read as the text.

        A character that is spread over several tokens belongs to the last of them.
        """
        ids = [int(token) for token in input_ids]
        pieces: list[str] = []
        # A token's text depends on the one before it (is there a space between them?), so each is decoded behind
        # the tokens of the last complete piece.
        before = done = 0
        for stop in range(1, len(ids) + 1):
            known, longer = self._decode(ids[before:done]), self._decode(ids[before:stop])
            complete = len(longer) > len(known) and not longer.endswith("\ufffd")
            pieces.append(longer[len(known) :] if complete or stop == len(ids) else "")
            if complete:
                before, done = done, stop
        return pieces

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Whole texts, with special tokens."""
        if self._rust is None:
            return self._hf(texts)
        # Without the offsets and strings of its tokens, and without building encodings of what lies behind the limit.
        with self._lock:
            encodings = self._rust.encode_batch_fast(texts)
        return [encoding.ids for encoding in encodings]

    def _hf(self, texts: list[str], argument: str = "text", **options: Any) -> list[list[int]]:
        if not texts:
            return []
        with self._lock:  # the call changes settings of the tokenizer, and nobody else may meet them
            encoded = self._tokenizer(**{argument: texts}, return_attention_mask=False, verbose=False, **options)
            if self._rust is not None:
                self._rust.no_truncation()
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _limited(self, texts: list[str], limit: int, argument: str, options: dict[str, Any]) -> Tokenised:
        rows = self._hf(texts, argument, **options)
        long = [index for index, row in enumerate(rows) if len(row) > limit]
        again = [texts[index] for index in long]
        cut = self._hf(again, argument, truncation=True, max_length=limit, **options)
        return Tokenised(_ragged(_replaced(rows, long, cut)), long)

    def _kept_behind(self, whole: list[str]) -> list[int]:
        """How many tokens at the end of each text belong to the template or are special."""
        if not self._behind or not whole:
            return [self._suffix] * len(whole)
        assert self._rust is not None
        kept = []
        with self._lock:
            encodings = self._rust.encode_batch(whole)
        for text, encoding in zip(whole, encodings, strict=True):
            inside = len(text) - len(self._behind)
            stop = len(encoding) - self._suffix
            kept.append(self._suffix + sum(start >= inside for start, _ in encoding.offsets[:stop]))
        return kept


def _without_limits(tokenizer: Any) -> Any | None:
    """The tokenizer that is written in Rust, set to cut and pad nothing; None for one written in Python."""
    if not tokenizer.is_fast:
        return None
    rust = tokenizer.backend_tokenizer
    rust.no_truncation()
    rust.no_padding()
    return rust


def _suffix(rust: Any) -> int:
    """How many special tokens stand behind every text."""
    marks = rust.encode("a").special_tokens_mask
    return next((count for count, mark in enumerate(reversed(marks)) if not mark), 0)


def _replaced(rows: list[list[int]], where: list[int], by: list[list[int]]) -> list[list[int]]:
    for index, row in zip(where, by, strict=True):
        rows[index] = row
    return rows


def _ragged(rows: list[list[int]]) -> Ragged:
    lengths = [len(row) for row in rows]
    return Ragged.from_lengths(np.fromiter(chain.from_iterable(rows), np.int32, sum(lengths)), lengths)


def _readable(text: str) -> str:
    """The text as a tokenizer takes it: lone surrogates, which broken sources contain, become the replacement sign."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
