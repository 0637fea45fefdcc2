"""The targets for speed, memory and errors, and whether the rows of a run meet them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import encoder_share, errors, pooling, training
from benchmarks.record import Record, Row

__all__ = ["TARGETS", "Target", "Verdict", "check_targets"]

_FULL = "S=512 D=1024 M=256 T=4"


@dataclass(frozen=True)
class Target:
    """An upper bound for a figure of one row, for one kind of device ("cuda", "cpu", or "" for both)."""

    text: str
    device: str
    group: str
    what: str
    shape: str
    dtype: str
    figure: Callable[[Row], float | None]
    most: float
    unit: str = ""
    limit: str = ""

    def matches(self, record: Record) -> bool:
        """Return whether the target is about a record; `shape` and `limit` are substrings of the record's."""
        row = record.row
        same = (row.group, row.what, row.dtype) == (self.group, self.what, self.dtype)
        return same and self.device in ("", record.run.device) and self.shape in row.shape and self.limit in row.limit


@dataclass(frozen=True)
class Verdict:
    """A target and the measured figure."""

    target: Target
    measured: float

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        return self.measured <= self.target.most


def _value(row: Row) -> float | None:
    return row.value


def _times_limit(row: Row) -> float | None:
    return row.value / row.limit_value if row.limit_value else None


def _times_product(row: Row) -> float | None:
    """Return the time in products of the forward pass; the limit of a step is three of them."""
    return 3 * row.value / row.limit_value if row.limit_value else None


def _percent(row: Row) -> float | None:
    return None if row.ratio is None else 100 * row.ratio


def _peak_gb(row: Row) -> float | None:
    return None if row.peak_mib is None else row.peak_mib * 2**20 / 1e9


def _ratio(row: Row) -> float | None:
    return row.ratio


_GPU, _CPU, _BF16, _F32 = "cuda", "cpu", "bfloat16", "float32"
_N512, _N32 = f"N=512 {_FULL}", f"N=32 {_FULL}"
_EXACT = f"{_F32}, exact"

TARGETS = (
    Target("forward, N=512, times the bare product", _GPU, "pool", pooling.POOL, _N512, _BF16, _times_limit, 1.4, "x"),
    Target("forward, N=32", _GPU, "pool", pooling.FROZEN, _N32, _BF16, _value, 0.10, "ms"),
    Target(
        "forward, N=32, added to a pass of the encoder",
        _GPU, "encoder", encoder_share.name_added(pooling.FROZEN), _N32, _BF16, _percent, 0.7, "%",
    ),
    Target("training step, N=512", _GPU, "step", training.STEP, _N512, _BF16, _value, 3.2, "ms"),
    Target("its peak memory", _GPU, "step", training.STEP, _N512, _BF16, _peak_gb, 1.2, "GB"),
    Target("whole fit, 1000 steps", _GPU, "fit", training.FIT, _N512, _BF16, _value, 5.0, "s"),
    Target(
        "ragged forward, times the uniform one", _GPU, "pool", pooling.LOG_NORMAL, _N512, _BF16, _ratio, 1.25, "x"
    ),
    Target(
        "ragged training step, times the uniform one",
        _GPU, "step", training.LOG_NORMAL_STEP, _N512, _BF16, _ratio, 1.25, "x",
    ),
    *(
        Target(f"forward, N=32, {dtype} tokens, times the bare {product} product",
               _CPU, "pool", pooling.POOL, _N32, dtype, _times_limit, most, "x", product)
        for dtype, product, most in ((_BF16, _F32, 1.2), (_F32, _F32, 1.2))
    ),
    Target(
        "training step, N=32, times the bare product of its forward",
        _CPU, "step", training.STEP, _N32, _F32, _times_product, 3.6, "x",
    ),
    *(
        Target(f"error of {what}, {dtype}, default precision", _CPU, "errors", what, _FULL, dtype, _value, 1e-3)
        for dtype in (_BF16, _F32)
        for what in (errors.RELATIVE, errors.SPREAD)
    ),
    *(
        Target(f"error of {what}, {dtype}", "", "errors", what, _FULL, dtype, _value, most)
        for what, dtype, most in (
            (errors.VALUE, _EXACT, 1e-5), (errors.MASS, _EXACT, 1e-5),
            (errors.VALUE, _BF16, 5e-3), (errors.MASS, _BF16, 5e-3), (errors.GRADIENT, _BF16, 1e-2),
        )
    ),
)  # fmt: skip


def check_targets(records: Sequence[Record]) -> list[Verdict]:
    """Return the verdicts on all targets that the records are about."""
    found = []
    for target in TARGETS:
        for record in records:
            if target.matches(record) and (measured := target.figure(record.row)) is not None:
                found.append(Verdict(target, measured))
    return found
