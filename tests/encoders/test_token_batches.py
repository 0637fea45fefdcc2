"""The collection of rows that are computed batch by batch."""

import pytest
import torch

from apood.encoders.text.tokenising import RowCollector
from apood.tokens.batch import Ragged

LENGTHS = torch.tensor([3, 0, 40, 7, 7, 1, 0, 90, 2, 33])


def collect(device: torch.device, dim: int, *, known: bool) -> tuple[Ragged, Ragged]:
    """Return the collected rows and the expected ones."""
    sequences = Ragged.from_lengths(torch.randn(int(LENGTHS.sum()), dim), LENGTHS)
    collector = RowCollector(len(LENGTHS), (dim,), torch.bfloat16, device, LENGTHS if known else None)
    with torch.inference_mode():
        for chosen in ([7], [2, 9], [3, 4, 5], [0, 8]):
            some = sequences.select(chosen)
            collector.add(torch.tensor(chosen), some.lengths, some.values.to(device))
    return collector.finish(), sequences.to(dtype=torch.bfloat16)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["on a cpu", "on a gpu"])
@pytest.mark.parametrize("dim", [4, 8192], ids=["short rows", "long rows"])
def test_rows_return_in_the_order_of_the_sequences(device: str, dim: int, known: bool) -> None:
    found, expected = collect(torch.device(device), dim, known=known)
    assert found.values.device.type == "cpu" and not found.values.is_inference()
    assert torch.equal(found.offsets, expected.offsets) and torch.equal(found.values, expected.values)


@pytest.mark.gpu
def test_copies_to_pinned_memory_are_complete_while_the_gpu_is_busy() -> None:
    device = torch.device("cuda")
    lengths = torch.full((64,), 256)
    collector = RowCollector(64, (1024,), torch.float32, device, lengths)
    for start in range(0, 64, 8):
        busy = torch.randn(4096, 4096, device=device)
        for _ in range(20):
            busy = busy @ busy / 4096
        rows = torch.full((8 * 256, 1024), float(start), device=device) + 0 * busy[0, 0].nan_to_num()
        collector.add(torch.arange(start, start + 8), lengths[:8], rows)
        del rows
    values = collector.finish().values
    assert values.is_pinned()
    assert values.view(8, -1).unique(dim=1).flatten().tolist() == [float(start) for start in range(0, 64, 8)]


def test_sequences_that_no_batch_contains_stay_empty() -> None:
    for lengths in (None, torch.zeros(3, dtype=torch.int64)):
        found = RowCollector(3, (2,), torch.float32, torch.device("cpu"), lengths).finish()
        assert found.lengths.tolist() == [0, 0, 0] and found.values.shape == (0, 2)
