"""Memory for rows that are about to be written: in huge pages, where the system has them.

New memory comes page by page, and to get small pages costs several times as much as the copy into them.
"""

import contextlib
import math
import mmap

import torch
from torch import Tensor

__all__ = ["empty_rows"]

_LEAST = 2**22  # bytes: a huge page or two are not worth a mapping of their own
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux


def empty_rows(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Rows `[count, *shape]` on the CPU that hold anything."""
    size = count * math.prod(shape) * dtype.itemsize
    if size < _LEAST or _HUGE is None:
        return torch.empty(count, *shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(_HUGE)
    return torch.frombuffer(memory, dtype=dtype).view(count, *shape)
