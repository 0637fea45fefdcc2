"""Token stores made of others: several merged into one, or one split into several."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from apood.support.checks import format_count
from apood.support.cloud import Place, parse_place, refuse_file
from apood.support.cloud_folders import publish_folder
from apood.support.errors import InputError, StoreError
from apood.support.progress import progress_bar
from apood.tokens.batch import cut_by_budget, dtype_name
from apood.tokens.digests import content_digest
from apood.tokens.documents import count_documents, find_documents, make_document_mask
from apood.tokens.identity import describe_other, same_encoder
from apood.tokens.source import Subset, TokenSource, token_budget
from apood.tokens.store import INDEX_FILE, StoreIndex, TokenStore
from apood.tokens.writer import TokenStoreWriter, is_free

__all__ = ["join_stores", "merge_stores", "split_store"]

_SLACK = 1e-9  # by which shares such as 0.1 and 0.2 and 0.7 may exceed 1


def merge_stores(folders: Sequence[str | Path], out: str | Path) -> TokenStore:
    """Write all sequences of several stores to the new store `out`, in the order given, and return it.

    The result is the store that would have been written if all of them had been embedded in one run. Every shard is
    checked against its hash while it is read. `out` is complete or absent.

    Raises:
        StoreError: if a store is damaged or not complete, or if two stores do not go together.
        InputError: if there are fewer than two stores, or if two hold the same sequences.
    """
    if len(folders) < 2:
        raise InputError(f"Two or more token stores can be merged, got {len(folders)}.")
    stores = [_open_complete(folder) for folder in folders]
    for other in stores[1:]:
        _refuse_other(stores[0], other)
    for one, other in itertools.combinations(stores, 2):
        if len(one) and content_digest(one) == content_digest(other):
            raise InputError(
                f"The token stores {one.folder} and {other.folder} hold the same sequences: give each once."
            )
    for before, after in itertools.pairwise(store for store in stores if len(store)):
        _refuse_continued(before, after)
    return join_stores(stores, out, _add_tallies([store.index for store in stores]), sum(map(len, stores)))


def split_store(folder: str | Path, shares: Mapping[str, float], out: str | Path, seed: int) -> dict[str, TokenStore]:
    """Write random parts of a store to the new stores `out/NAME`, and return these by their names.

    A part has its share of the documents, all windows of each, in the order of the store. No document is in two parts.
    Which documents a part has depends on the seed, on the shares and on the number of documents alone. Every shard is
    checked against its hash while it is read. `out` is complete or absent.

    Args:
        folder: the store.
        shares: the names of the parts, with their shares of the documents, which add up to 1 or less.
        out: the folder of the new stores.
        seed: the seed that decides which documents are in which part.

    Raises:
        StoreError: if the store is damaged or not complete.
        InputError: if a name cannot be that of a folder, if a share is not above 0, if they exceed 1 together, or if a
            part would have no document.
    """
    for name in shares:
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise InputError(f"The name of a part is the name of its folder, without slashes, got {name!r}.")
    if not all(share > 0 for share in shares.values()) or sum(shares.values()) > 1 + _SLACK:
        given = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        raise InputError(f"The shares of a split must be above 0, and at most 1 together, got {given}.")
    store = _open_complete(folder)
    count = count_documents(store)
    bounds = [round(count * min(1.0, total)) for total in itertools.accumulate(shares.values(), initial=0.0)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    chosen = {name: order[start:stop] for name, (start, stop) in zip(shares, itertools.pairwise(bounds), strict=True)}
    for name, documents in chosen.items():
        if not len(documents):
            raise InputError(
                f"The part {name!r} would be empty: a share of {shares[name]:g} of {format_count(count, 'document')} "
                "is less than one document."
            )
    parts = {name: Subset(store, make_document_mask(store, documents)) for name, documents in chosen.items()}
    for name, part in parts.items():
        if count_documents(part) != len(chosen[name]):
            raise StoreError(
                f"The token store {folder} has documents without a first window, which a split would join to others."
            )
    with publish_folder(parse_place(out), INDEX_FILE, _refuse_occupied_parts) as temporary:
        for name, part in parts.items():
            _write_joined([part], temporary / name, {}, len(part))
    return {name: TokenStore(f"{out}/{name}") for name in shares}


def _open_complete(folder: str | Path) -> TokenStore:
    store = TokenStore(folder)
    if store.index.unfinished:
        raise StoreError(
            f"The token store {folder} is not complete: finish it first, by the command that made it with --resume."
        )
    return store


def _refuse_other(first: TokenStore, other: TokenStore) -> None:
    """Raise StoreError, which names both stores, if their sequences cannot be in one store."""
    had, has = first.encoder, other.encoder
    channels = [
        ", ".join(f"{name} ({kind})" for name, kind in store.index.channels.items()) or "none"
        for store in (first, other)
    ]
    # Tokens of a known and of an unknown encoder are not mixed in a store.
    is_same = (had is None) == (has is None) and same_encoder(had, has, same_samples=True)
    for name, differs, one, two in (
        ("encoder", not is_same, describe_other(had, has), describe_other(has, had)),
        ("dim", first.dim != other.dim, str(first.dim), str(other.dim)),
        ("dtype", first.dtype != other.dtype, dtype_name(first.dtype), dtype_name(other.dtype)),
        ("channels", first.index.channels != other.index.channels, *channels),
    ):
        if differs:
            raise StoreError(
                f"The token stores {first.folder} and {other.folder} cannot be merged, because their {name} differ"
                f"{'' if name == 'channels' else 's'}: {one} in the first, {two} in the second."
            )


def _refuse_continued(before: TokenStore, after: TokenStore) -> None:
    """Raise StoreError if the first window of a store would continue the last document of the store before it."""
    if before.windows is None or after.windows is None:
        return
    if after.windows[0] == before.windows[-1] + 1:
        raise StoreError(
            f"The token store {after.folder} begins with window {int(after.windows[0])} of a document, which would "
            f"become a part of the last document of {before.folder}: merge them in another order."
        )


def _refuse_occupied(folder: Place) -> None:
    """Raise InputError if something is in a folder, except for an interrupted upload of a store to a cloud store."""
    refuse_file(folder)
    if isinstance(folder, Path):
        free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    else:
        free = is_free(folder)
    if not free:
        raise InputError(f"{folder} already exists and is not empty: choose another folder, or delete it first.")


def _refuse_occupied_parts(folder: Place) -> None:
    """Raise InputError if something is in a folder, except for interrupted uploads of stores to a cloud store."""
    if isinstance(folder, Path):
        _refuse_occupied(folder)
        return
    for name in folder.list_names():
        if not (folder / name).is_dir():
            raise InputError(f"{folder} already exists and is not empty: choose another folder, or delete it first.")
        _refuse_occupied(folder / name)


def _add_tallies(indices: Sequence[StoreIndex]) -> dict[str, int]:
    """Return the sums of the counts of all stores; none if one of them does not count all of its sequences."""
    if any(index.tally.get("sequences") != index.sequences for index in indices):
        return {}
    names = dict.fromkeys(name for index in indices for name in index.tally if name != "sequences")
    return {name: sum(index.tally.get(name, 0) for index in indices) for name in names}


def join_stores(stores: Iterable[TokenStore], out: str | Path, tally: Mapping[str, int], sequences: int) -> TokenStore:
    """Write stores to the new store `out`, one after the other, and return it.

    Args:
        stores: the stores, at least one. Each is read before the next one is asked for.
        out: the folder of the new store, which is complete or absent.
        tally: counts about all of them; may be empty.
        sequences: the number of sequences of all of them.

    Raises:
        StoreError: if two stores do not go together.
    """
    with publish_folder(parse_place(out), INDEX_FILE, _refuse_occupied) as temporary:
        _write_joined(_check_each(stores), temporary, tally, sequences)
    return TokenStore(out)


def _check_each(stores: Iterable[TokenStore]) -> Iterator[TokenStore]:
    """Yield stores; raise StoreError at one that does not go with the first."""
    first = None
    for store in stores:
        first = store if first is None else first
        _refuse_other(first, store)
        yield store


def _write_joined(sources: Iterable[TokenSource], folder: Path, tally: Mapping[str, int], sequences: int) -> None:
    """Write sources that go together to one store, whole documents at a time."""
    others = iter(sources)
    first = next(others)
    # Shards then depend on the sequences alone, not on the speed of this machine.
    never = float("inf")
    with (
        TokenStoreWriter(
            folder, dim=first.dim, dtype=first.dtype, encoder=first.encoder, commit_seconds=never
        ) as writer,
        progress_bar(sequences, "copy", "seq") as progress,
    ):
        for source in itertools.chain([first], others):
            starts = find_documents(source)
            bounds = np.append(starts, len(source))
            tokens = (
                torch.from_numpy(np.add.reduceat(source.lengths.numpy(), starts)) if len(source) else source.lengths
            )
            for start, stop in cut_by_budget(tokens, token_budget(first.dim)):
                writer.append(source.select(slice(int(bounds[start]), int(bounds[stop]))))
                progress.update(int(bounds[stop] - bounds[start]))
        if tally:
            writer.count(**tally)
