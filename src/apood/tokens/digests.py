"""Digests of token sources: which data a fit, a cache or a score belongs to."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from apood.support.progress import progress_bar
from apood.tokens.batch import dtype_name, view_bytes
from apood.tokens.identity import drop_location
from apood.tokens.source import Subset, TokenSource, token_budget
from apood.tokens.store import TokenStore

__all__ = ["content_digest", "sample_digest"]

_SAMPLED = 16  # sequences that a quick digest reads


def content_digest(source: TokenSource) -> str:
    """Return a sha256 over tokens, channels and encoder: equal digests mean equal data.

    The digest of a store comes from the checksums in its index, so nothing is read; it covers all channels of the
    store. The digest of a subset comes from its source and its indices. Other sources are read once. Equal data
    can have different digests: a store and a batch of the same sequences, or two stores with other shards.
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
        return _sha256("subset", content_digest(source.source), hashlib.sha256(view_bytes(source.indices)).hexdigest())
    return _digest_rows(source)


def sample_digest(source: TokenSource, channels: Iterable[str] = ()) -> str:
    """Return a digest of the lengths and of 16 evenly spaced sequences, with the named channels.

    It is quick and depends on the sequences alone, not on the kind of source.
    """
    digest = hashlib.sha256(source.lengths.numpy().tobytes())
    last = max(len(source) - 1, 0)
    sampled = source.select(
        sorted({number * last // (_SAMPLED - 1) for number in range(_SAMPLED)} if len(source) else [])
    )
    for rows in (sampled.values, *(sampled.channels[name].values for name in sorted(channels))):
        digest.update(rows.double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _digest_rows(source: TokenSource) -> str:
    """Return a digest that does not depend on the batches, because every ragged tensor has a digest of its own."""
    parts = {"": hashlib.sha256(), **{name: hashlib.sha256() for name in source.channels}}
    lengths = {name: hashlib.sha256() for name in parts}
    kinds: dict[str, Any] = {}
    with progress_bar(len(source), "digest", "seq") as progress:
        for batch in source.batches(token_budget(source.dim)):
            for name in parts:
                rows = batch.channels[name] if name else batch
                parts[name].update(view_bytes(rows.values))
                lengths[name].update(view_bytes(rows.lengths))
                kinds[name] = [dtype_name(rows.values.dtype), *rows.values.shape[1:]]
            progress.update(len(batch))
    hashes = {name: [parts[name].hexdigest(), lengths[name].hexdigest()] for name in parts}
    return _sha256("rows", source.encoder and drop_location(source.encoder), kinds, hashes)


def _sha256(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()
