"""Old names, until all rooms import the new ones."""

from apood.tokens.store import (
    INDEX_FILE,
    STORED_DTYPES,
    TOKENS,
    RowKind,
    Shard,
    ShardRecord,
    StoreIndex,
    channel_prefix,
    shard_file,
)
from apood.tokens.writer import write_shard

__all__ = [
    "INDEX_FILE",
    "STORED_DTYPES",
    "TOKENS",
    "RowKind",
    "Shard",
    "ShardRecord",
    "StoreIndex",
    "channel_prefix",
    "shard_file",
    "write_shard",
]
