"""Token stores of texts, made when a command first needs them and kept in a cache."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from apood.data.record import BadRecord, Record, keep_good
from apood.detectors.contract.base import Detector
from apood.encoders.base.encoder import Encoder
from apood.encoders.base.pretrained import find_pretrained, fingerprint
from apood.encoders.embed import embed_to_store
from apood.encoders.opening import open_encoder
from apood.encoders.remote.client import is_address
from apood.pipeline.opening import open_encoder_of, probe_encoder
from apood.support.errors import InputError, StoreError
from apood.support.files import find_user_cache, lock_folder, refuse_unwritable
from apood.support.version import __version__
from apood.tokens.documents import find_documents
from apood.tokens.identity import drop_location, same_encoder
from apood.tokens.source import Subset
from apood.tokens.store import INDEX_FILE, StoreIndex

__all__ = ["Sample", "TokenCache", "describe_source"]

_SAMPLED = 16  # texts that tell how long all take
_BY_TEXTS = "by-texts"  # has a folder per digest of texts, with an empty file for each of their stores, named like it


def describe_source(model: str | Path, open_encoder: Callable[[], Encoder]) -> dict[str, Any]:
    """Return what decides the tokens of a model, and its folder, which detectors take over from their tokens.

    What a server gives is only known once its encoder is open.
    """
    if is_address(model):
        return {"encoder": dict(open_encoder().identity)}
    folder = find_pretrained(model).folder
    return {"fingerprint": fingerprint(folder), "folder": str(folder.resolve())}


class Sample(NamedTuple):
    """What a few of many texts tell about all of them.

    Attributes:
        tokens: as many documents as there are texts, each of them one of the few.
        seconds: about how long embedding all texts takes.
    """

    tokens: Subset
    seconds: float


class TokenCache:
    """A folder of token stores, each named after its texts and its encoder.

    Texts that were embedded before are not embedded again, and no model is opened for them if the settings are the
    same. A store of the same texts that was made with other settings is taken if it holds the same tokens, and all
    channels that are needed. An interrupted store is continued. Nothing is ever deleted from the folder; whoever
    deletes it loses time alone.

    Args:
        folder: the folder; None for that of the user.
        settings: what decides the tokens, besides the texts.
        open_encoder: opens the encoder with these settings.
        suits: whether a store of other settings can be taken; None if it has all that the encoder gives.
        others: the folder of such stores; None for the same folder.

    Attributes:
        folder: the folder.
        made: the number of stores that were made, and not found.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: Mapping[str, Any],
        open_encoder: Callable[[], Encoder],
        suits: Callable[[StoreIndex], bool] | None = None,
        others: Path | None = None,
    ) -> None:
        self.folder = find_user_cache("tokens") if folder is None else folder
        self.made = 0
        self._settings, self._open = {"apood": __version__, **settings}, open_encoder
        self._suits = self._has_all if suits is None else suits
        self._others = self.folder if others is None else others

    @classmethod
    def of_model(cls, folder: Path | None, model: str | Path) -> Self:
        """Return the cache for an encoder of this model, with the settings that `apood embed` has by default."""
        opened = cache(lambda: open_encoder(model))
        return cls(folder, describe_source(model, opened), opened)

    @classmethod
    def of_detector(cls, folder: Path | None, detector: Detector, model: str | Path | None = None) -> Self:
        """Return the cache for the encoder of a fitted detector; `model` is its folder if that has moved."""
        known = detector.encoder_ or {}
        settings = {"encoder": dict(drop_location(known)), "channels": sorted(detector.requires)}

        def suits(index: StoreIndex) -> bool:
            if index.encoder is None or not same_encoder(known, index.encoder, same_samples=True):
                return False
            return detector.requires <= {"tokens", *index.channels}

        # With summary and sentences, which cost little, most stores have all that the other commands need.
        return cls(folder, settings, lambda: open_encoder_of(detector, model, also=["summary", "sentences"]), suits)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder, opened on first use."""
        return self._open()

    @cached_property
    def _given(self) -> frozenset[str]:
        """The channels that the encoder gives."""
        return frozenset(probe_encoder(self.encoder).channels)

    def find_store(self, records: Sequence[Record | BadRecord], *, skip_bad: bool = False) -> Path:
        """Return the folder of the token store of these texts, which are embedded if they are not in the cache."""
        texts = _digest_texts(records, skip_bad=skip_bad)
        if (found := self._find_finished(texts)) is not None:
            return found
        place = self._name_place(texts)
        store = place / "store"
        refuse_unwritable(store)
        place.mkdir(parents=True, exist_ok=True)
        with lock_folder(place):
            if not _is_finished(store):  # another process may have embedded the same texts meanwhile
                note = self.folder / _BY_TEXTS / texts / place.name  # written first, so that no kill can leave it out
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()
                embed_to_store(records, self.encoder, store, resume=True, skip_bad=skip_bad)
                self.made += 1
        return store

    def _name_place(self, texts: str) -> Path:
        """Return the folder for the store of some texts, named by a digest of their digest and the settings."""
        known = json.dumps([self._settings, texts], sort_keys=True)
        return self.folder / hashlib.sha256(known.encode()).hexdigest()[:32]

    def _find_finished(self, texts: str) -> Path | None:
        """Return the folder of a store of these texts that can be used; None if there is none."""
        if _is_finished(own := self._name_place(texts) / "store"):
            return own
        for note in sorted((self._others / _BY_TEXTS / texts).glob("*")):
            other = self._others / note.name / "store"
            with contextlib.suppress(StoreError):  # a store that cannot be read is made again
                if _is_finished(other) and self._suits(StoreIndex.read(other)):
                    return other
        return None

    def _has_all(self, index: StoreIndex) -> bool:
        """Return whether a store has the tokens and channels of the encoder."""
        if index.encoder is None or dict(index.encoder) != dict(self.encoder.identity):
            return False
        return self._given <= index.channels.keys()

    def find_or_sample(self, records: Sequence[Record | BadRecord]) -> Path | Sample:
        """Return the folder of the token store of these texts or, if they are not in the cache, a sample of them."""
        if (found := self._find_finished(_digest_texts(records, skip_bad=False))) is not None:
            return found
        texts = [str(record.item) for record in keep_good(records, None)]
        few = texts[:: -(-len(texts) // _SAMPLED)]
        self.encoder.encode(few[:1])  # starts threads and loads kernels
        begun = time.perf_counter()
        batch = self.encoder.encode(few)
        seconds = (time.perf_counter() - begun) * sum(map(len, texts)) / max(1, sum(map(len, few)))
        documents = np.split(np.arange(len(batch)), find_documents(batch)[1:])
        numbers = [documents[number % len(documents)] for number in range(len(texts))]
        return Sample(Subset(batch, np.concatenate(numbers)), seconds)

    def count_bytes(self) -> int:
        """Return the size of all stores in the folder."""
        size = 0
        for file in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another process may be writing a store
                size += file.stat().st_size if file.is_file() else 0
        return size


def _digest_texts(records: Sequence[Record | BadRecord], *, skip_bad: bool) -> str:
    # a store without bad records lacks texts, for which other callers get an error
    digest = hashlib.sha256(f"{__version__}{' skip' if skip_bad else ''}:".encode())
    for record in records:
        kind = ""
        if not isinstance(record, Record):
            kind, text = "bad ", record.place
        elif isinstance(record.item, str):
            text = record.item
        else:
            raise InputError(f"Only texts are embedded here, got {type(record.item).__name__}: embed it first.")
        content = text.encode("utf-8", "surrogatepass")
        digest.update(f"{kind}{len(content)}:".encode() + content)
    return digest.hexdigest()[:32]


def _is_finished(folder: Path) -> bool:
    return (folder / INDEX_FILE).is_file() and not StoreIndex.read(folder).unfinished
