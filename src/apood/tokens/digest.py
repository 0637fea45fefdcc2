"""What some data is, in one line: the same sequences have the same digest wherever they lie."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from apood.support.progress import progress_bar
from apood.tokens.batch import dtype_name
from apood.tokens.identity import drop_location
from apood.tokens.source import Subset, TokenSource, token_budget
from apood.tokens.store import TokenStore

__all__ = ["content_digest", "sample_digest"]

_SAMPLED = 16  # sequences that a quick digest reads


def content_digest(source: TokenSource) -> str:
    """A sha256 over tokens, channels and encoder: equal digests mean equal data.

    A store is known by the checksums in its index, so that nothing is read; it counts as a whole, whichever of its
    channels are opened. A subset is known by its source and its numbers. All else is read once. The converse does not
    hold: a store and a batch of the same sequences, or two stores cut differently into shards, have different digests.
    """
    if isinstance(source, TokenStore):
        index = source.index
        described = {
            "dim": index.dim,
            "dtype": dtype_name(index.dtype),
            "encoder": index.encoder and drop_location(index.encoder),
        }
        return _sha256("store", described, [shard.sha256 for shard in index.shards])
    if isinstance(source, Subset):
        return _sha256("subset", content_digest(source.source), hashlib.sha256(_bytes(source.indices)).hexdigest())
    return _digest_of_rows(source)


def sample_digest(source: TokenSource, channels: Iterable[str] = ()) -> str:
    """A digest of the lengths and of 16 evenly spaced sequences, with some channels.

    Quick, and enough to know the same sequences again, whatever holds them.
    """
    digest = hashlib.sha256(source.lengths.numpy().tobytes())
    last = max(len(source) - 1, 0)
    sampled = source.select(
        sorted({number * last // (_SAMPLED - 1) for number in range(_SAMPLED)} if len(source) else [])
    )
    for rows in (sampled.values, *(sampled.channels[name].values for name in sorted(channels))):
        digest.update(rows.double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _digest_of_rows(source: TokenSource) -> str:
    """Every ragged tensor has a digest of its own, so that it does not matter where batches are cut."""
    parts = {"": hashlib.sha256(), **{name: hashlib.sha256() for name in source.channels}}
    lengths = {name: hashlib.sha256() for name in parts}
    kinds: dict[str, Any] = {}
    with progress_bar(len(source), "digest", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            for name in parts:
                rows = batch.channels[name] if name else batch
                parts[name].update(_bytes(rows.values))
                lengths[name].update(_bytes(rows.lengths))
                kinds[name] = [dtype_name(rows.values.dtype), *rows.values.shape[1:]]
            progress.update(len(batch))
    hashes = {name: [parts[name].hexdigest(), lengths[name].hexdigest()] for name in parts}
    return _sha256("rows", source.encoder and drop_location(source.encoder), kinds, hashes)


def _bytes(values: Tensor) -> Any:
    """The raw bytes of a tensor of any dtype, without a copy where it lies in one piece on the CPU."""
    return values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _sha256(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()
