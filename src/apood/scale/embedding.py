"""Workers that embed documents: each unit becomes a token store of its own, and all are joined at the end."""

import platform
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from apood.encoders.embed import Portion
from apood.encoders.opening import open_encoder
from apood.pipeline.seen import count_tokens
from apood.pipeline.token_cache import describe_source
from apood.scale.job import Settings
from apood.scale.shards import Counts, Row, shard_path
from apood.scale.units import Unit
from apood.scale.worker import Worker
from apood.support.cloud import Place, list_names
from apood.support.cloud_folders import download_folder, write_folder
from apood.support.errors import InputError, StoreError
from apood.tokens.batch import TokenBatch
from apood.tokens.documents import find_documents
from apood.tokens.identity import same_encoder
from apood.tokens.joining import join_stores
from apood.tokens.store import INDEX_FILE, TokenStore
from apood.tokens.writer import TokenStoreWriter, refuse_overflow

__all__ = ["EmbedWorker", "describe_documents", "join_units"]

_STORE = re.compile(r"tokens-(\d+)-(\d+)")


class EmbedWorker(Worker):
    """Makes a token store per unit, beside rows that say what became of each document."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        options = dict(settings.encoder or {})
        self.encoder = open_encoder(**options)
        if (known := self.plan.get("encoder")) is not None:
            own = describe_source(options["model"], lambda: self.encoder)
            if not same_encoder(*(source.get("encoder", source) for source in (known["model"], own))):
                raise InputError(
                    f"The model {options['model']} on the machine {platform.node()} is not the one that the command "
                    "has: all machines need the same model until its end."
                )
        self._batches: list[TokenBatch] = []

    def make_rows(self, portion: Portion) -> list[Row]:
        """Return what was encoded of each record, and keep its tokens for `save_more`."""
        values, dtype = portion.batch.values, getattr(torch, self.settings.dtype)
        refuse_overflow(values, dtype)
        self._batches.append(replace(portion.batch, values=values.to(dtype)))  # a unit may have gigabytes of them
        return describe_documents(portion)

    def save_more(self, unit: Unit) -> None:
        """Write the tokens of the unit."""
        batches = [batch for batch in self._batches if len(batch)]
        self.discard()
        if not batches:
            return
        with (
            write_folder(self.place / f"tokens-{unit.name}", INDEX_FILE) as temporary,
            TokenStoreWriter(
                temporary,
                dim=self.encoder.dim,
                dtype=getattr(torch, self.settings.dtype),
                encoder=self.encoder.identity,
                commit_seconds=float("inf"),
            ) as writer,
        ):
            for batch in batches:
                writer.append(batch)

    def discard(self) -> None:
        """Forget the tokens of a unit that failed."""
        self._batches = []


def describe_documents(portion: Portion) -> list[Row]:
    """Return what was encoded of each record. One that the encoder refused has its reason as error."""
    starts = find_documents(portion.batch)
    tokens, windows = count_tokens(portion.batch), np.diff(starts, append=len(portion.batch))
    rows: list[Row] = []
    at = 0
    for place in range(len(portion.records)):
        if (bad := portion.refused.get(place)) is not None:
            rows.append({"error": bad.reason})
            continue
        rows.append({"tokens": int(tokens[at]), "windows": int(windows[at]), "truncated": at in portion.cut})
        at += 1
    return rows


def join_units(place: Place, out: str, counts: Counts) -> TokenStore:
    """Write the tokens of all units to the store `out`, in the order of the inputs, and return it."""
    found = [match for name in list_names(place) if (match := _STORE.fullmatch(name))]
    if not found:
        raise InputError("There is nothing to embed: no record can be used.")
    found.sort(key=lambda match: (int(match[1]), int(match[2])))
    last: list[tuple[Place, Path]] = []  # the store that is being read, and its folder on this machine
    stores = _open_stores([place / match[0] for match in found], last)
    try:
        return join_stores(stores, out, {"truncated": counts.cut, "bad": counts.bad}, counts.sequences)
    except StoreError as error:
        message, named = str(error), []
        for unit, folder in dict.fromkeys([*last[:1], *last[-1:]]):  # two if their tokens do not go together
            if str(folder) in message:
                message = message.replace(str(folder), str(unit))
                named.append(f"{unit} and {shard_path(place, unit.name.removeprefix('tokens-')).name} beside it")
        if not named:
            raise
        raise StoreError(f"{message} Delete {', '.join(named)}, and run the same command again.") from error


def _open_stores(places: Sequence[Place], last: list[tuple[Place, Path]]) -> Iterator[TokenStore]:
    """Yield the stores, each after it was added to `last`; of those in the cloud, this machine has one at a time."""
    for place in places:
        if isinstance(place, Path):
            last.append((place, place))
            yield TokenStore(place)
            continue
        with tempfile.TemporaryDirectory(prefix="apood-") as temporary:
            last.append((place, Path(temporary)))
            download_folder(place, Path(temporary))
            yield TokenStore(temporary)
