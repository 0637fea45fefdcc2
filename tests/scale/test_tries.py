"""Documents that kill the worker that encodes them are found and given up, and no others are."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scaled import plan_scores

from apood.scale.job import Job
from apood.scale.scoring import ScoreWorker
from apood.scale.tries import PATIENCE, PATIENCE_ALONE, Tries, delete_marks
from apood.scale.units import Unit
from apood.scale.worker import Worker, _is_gpu_lost
from apood.support.background import BackgroundCalls
from apood.support.cloud import parse_place
from apood.support.errors import DataWarning, InputError

pytestmark = pytest.mark.usefixtures("both_orders")

POISON = "a poisoned text"
UNIT = Unit(0, 0, [], last=True).name


@pytest.fixture(params=["one after the other", "overlapping"])
def both_orders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers score while the encoder runs, as with a GPU, or in between."""
    if request.param == "overlapping":
        monkeypatch.setattr("apood.scale.worker.follow_encoder", lambda _: BackgroundCalls())


class Died(BaseException):
    """The death of a worker's process."""


class DyingWorker(ScoreWorker):
    """Dies of poison."""

    def make_rows(self, portion):
        if any(record.item == POISON for record in portion.records):
            raise Died
        return super().make_rows(portion)


def plan(root: Path, folder: Path, poisoned: Sequence[int], documents: int = 16) -> Job:
    texts = [POISON if number in poisoned else f"word {number}" for number in range(documents)]
    lines = [json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    return plan_scores(folder / "corpus.jsonl", root / "detector", folder / "out")


def run_until_done(job: Job, worker: Worker, most: int = 20) -> int:
    """Do a job of one part, however often its worker dies, and return how often it died."""
    (number,) = job.begin()
    for deaths in range(most):
        try:
            worker.process(number, job.parts[number])
        except Died:
            continue
        job.finish()
        return deaths
    raise AssertionError(f"The worker died {most} times.")


def read_rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return [row for path in sorted(folder.glob("*.parquet")) for row in pyarrow.parquet.read_table(path).to_pylist()]


def find_given_up(folder: Path) -> list[int]:
    errors = {int(row["id"]): row["error"] for row in read_rows(folder) if row["error"] is not None}
    assert all("each worker that tried to encode or score it died" in error for error in errors.values())
    return list(errors)


@pytest.mark.parametrize("poisoned", [(21, 23), (0, 1), (15,), (16, 31)])
def test_documents_that_kill_every_worker_are_given_up(root: Path, tmp_path: Path, poisoned: Sequence[int]):
    job = plan(root, tmp_path, poisoned, documents=40)
    deaths = run_until_done(job, DyingWorker(job.settings))
    assert deaths == PATIENCE + PATIENCE_ALONE * len(poisoned)
    assert find_given_up(tmp_path / "out") == list(poisoned)
    assert not list((tmp_path / "out").glob("_tries*"))


@pytest.mark.parametrize("poisoned", [(), (15,)])
@pytest.mark.parametrize("error", [OSError, Died])
def test_a_commit_that_fails_is_no_fault_of_the_last_document(
    root: Path, tmp_path: Path, poisoned: Sequence[int], error: type[BaseException]
):
    class Uncommitting(DyingWorker):
        def save_more(self, _unit):
            raise error("The disk is full.")

    job = plan(root, tmp_path, poisoned)
    (number,) = job.begin()
    unit = Unit(number, 0, [], last=True).name
    for _ in range(PATIENCE):
        Tries(job.place, job.settings.plan, unit).begin()
    for _ in range(2 * PATIENCE_ALONE):
        with pytest.raises((error, Died)):
            Uncommitting(job.settings).process(number, job.parts[number])
    run_until_done(job, DyingWorker(job.settings))
    assert find_given_up(tmp_path / "out") == list(poisoned)


def test_a_document_that_kills_when_its_unit_is_tried_again_is_given_up(root: Path, tmp_path: Path):
    class Failing(DyingWorker):
        def make_rows(self, portion):
            if len(portion.records) > 1 and any(record.item == POISON for record in portion.records):
                raise ValueError("not together")
            return super().make_rows(portion)

    job = plan(root, tmp_path, [5])
    assert run_until_done(job, Failing(job.settings)) == PATIENCE + PATIENCE_ALONE
    assert find_given_up(tmp_path / "out") == [5]


def test_a_document_after_which_the_gpu_fails_is_given_up(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every call of the process fails from then on, so that other documents would seem to fail, too."""

    class Losing(ScoreWorker):
        lost = False

        def process(self, number, part):
            self.lost = False  # in a new process
            return super().process(number, part)

        def make_rows(self, portion):
            self.lost |= any(record.item == POISON for record in portion.records)
            if self.lost:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return super().make_rows(portion)

    def end(_code: int) -> None:
        raise Died

    job = plan(root, tmp_path, [18, 20], documents=40)
    worker = Losing(job.settings)
    worker.settings = replace(job.settings, on_gpu=True)
    monkeypatch.setattr("apood.scale.worker._is_gpu_lost", lambda: worker.lost)
    monkeypatch.setattr("os._exit", end)
    assert run_until_done(job, worker) == PATIENCE + 2 * PATIENCE_ALONE
    assert find_given_up(tmp_path / "out") == [18, 20]


@pytest.mark.parametrize(("errors", "lost"), [(0, False), (1, False), (2, True)])
def test_a_gpu_is_lost_if_it_fails_again(monkeypatch: pytest.MonkeyPatch, errors: int, lost: bool):
    left = iter(range(errors))

    def fail() -> None:
        if next(left, None) is not None:
            raise RuntimeError("CUDA error")

    monkeypatch.setattr("torch.cuda.synchronize", fail)
    assert _is_gpu_lost() == lost


@pytest.mark.parametrize("dies_at", [0, 7, 16, 35])
@pytest.mark.parametrize("poisoned", [(), (3,)])
def test_a_part_that_kills_who_reads_it_ends_there(root: Path, tmp_path: Path, dies_at: int, poisoned: Sequence[int]):
    """What comes before is done, whether a document of it kills, too, or not."""

    class Reader(DyingWorker):
        def read(self, number, part):
            for place, record in enumerate(super().read(number, part)):
                if place == dies_at:
                    raise Died
                yield record

    job = plan(root, tmp_path, poisoned, documents=40)
    with pytest.warns(DataWarning) as warned:
        run_until_done(job, Reader(job.settings), most=30)
    assert [str(own.message) for own in warned] == [
        f"A part of '{tmp_path / 'corpus.jsonl'}' was given up, because each worker that tried to read it died."
    ]
    counts = json.loads((tmp_path / "out" / "_manifest.json").read_text())["counts"]
    assert (counts["damaged"], counts["given_up"]) == (0, 1)
    rows = read_rows(tmp_path / "out")
    kept = max(dies_at - 1, 0) // 16 * 16  # units are given up as a whole; the next record tells where one ends
    assert [row["id"] for row in rows] == [*map(str, range(kept)), None]
    given_up = {int(row["id"]) for row in rows[:-1] if row["error"]}
    assert given_up == set(poisoned) & set(range(kept))
    assert rows[-1]["place"] == str(tmp_path / "corpus.jsonl") and "each worker that tried to read" in rows[-1]["error"]
    assert not list((tmp_path / "out").glob("_tries*"))


def test_deaths_while_other_units_are_encoded_do_not_give_up_what_is_read(root: Path, tmp_path: Path):
    class Unlucky(ScoreWorker):
        deaths = 0

        def make_rows(self, portion):
            self.deaths += 1
            if self.deaths <= PATIENCE:
                raise Died
            return super().make_rows(portion)

    job = plan(root, tmp_path, [], documents=40)
    run_until_done(job, Unlucky(job.settings))
    assert len(read_rows(tmp_path / "out")) == 40 and find_given_up(tmp_path / "out") == []


def test_an_error_of_reading_leaves_no_marks(root: Path, tmp_path: Path):
    job = plan(root, tmp_path, [])
    job.begin()
    (tmp_path / "corpus.jsonl").unlink()
    for _ in range(PATIENCE + 1):
        with pytest.raises(InputError, match="cannot be read"):
            ScoreWorker(job.settings).process(0, job.parts[0])
    assert not list((tmp_path / "out").glob("_tries*"))


def test_an_error_leaves_no_marks(root: Path, tmp_path: Path):
    class Failing(ScoreWorker):
        def make_rows(self, _portion):
            raise ValueError("nothing works")

    job = plan(root, tmp_path, [], documents=40)
    job.begin()
    with pytest.raises(ValueError, match="nothing works"):
        Failing(job.settings).process(0, job.parts[0])
    assert not list((tmp_path / "out").glob("_tries*"))


def test_a_chance_death_gives_nothing_up(tmp_path: Path):
    Tries(tmp_path, "", UNIT).begin_pass()
    Tries(tmp_path, "", UNIT).begin_alone(3)
    assert Tries(tmp_path, "", UNIT).deadly == set()
    Tries(tmp_path, "", UNIT).begin_pass()
    Tries(tmp_path, "", UNIT).begin_alone(3)
    assert Tries(tmp_path, "", UNIT).deadly == {3}


def test_jobs_with_the_same_address_have_marks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = parse_place("s3://bucket/scores")
    for job in ("first", "second"):
        Tries(place, job, UNIT).begin()
    Tries(place, "first", UNIT).begin()
    assert [Tries(place, job, UNIT).count for job in ("first", "second", "third")] == [2, 1, 0]
    delete_marks(place, "first")
    assert [Tries(place, job, UNIT).count for job in ("first", "second")] == [0, 1]


def test_the_hash_of_a_plan_depends_on_its_inputs(root: Path, tmp_path: Path):
    plans = [plan(root, tmp_path, [], documents).settings.plan for documents in (3, 4)]
    assert plans[0] and plans[0] != plans[1]
