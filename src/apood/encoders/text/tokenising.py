"""Token ids: made from texts and cut at a limit, turned back into text, and padded into batches for a model."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apood.encoders.text.windows import Documents, OnLong, cut_windows, find_long_problem
from apood.support.errors import InputError
from apood.tokens.batch import Ragged, list_run_rows, upload

__all__ = [
    "Budget",
    "Padded",
    "RowCollector",
    "Tokenised",
    "Tokeniser",
    "batch_by_length",
    "choose_batch_tokens",
    "estimate_generation_budget",
    "find_places",
    "replace_surrogates",
]

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
        limit: the largest number of ids of a sequence; special tokens and the template are in every sequence.
        template: a text with `{text}` in the place of the input; None for the input alone.

    Attributes:
        room: the largest number of tokens of a text itself, without special tokens and the template.
    """

    def __init__(self, tokenizer: Any, name: str, limit: int, template: str | None = None) -> None:
        if template is not None and template.count(_PLACE) != 1:
            raise InputError(f"A template must contain {_PLACE} exactly once, got {template!r}.")
        self._tokenizer, self._name, self._limit = tokenizer, name, limit
        self._before, _, self._after = (template or _PLACE).partition(_PLACE)
        self._lock = threading.Lock()
        self._tokenizer.truncation_side = "right"
        self._rust = _unlimit(tokenizer)
        self._suffix = self._count_suffix() if self._rust is None else _count_suffix(self._rust)
        if self._after and self._rust is None:
            raise InputError(
                f"The tokenizer of {name!r} is written in Python and cannot keep {self._after!r} after a text that "
                f"it cuts: the template must end with {_PLACE}."
            )
        added = len(self._tokenise_whole([self._before + self._after])[0])
        start = self._tokenise_whole([self._before])[0]
        self._head = start[: len(start) - self._suffix]
        self.room = limit - added
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

    def tokenise_documents(self, texts: Sequence[str], on_long: OnLong) -> Documents:
        """Return the ids of texts as `tokenise_sources` does, but treat long texts as `on_long` says."""
        if on_long == "beginning":
            ids, cut = self.tokenise_sources(texts)
            return Documents(ids, torch.ones(len(ids), dtype=torch.int64), cut, {})
        whole = self._fill_template(texts)
        rows = self._tokenise_whole(whole)
        long = [index for index, row in enumerate(rows) if len(row) > self._limit]
        tails = self._count_kept([whole[index] for index in long])
        documents, refused = [[row] for row in rows], {}
        for index, tail in zip(long, tails, strict=True):
            row, head = rows[index], self._count_head(rows[index])
            problem = find_long_problem(len(row), head + tail, self._limit, on_long)
            documents[index] = [] if problem else cut_windows(row, head, tail, self._limit)
            if problem:
                refused[index] = problem
        ids = _make_ragged([row for windows in documents for row in windows])
        return Documents(ids, torch.tensor([len(windows) for windows in documents], dtype=torch.int64), [], refused)

    def tokenise_parts(self, parts: Sequence[str]) -> Ragged:
        """Return the ids of parts of texts, each by itself, without special tokens and template."""
        return _make_ragged(self._tokenise_whole([replace_surrogates(part) for part in parts], special=False))

    def locate_documents(self, texts: Sequence[str], on_long: OnLong) -> list[list[list[tuple[int, int]]]]:
        """Return where the tokens of `tokenise_documents` are: per text and window, a start and an end per token.

        Both count characters of the text. They are -1 for special tokens and tokens of the template. Refused texts have
        no windows.
        """
        if self._rust is None:
            raise InputError("A tokenizer that is written in Python does not say where in a text its tokens are.")
        whole = self._fill_template(texts)
        with self._lock:
            encodings = self._rust.encode_batch(whole)
        located = []
        for text, encoding, tail in zip(texts, encodings, self._count_kept(whole), strict=True):
            row, head = self._map_offsets(text, encoding.offsets), self._count_head(encoding.ids)
            if len(row) <= self._limit:
                located.append([row])
            elif on_long == "beginning":
                located.append([row[: self._limit - tail] + row[len(row) - tail :]])
            elif find_long_problem(len(row), head + tail, self._limit, on_long) is None:
                located.append(cut_windows(row, head, tail, self._limit))
            else:
                located.append([])
        return located

    def _map_offsets(self, text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return offsets into the text from those into the filled template, -1 for what is not part of the text."""
        places, before = _map_surrogates(text), len(self._before)
        clipped = ([min(max(place - before, 0), len(places) - 1) for place in both] for both in offsets)
        return [(places[start], places[end]) if end > start else (-1, -1) for start, end in clipped]

    def tokenise_sources(self, texts: Sequence[str]) -> Tokenised:
        """Return the ids of texts in the template, with the special tokens that the tokenizer adds.

        Long texts are cut at their end.
        """
        whole = self._fill_template(texts)
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
        try:
            return self._tokenise_limited(texts, limit, "text_target")
        except KeyError as error:
            if getattr(self._tokenizer, "tgt_lang", "") is not None:
                raise
            raise InputError(
                f"The tokenizer of {self._name!r} needs the language of the targets: set tgt_lang in its "
                "tokenizer_config.json."
            ) from error

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

    def _fill_template(self, texts: Sequence[str]) -> list[str]:
        return [self._before + replace_surrogates(text) + self._after for text in texts]

    def _tokenise_whole(self, texts: list[str], *, special: bool = True) -> list[list[int]]:
        """Return the ids of whole texts, with special tokens or without."""
        if self._rust is None:
            return self._call(texts, add_special_tokens=special)
        # This is faster than the tokenizer of transformers, because it makes no offsets and strings of tokens.
        with self._lock:
            encodings = self._rust.encode_batch_fast(texts, add_special_tokens=special)
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
        texts = [replace_surrogates(text) for text in texts]
        rows = self._call(texts, argument, **options)
        long = [index for index, row in enumerate(rows) if len(row) > limit]
        cut = self._call([texts[index] for index in long], argument, truncation=True, max_length=limit, **options)
        return _make_tokenised(rows, long, cut)

    def _count_suffix(self) -> int:
        """Return how many special tokens a tokenizer written in Python adds at the end of every text."""
        ids, bare = self._call(["a"])[0], self._call(["a"], add_special_tokens=False)[0]
        added = len(ids) - len(bare)
        return next((count for count in range(added + 1) if ids[added - count : len(ids) - count] == bare), 0)

    def _count_head(self, row: list[int]) -> int:
        """Return how many tokens at the start of a text are special or belong to the template."""
        pairs = enumerate(zip(row, self._head, strict=False))
        return next((count for count, (own, known) in pairs if own != known), min(len(row), len(self._head)))

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
    return Tokenised(_make_ragged(rows), long)


def _make_ragged(rows: list[list[int]]) -> Ragged:
    lengths = [len(row) for row in rows]
    return Ragged.from_lengths(np.fromiter(chain.from_iterable(rows), np.int32, sum(lengths)), lengths)


def replace_surrogates(text: str) -> str:
    """Return the text with lone surrogates, which tokenizers do not accept, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _map_surrogates(text: str) -> Sequence[int]:
    """Return the place in `text` of each character of `replace_surrogates(text)`, and the length of `text`.

    Two surrogates that make up one character become that character.
    """
    if len(replace_surrogates(text)) == len(text):
        return range(len(text) + 1)
    return [
        place
        for place, character in enumerate(text)
        if not ("\udc00" <= character <= "\udfff" and "\ud800" <= text[place - 1 : place] <= "\udbff")
    ] + [len(text)]


_CPU_BYTES = 1 << 30
_ACTIVATIONS = 24  # numbers of the size of a state that a pass needs at once per token
_LOGIT_BYTES = 24  # per token of the vocabulary, while the next token is chosen
_SMALLEST_COPY = 1 << 16  # bytes; starting a smaller copy from a GPU takes longer than the copy


@dataclass(frozen=True)
class Padded:
    """Token ids padded to the longest sequence of a batch.

    Attributes:
        ids: `[sequences, longest]`, on a device.
        mask: 1 at tokens and 0 at padding; None if there is no padding, because models are faster without a mask.
        lengths: the number of tokens per sequence, on the CPU.
    """

    ids: Tensor
    mask: Tensor | None
    lengths: Tensor

    @classmethod
    def pad(cls, tokens: Ragged, device: torch.device, *, fill: int, left: bool = False) -> "Padded":
        """Pad on the right, where padding shifts no position and a causal model does not see it, or on the left."""
        lengths, longest = tokens.lengths, int(tokens.lengths.max())
        ids = torch.full((len(tokens), longest), fill, dtype=torch.int64)
        places = find_places(lengths, longest, first=longest - lengths if left else None)
        ids.view(-1)[places] = tokens.values.to(torch.int64)
        if bool((lengths == longest).all()):
            return cls(upload(ids, device), None, lengths)
        mask = torch.zeros_like(ids)
        mask.view(-1)[places] = 1
        return cls(upload(ids, device), upload(mask, device), lengths)

    @property
    def full_mask(self) -> Tensor:
        """The mask, all ones if there is no padding."""
        return torch.ones_like(self.ids) if self.mask is None else self.mask


def find_places(lengths: Tensor, width: int, first: Tensor | None = None) -> Tensor:
    """Return the positions of tokens in a flattened `[sequences, width]` batch.

    Row i has `lengths[i]` tokens from column `first[i]` on (0 by default). Positions are computed on the CPU, so that
    selecting rows of a tensor on a device does not wait for the device.
    """
    starts = torch.arange(len(lengths)) * width
    return list_run_rows(starts if first is None else starts + first, lengths)


def choose_batch_tokens(device: torch.device) -> int:
    """Return how many tokens, including padding, make a good batch on the device."""
    if device.type != "cuda":
        return 2048
    # 1 MiB per token is enough for the keys and values of models with a few billion parameters.
    return min(65536, torch.cuda.get_device_properties(device).total_memory >> 20)


class Budget(NamedTuple):
    """The size of a batch.

    Attributes:
        tokens: the number of tokens per batch, including padding.
        extra: how many tokens are added to the length of each sequence, to allow for what is generated from it.
    """

    tokens: int
    extra: int


def estimate_generation_budget(model: Any, outputs: int, new_tokens: int) -> Budget:
    """Return the budget of a model that generates `outputs` outputs of at most `new_tokens` tokens per prompt at once.

    A batch is as large as memory permits, because a step of a larger batch takes hardly more time. Sizes are estimated
    from the model's configuration. On a GPU, half of the free memory is used.
    """
    config, item = model.config.get_text_config(), model.dtype.itemsize
    dim = _get_number(config, "hidden_size", 4096)
    layers = max(_get_number(config, name, 0) for name in ("decoder_layers", "num_decoder_layers", "num_hidden_layers"))
    heads = _get_number(config, "num_attention_heads", 1)
    shared = _get_number(config, "num_key_value_heads", heads) / heads
    cache = int(2 * max(layers, 1) * dim * shared * item)
    # The keys and values of a prompt are kept beside those of its outputs.
    token = _ACTIVATIONS * dim * item + (outputs + 1) * cache
    output = new_tokens * cache + _LOGIT_BYTES * _get_number(config, "vocab_size", 1 << 15)
    return Budget(max(1, _get_free_memory(model.device) // token), outputs * output // token)


def _get_free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return 1 << (free // 2).bit_length() - 1  # a power of two, so that batches are the same from run to run


def _get_number(config: Any, name: str, default: int) -> int:
    found = getattr(config, name, None)
    return found if isinstance(found, int) and found > 0 else default


def batch_by_length(
    lengths: Tensor, padded_tokens: int, max_sequences: int | None = None, alike: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the indices of sequences of similar length, batch by batch.

    The longest sequences come first, so that a batch that is too large fails at the start. Indices within a batch
    are sorted. Sequences without tokens are left out. Sequences of a batch have the same number in `alike`.
    """
    order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
    start = 0
    while start < len(order):
        count = max(1, padded_tokens // int(lengths[order[start]]))
        count = count if max_sequences is None else min(count, max_sequences)
        if alike is not None:
            own = alike[order[start : start + count]]
            count = int((own == own[0]).long().cumprod(0).sum())
        yield order[start : start + count].sort().values
        start += count


class RowCollector:
    """Collects rows of sequences, such as states, whose batches are computed in any order.

    If the lengths are known in advance, rows are written to their final place at once. From a GPU they are copied to
    pinned memory in a stream of their own, while the GPU computes the next batch. Only `finish` waits for the GPU.

    Args:
        sequences: the number of sequences; those that no batch contains stay empty.
        row: the shape of a row.
        dtype: the dtype that rows are kept in.
        device: the device that rows come from.
        lengths: the number of rows per sequence, if known in advance.
    """

    def __init__(
        self,
        sequences: int,
        row: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        lengths: Tensor | None = None,
    ) -> None:
        self._row, self._dtype = row, dtype
        self._lengths = torch.zeros(sequences, dtype=torch.int64) if lengths is None else lengths
        self._stream: torch.cuda.Stream | None = None
        self._values: Tensor | None = None
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        if lengths is None:
            return
        rows = int(lengths.sum())
        row_bytes = dtype.itemsize * torch.Size(row).numel()
        on_gpu = device.type == "cuda"
        # Rows of short sequences stay on the GPU, where they are sorted, and leave it in one copy.
        if not on_gpu or rows * row_bytes >= _SMALLEST_COPY * sequences:
            with torch.inference_mode(False):  # tensors made in inference mode could not be trained on
                self._values = torch.empty(rows, *row, dtype=dtype, pin_memory=on_gpu)
            self._offsets = lengths.cumsum(0) - lengths
            self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def add(self, chosen: Tensor, lengths: Tensor, rows: Tensor) -> None:
        """Add the rows of the sequences `chosen`, concatenated."""
        rows = rows.to(self._dtype)
        if self._values is None:
            self._parts.append((chosen, lengths, rows))
            self._lengths[chosen] = lengths
        elif self._stream is None:
            self._values.index_copy_(0, list_run_rows(self._offsets[chosen], lengths), rows)
        else:
            self._send(self._values, self._stream, self._offsets[chosen], lengths, rows)

    @staticmethod
    def _send(values: Tensor, stream: torch.cuda.Stream, places: Tensor, lengths: Tensor, rows: Tensor) -> None:
        # Sequences that are adjacent in both tensors are copied together.
        breaks = (places[1:] != (places + lengths)[:-1]).nonzero().flatten() + 1
        firsts = [0, *breaks.tolist()]
        starts = [*(lengths.cumsum(0) - lengths)[firsts].tolist(), len(rows)]
        stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(stream):
            for place, (start, stop) in zip(places[firsts].tolist(), pairwise(starts), strict=True):
                values[place : place + stop - start].copy_(rows[start:stop], non_blocking=True)
        rows.record_stream(stream)

    def finish(self) -> Ragged:
        """Return the rows of all sequences in their order, on the CPU."""
        if self._stream is not None:
            self._stream.synchronize()
        values = self._sort_parts() if self._values is None else self._values
        return Ragged.from_lengths(values, self._lengths)

    def _sort_parts(self) -> Tensor:
        if not self._parts:
            return torch.empty(0, *self._row, dtype=self._dtype)
        rows = torch.cat([rows for _, _, rows in self._parts])
        order = torch.cat([chosen for chosen, _, _ in self._parts]).argsort()
        lengths = torch.cat([lengths for _, lengths, _ in self._parts])
        places = list_run_rows((lengths.cumsum(0) - lengths)[order], lengths[order])
        return rows.index_select(0, upload(places, rows.device)).cpu()
