"""Which code learns: a version does not change between two commits, and a result may not outlive what made it."""

import hashlib
from functools import cache
from pathlib import Path

__all__ = ["source_digest"]

_ROOMS = ("tokens", "pooling", "fitting", "detectors")  # all that a fit follows from
_PACKAGE = Path(__file__).parent.parent


@cache
def source_digest() -> str:
    """A sha256 over the source files that decide what a fit learns."""
    digest = hashlib.sha256()
    for path in sorted(path for room in _ROOMS for path in (_PACKAGE / room).rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
