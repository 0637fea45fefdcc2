"""Rows of results, and the CSV file that they are appended to with date, commit and machine."""

import csv
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

__all__ = ["RESULTS", "Record", "Row", "Run", "append", "describe_run", "find_commit", "merge", "read"]

RESULTS = Path(__file__).parent / "results.csv"
_NUMBERS = ("value", "baseline_value", "limit_value", "peak_mib")


@dataclass(frozen=True)
class Row:
    """A measurement, a baseline and a limit, all three in `unit` and from the same process.

    The limit is what no implementation can beat: the bare matrix product, or reading the tokens once.
    """

    group: str
    what: str
    shape: str
    dtype: str
    unit: str
    value: float
    baseline: str = ""
    baseline_value: float | None = None
    limit: str = ""
    limit_value: float | None = None
    peak_mib: float | None = None

    @property
    def ratio(self) -> float | None:
        """The value over the baseline."""
        return self.value / self.baseline_value if self.baseline_value else None

    @property
    def fraction(self) -> float | None:
        """The limit over the value: at most 1."""
        return self.limit_value / self.value if self.limit_value is not None else None


@dataclass(frozen=True)
class Run:
    """When, where and with which code rows were measured; the commit is empty if it is unknown."""

    date: str
    commit: str
    device: str
    machine: str
    software: str


@dataclass(frozen=True)
class Record:
    """A row and the run that it comes from."""

    run: Run
    row: Row


def describe_run(device: str) -> Run:
    """Return the run that begins now."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {torch.get_num_threads()} threads"
    software = f"torch {torch.__version__}, Python {platform.python_version()}"
    return Run(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"), find_commit(), device, name, software)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def find_commit() -> str:
    """Return the commit of this tree, with a plus if files differ from it; empty outside a repository."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def append(path: Path, records: Iterable[Record]) -> None:
    """Append records to a CSV file with a header."""
    fresh = not path.exists()
    names = [field.name for kind in (Run, Row) for field in fields(kind)]
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if fresh:
            writer.writeheader()
        for record in records:
            writer.writerow(
                {name: _format_value(value) for name, value in (asdict(record.run) | asdict(record.row)).items()}
            )


def read(path: Path) -> list[Record]:
    """Return all records of a CSV file, oldest first; empty if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    run, row = ([field.name for field in fields(kind)] for kind in (Run, Row))
    return [
        Record(Run(**{name: line[name] for name in run}), Row(**{name: _read(name, line[name]) for name in row}))
        for line in lines
    ]


def merge(path: Path, others: Sequence[Path]) -> int:
    """Append the new records of other files and return their number; unknown commits become this one."""
    known = {(record.run.date, record.run.machine, record.row) for record in read(path)}
    found = [record for other in others for record in read(other)]
    new = [record for record in found if (record.run.date, record.run.machine, record.row) not in known]
    commit = find_commit()
    append(path, (Record(Run(**asdict(r.run) | {"commit": r.run.commit or commit}), r.row) for r in new))
    return len(new)


def _format_value(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _read(name: str, text: str) -> Any:
    if name in _NUMBERS:
        return float(text) if text else None
    return text
