"""The encoder behind a model server: from texts to the token states that the server computes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch

from apood.encoders.base.encoder import describe_opened, encode_or_refuse
from apood.encoders.base.layers import LayersLike
from apood.encoders.remote.client import Client, RefusedError
from apood.encoders.remote.dialects import find_dialect
from apood.encoders.text.encoder import PreparedTexts, check_texts, repeat_text
from apood.encoders.text.tokenising import replace_surrogates
from apood.encoders.text.windows import OnLong, cut_windows, find_long_problem
from apood.support.checks import check_choice, check_integer, check_number
from apood.support.errors import InputError, ServerError
from apood.tokens.batch import Ragged, TokenBatch, encode_texts, list_run_rows
from apood.tokens.documents import WINDOW
from apood.tokens.identity import PROBE, EncoderIdentity
from apood.tokens.probe import PROBE_TEXTS, make_probe

__all__ = ["ONE_LAYER", "RemoteEncoder"]

ONE_LAYER = "a server gives the states of one layer, the last one"

_REQUEST_TOKENS = 4096  # an answer has about ten bytes per number, and D numbers per token


class RemoteEncoder:
    """An encoder of texts behind a running server: llama.cpp, vLLM or text-embeddings-inference.

    The server tokenises texts and gives the last layer's states of their tokens, as they are, not normalised. A text of
    more than `max_tokens` tokens becomes several sequences, as with `TextEncoder`. Channels are `input_ids`, `text` and
    `window`.

    The server's files are unknown, so its identity is measured: numbers computed from the tokens of four fixed texts.
    A detector takes tokens of a server only if they differ by at most 2% from those at its fit. This is checked when
    the encoder is opened, not at every request.

    A key that the server asks for is read from the environment variable APOOD_SERVER_KEY.

    Args:
        address: the address of the server, such as http://127.0.0.1:8080.
        layers: -1 or `auto`: there is no other layer.
        max_tokens: the largest number of tokens of a sequence. The server's own limit applies if it is smaller.
        on_long: what to do with a longer text: `windows`, `refuse` or `beginning`, as with `TextEncoder`.
        timeout: how many seconds to wait for an answer.

    Attributes:
        device: the CPU, which gets the states.
        dim: D, the length of a token.
        identity: the settings that another encoder must share to give the same tokens.
        max_tokens: the limit of texts that applies.
        mode: `input`.
        on_long: what is done with longer texts.
        truncated: the number of texts so far that were cut.
    """

    mode = "input"
    device = torch.device("cpu")

    def __init__(
        self,
        address: str,
        *,
        layers: LayersLike = "auto",
        max_tokens: int = 512,
        on_long: OnLong = "windows",
        timeout: float = 60.0,
    ) -> None:
        if str(layers) not in ("auto", "-1"):
            raise InputError(f"layers must be -1 or auto for the server {address}, got {layers}: {ONE_LAYER}.")
        check_choice("on_long", on_long, get_args(OnLong))
        check_integer("max_tokens", max_tokens, 1)
        check_number("timeout", timeout, above=0)
        self._client = Client(address, timeout)
        self._server = find_dialect(self._client)
        self.on_long, self.truncated = on_long, 0
        self.max_tokens = int(min(max_tokens, self._server.context or max_tokens))
        self._head, self._tail = _find_frame(*(self._tokenise(["a"], special=own)[0] for own in (True, False)))
        if self.max_tokens <= self._head + self._tail:
            raise InputError(f"max_tokens must be at least {self._head + self._tail + 1}, got {self.max_tokens}.")
        self.dim = 0  # until the first answer
        rows = self._tokenise(PROBE_TEXTS)
        if not all(rows):
            raise ServerError(f"The server {address} gives no tokens for a text that has some: {self._server.advice}.")
        probe = self._embed(rows)
        self.dim = probe[0].shape[1]
        self._refuse_limit(rows[0])
        self.identity: EncoderIdentity = {
            "model": self._server.model.replace("\\", "/").rpartition("/")[2],  # llama.cpp gives the path of a file
            "layers": "-1",
            "mode": self.mode,
            "max_tokens": self.max_tokens,
            **({"on_long": on_long} if on_long != "beginning" else {}),
            PROBE: make_probe(probe),
        }

    def __repr__(self) -> str:
        return describe_opened("RemoteEncoder", self.identity, self.dim, self.device)

    def encode(self, items: Sequence[Any]) -> TokenBatch:
        """Return the states and channels of every text, in the order given."""
        return encode_or_refuse(self, items)

    def prepare(self, items: Sequence[Any]) -> PreparedTexts:
        """Return the token ids of texts, which the server makes. Long texts that are refused have no sequence."""
        check_texts(items)
        rows = self._tokenise([replace_surrogates(text) for text in items])
        documents, cut, refused = [[row] for row in rows], [], {}
        for index, row in enumerate(rows):
            if len(row) <= self.max_tokens:
                continue
            if self.on_long == "beginning":
                documents[index] = [row[: self.max_tokens - self._tail] + row[len(row) - self._tail :]]
                cut.append(index)
                continue
            problem = find_long_problem(len(row), self._head + self._tail, self.max_tokens, self.on_long)
            documents[index] = [] if problem else cut_windows(row, self._head, self._tail, self.max_tokens)
            if problem:
                refused[index] = problem
        counts = torch.tensor([len(windows) for windows in documents], dtype=torch.int64)
        texts = [t for text, count in zip(items, counts.tolist(), strict=True) for t in repeat_text(text, count)]
        flat = [row for windows in documents for row in windows]
        ids = torch.tensor([token for row in flat for token in row], dtype=torch.int32)
        windows = list_run_rows(torch.zeros_like(counts), counts) if self.on_long == "windows" else None
        sources = Ragged.from_lengths(ids, [len(row) for row in flat])
        return PreparedTexts(texts, sources, [], None, frozenset(cut), windows, refused)

    def run(self, prepared: PreparedTexts) -> TokenBatch:
        """Return the states and channels of prepared texts, in their order."""
        states = self._embed([row.tolist() for row in prepared.sources])
        values = torch.from_numpy(np.concatenate([np.empty((0, self.dim), np.float32), *states]))
        channels = {"input_ids": prepared.sources, "text": encode_texts(prepared.texts)}
        if prepared.windows is not None:
            channels[WINDOW] = Ragged.from_lengths(prepared.windows.int(), [1] * len(prepared.windows))
        self.truncated += len(prepared.cut)
        return TokenBatch(values, prepared.sources.offsets, channels, self.identity)

    def locate(self, _texts: Sequence[str]) -> Ragged:
        """Raise InputError: servers do not say in a common way where in a text its tokens are."""
        raise InputError("A model server does not say where in a text its tokens are, so words cannot be marked.")

    def _refuse_limit(self, row: list[int]) -> None:
        """Raise ServerError if the server does not take texts of `max_tokens` tokens, before work is lost on them."""
        full = (row * (1 + self.max_tokens // len(row)))[: self.max_tokens]
        try:
            self._embed([full])
        except RefusedError as error:
            raise ServerError(
                f"The server {self._client.address} does not take texts of {self.max_tokens:,} tokens "
                f"({error.reason}): give a smaller max_tokens, or {self._server.advice}."
            ) from error

    def _tokenise(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        with self._name_server():
            rows = [
                np.array([int(token) for token in row], dtype=np.int32).tolist()  # an error if it has no such number
                for row in self._server.tokenise(texts, special=special)
            ]
        self._check_count(texts, rows)
        return rows

    def _check_count(self, given: Sequence[Any], answer: Sequence[Any]) -> None:
        if len(answer) != len(given):
            raise ServerError(f"The server {self._client.address} answers {len(given)} texts by {len(answer)}.")

    @contextmanager
    def _name_server(self) -> Iterator[None]:
        """Raise ServerError if an answer has another form than the server's documentation says."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ServerError(
                f"The server {self._client.address} answers in an unknown form ({type(error).__name__}: {error}): "
                f"{self._server.advice}."
            ) from error

    def _embed(self, rows: list[list[int]]) -> list[npt.NDArray[np.float32]]:
        found: dict[int, npt.NDArray[np.float32]] = {}
        for chosen in self._split(rows):
            with self._name_server():
                answer = list(self._server.embed([rows[index] for index in chosen]))
            self._check_count(chosen, answer)
            found |= {n: self._check(states, len(rows[n])) for n, states in zip(chosen, answer, strict=True)}
        return [found.get(index, np.empty((0, self.dim), np.float32)) for index in range(len(rows))]

    def _split(self, rows: list[list[int]]) -> Iterator[list[int]]:
        """Yield the indices of the rows of each request; rows without tokens are in none."""
        chosen: list[int] = []
        tokens = 0
        for index, row in enumerate(rows):
            if chosen and (len(chosen) == self._server.most or tokens + len(row) > _REQUEST_TOKENS):
                yield chosen
                chosen, tokens = [], 0
            if row:
                chosen.append(index)
                tokens += len(row)
        if chosen:
            yield chosen

    def _check(self, states: Any, tokens: int) -> npt.NDArray[np.float32]:
        """Return the states of one text as an array. Raise ServerError if they are not one vector per token."""
        address = self._client.address
        try:
            array = np.array(states, dtype=np.float32)  # null, as which NaN is sent, becomes NaN
        except (OverflowError, TypeError, ValueError):
            array = np.empty(0, np.float32)
        if array.ndim != 2 or len(array) != tokens:
            shape = "x".join(map(str, array.shape))
            raise ServerError(
                f"The server {address} gives {shape} numbers for a text of {tokens} tokens, and not one vector per "
                f"token: {self._server.advice}."
            )
        if self.dim and array.shape[1] != self.dim:
            raise ServerError(f"The server {address} gives tokens of D={array.shape[1]}, and gave D={self.dim} before.")
        if not np.isfinite(array).all():
            raise ServerError(f"The server {address} gives tokens with numbers that are not finite.")
        return array


def _find_frame(row: list[int], bare: list[int]) -> tuple[int, int]:
    """Return how many special tokens are before and after every text, from one text with and without them."""
    added = len(row) - len(bare)
    head = next((n for n in range(added + 1) if row[n : n + len(bare)] == bare), added)
    return head, added - head
