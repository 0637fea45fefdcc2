"""Texts to token ids, cut at a limit, and token ids to text."""

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
    """The token ids (int32) of texts, and the indices of the texts that were cut at the limit."""

    ids: Ragged
    cut: list[int]


class Tokeniser:
    """A model's tokenizer with a limit, and a template that texts are put into.

    Several threads may tokenise texts at once.

    Args:
        tokenizer: a tokenizer of transformers.
        name: the name of the model, for messages.
        limit: longer texts are cut at their end; special tokens and the end of the template are kept.
        template: a text with `{text}` in the place of the input; None for the input alone.
    """

    def __init__(self, tokenizer: Any, name: str, limit: int, template: str | None = None) -> None:
        if template is not None and template.count(_PLACE) != 1:
            raise InputError(f"A template must contain {_PLACE} exactly once, got {template!r}.")
        self._tokenizer, self._limit = tokenizer, limit
        self._before, _, self._after = (template or _PLACE).partition(_PLACE)
        self._lock = threading.Lock()
        self._tokenizer.truncation_side = "right"
        self._rust = _unlimit(tokenizer)
        self._suffix = 0 if self._rust is None else _count_suffix(self._rust)
        if self._after and self._rust is None:
            raise InputError(
                f"The tokenizer of {name!r} is written in Python and cannot keep {self._after!r} after a text that "
                f"it cuts: the template must end with {_PLACE}."
            )
        added = len(self._tokenise_whole([self._before + self._after])[0])
        if limit <= added:
            what = "special tokens" if template is None else "special tokens and tokens of the template"
            raise InputError(
                f"max_tokens must be at least {added + 1} for {name!r}, whose tokenizer adds {added} {what} "
                f"to every text, got {limit}."
            )

    @property
    def special_ids(self) -> Tensor:
        """The ids of special tokens, without that of unknown words, which tokenizers count among them."""
        tokenizer = self._tokenizer
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
        ids = set(tokenizer.all_special_ids)
        if tokenizer.unk_token_id not in {getattr(tokenizer, name, None) for name in names}:
            ids.discard(tokenizer.unk_token_id)
        return torch.tensor(sorted(ids), dtype=torch.int32)

    def tokenise_sources(self, texts: Sequence[str]) -> Tokenised:
        """Return the ids of texts in the template, with the special tokens that the tokenizer adds."""
        whole = [self._before + _replace_surrogates(text) + self._after for text in texts]
        rows = self._tokenise_whole(whole)
        long = [index for index, row in enumerate(rows) if len(row) > self._limit]
        if self._rust is None:
            cut = self._call([whole[index] for index in long], truncation=True, max_length=self._limit)
        else:
            kept = self._count_kept([whole[index] for index in long])
            cut = [rows[i][: self._limit - n] + rows[i][len(rows[i]) - n :] for i, n in zip(long, kept, strict=True)]
        return _make_tokenised(rows, long, cut)

    def tokenise_targets(self, texts: Sequence[str], limit: int) -> Tokenised:
        """Return the ids of targets as an encoder-decoder model learns them: with the end-of-sequence token."""
        return self._tokenise_limited(texts, limit, "text_target")

    def tokenise_continuations(self, texts: Sequence[str], limit: int) -> Tokenised:
        """Return the ids of texts that follow a prompt, without special tokens."""
        return self._tokenise_limited(texts, limit, "text", add_special_tokens=False)

    def decode(self, ids: Ragged) -> list[str]:
        """Return the text of each sequence of ids, without special tokens."""
        return [str(self._tokenizer.decode(row.tolist(), skip_special_tokens=True)) for row in ids]

    def split_pieces(self, input_ids: Sequence[int] | Tensor) -> list[str]:
        """Return the text of each token; joined, the pieces make up the text.

        A character that is spread over several tokens belongs to the last of them.
        """
        ids = [int(token) for token in input_ids]
        pieces: list[str] = []
        # A token's text depends on the token before it (is there a space between them?), so each is decoded after
        # the tokens of the last complete piece.
        before = done = 0
        for stop in range(1, len(ids) + 1):
            known, longer = self._decode_exactly(ids[before:done]), self._decode_exactly(ids[before:stop])
            complete = len(longer) > len(known) and not longer.endswith("\ufffd")
            pieces.append(longer[len(known) :] if complete or stop == len(ids) else "")
            if complete:
                before, done = done, stop
        return pieces

    def _decode_exactly(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _tokenise_whole(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of whole texts, with special tokens."""
        if self._rust is None:
            return self._call(texts)
        # This is faster than the tokenizer of transformers, because it makes no offsets and strings of tokens.
        with self._lock:
            encodings = self._rust.encode_batch_fast(texts)
        return [encoding.ids for encoding in encodings]

    def _call(self, texts: list[str], argument: str = "text", **options: Any) -> list[list[int]]:
        if not texts:
            return []
        with self._lock:  # the call changes settings of the tokenizer, which other threads must not see
            encoded = self._tokenizer(**{argument: texts}, return_attention_mask=False, verbose=False, **options)
            if self._rust is not None:
                self._rust.no_truncation()
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _tokenise_limited(self, texts: Sequence[str], limit: int, argument: str, **options: Any) -> Tokenised:
        texts = [_replace_surrogates(text) for text in texts]
        rows = self._call(texts, argument, **options)
        long = [index for index, row in enumerate(rows) if len(row) > limit]
        cut = self._call([texts[index] for index in long], argument, truncation=True, max_length=limit, **options)
        return _make_tokenised(rows, long, cut)

    def _count_kept(self, whole: list[str]) -> list[int]:
        """Return how many tokens at the end of each text are special or belong to the template."""
        if not self._after or not whole:
            return [self._suffix] * len(whole)
        assert self._rust is not None
        kept = []
        with self._lock:
            encodings = self._rust.encode_batch(whole)
        for text, encoding in zip(whole, encodings, strict=True):
            inside = len(text) - len(self._after)
            stop = len(encoding) - self._suffix
            kept.append(self._suffix + sum(start >= inside for start, _ in encoding.offsets[:stop]))
        return kept


def _unlimit(tokenizer: Any) -> Any | None:
    """Return the tokenizer's part in Rust, set to cut and pad nothing; None for a tokenizer written in Python."""
    if not tokenizer.is_fast:
        return None
    rust = tokenizer.backend_tokenizer
    rust.no_truncation()
    rust.no_padding()
    return rust


def _count_suffix(rust: Any) -> int:
    """Return how many special tokens are added at the end of every text."""
    marks = rust.encode("a").special_tokens_mask
    return next((count for count, mark in enumerate(reversed(marks)) if not mark), 0)


def _make_tokenised(rows: list[list[int]], long: list[int], cut: list[list[int]]) -> Tokenised:
    """Return the rows, with those at the indices `long` replaced by their `cut` versions."""
    for index, row in zip(long, cut, strict=True):
        rows[index] = row
    lengths = [len(row) for row in rows]
    return Tokenised(Ragged.from_lengths(np.fromiter(chain.from_iterable(rows), np.int32, sum(lengths)), lengths), long)


def _replace_surrogates(text: str) -> str:
    """Return the text with lone surrogates, which tokenizers do not accept, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
