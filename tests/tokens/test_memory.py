"""Memory for many rows: like any other tensor, however it was come by."""

import mmap
import weakref

import pytest
import torch

from apood.tokens import batch
from apood.tokens.batch import empty_rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize(("count", "shape"), [(0, (3,)), (5, ()), (5, (2, 3)), (70_000, (17,)), (2_200_000, ())])
def test_rows_can_be_written_and_read(count, shape, dtype):
    rows = empty_rows(count, shape, dtype)
    assert rows.shape == (count, *shape) and rows.dtype == dtype and rows.is_contiguous()
    rows.fill_(3)
    assert bool((rows == 3).all())
    assert torch.equal(rows.clone(), rows)


def test_memory_goes_with_its_last_tensor(monkeypatch):
    given = []

    class Watched(mmap.mmap):
        def __new__(cls, *arguments, **options):
            found = super().__new__(cls, *arguments, **options)
            given.append(weakref.ref(found))
            return found

    monkeypatch.setattr(batch.mmap, "mmap", Watched)
    rows = empty_rows(3_000_000, (2,), torch.float32)
    part = rows[5:10]
    del rows
    assert len(given) == 1 and given[0]() is not None
    del part
    assert given[0]() is None


def test_a_system_without_huge_pages(monkeypatch):
    monkeypatch.setattr(batch, "_HUGE", None)
    assert empty_rows(3_000_000, (2,), torch.float32).shape == (3_000_000, 2)
    monkeypatch.setattr(batch, "_HUGE", 12_345)  # unknown to the kernel, as where they are not built in
    assert empty_rows(3_000_000, (2,), torch.float32).shape == (3_000_000, 2)
