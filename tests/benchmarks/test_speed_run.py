"""The benchmarks run, in miniature, and every group has its rows."""

import math
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import GROUPS, main
from benchmarks.encoder_share import ADDED
from benchmarks.record import read
from benchmarks.timing import alternate, measure, peak_memory
from benchmarks.training import STEP_OF_FIT


def check_run(device: str, folder: Path) -> None:
    assert main(["--quick", "--device", device, "--out", str(folder)]) == 0
    records = read(folder / "results.csv")
    assert {record.row.group for record in records} == set(GROUPS)
    for record in records:
        row = record.row
        assert math.isfinite(row.value) and row.baseline, row
        # differences, of two fits and of an encoder with and without a detector, are here of next to nothing
        differs = row.what == STEP_OF_FIT or row.what.startswith(ADDED)
        assert row.value > 0 or row.unit in ("MiB", "error") or differs, row
        assert record.run.device == device and record.run.machine
    timed = [record.row for record in records if record.row.unit == "ms"]
    assert all(row.limit_value for row in timed if row.group in ("pool", "step", "growth", "scoring"))


def test_all_groups_run(tmp_path: Path):
    check_run("cpu", tmp_path)


@pytest.mark.gpu
def test_all_groups_run_on_a_gpu(tmp_path: Path):
    check_run("cuda", tmp_path)


def test_one_group_alone(tmp_path: Path):
    assert main(["--quick", "--device", "cpu", "--only", "growth", "--out", str(tmp_path)]) == 0
    assert {record.row.group for record in read(tmp_path / "results.csv")} == {"growth"}


def test_a_group_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(_setting: object) -> list[object]:
        raise RuntimeError("no")

    monkeypatch.setitem(GROUPS, "pool", broken)
    assert main(["--quick", "--device", "cpu", "--only", "pool", "--only", "errors", "--out", str(tmp_path)]) == 1
    assert {record.row.group for record in read(tmp_path / "results.csv")} == {"errors"}


def test_an_unknown_group_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    assert "nothing" in capsys.readouterr().err


def test_contenders_take_turns():
    order: list[str] = []
    found = measure("cpu", {name: lambda name=name: order.append(name) for name in "ab"}, seconds=0, alone=True)
    assert order[-6:] == ["a", "b", "a", "b", "a", "b"]
    assert all(len(timing.rounds) == 5 and timing.median >= 0 for timing in found.values())
    calls: list[int] = []
    call = alternate([lambda number=number: calls.append(number) for number in range(3)])
    for _ in range(4):
        call()
    assert calls == [0, 1, 2, 0]


def test_steps_that_nobody_waits_for_are_timed_back_to_back():
    calls = {"one": 0, "many": 0}

    def count(name: str) -> None:
        calls[name] += 1
        time.sleep(0.002)  # long enough to be timed alone

    contenders = {name: lambda name=name: count(name) for name in calls}
    found = measure("cpu", contenders, seconds=0, at_once={"many": 4})
    assert len(found["many"].rounds) == len(found["one"].rounds) == 5
    assert calls == {"one": 3 + 5, "many": 3 + 5 * 4}, "three calls to warm up"


def test_peak_memory_sees_what_was_freed_again():
    with peak_memory("cpu") as peak:
        held = bytearray(b"x" * (64 << 20))
        del held
    assert peak.mib is None or peak.mib > 60, "None where the system has no such figure"
