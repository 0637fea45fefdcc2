"""Workers that score and commit while the encoder runs the next portion, as with a GPU, here without one."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from scaled import plan_scores, read_shards, run_here

from apood.data.inputs import Request
from apood.scale.embedding import EmbedWorker
from apood.scale.job import Job, Settings
from apood.scale.measuring import MeasureWorker
from apood.scale.sampling import choose_bound
from apood.scale.scoring import ScoreWorker
from apood.support.background import BackgroundCalls


@pytest.fixture
def overlapping(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("apood.scale.worker.follow_encoder", lambda _: BackgroundCalls())
    yield
    assert not [own for own in threading.enumerate() if own.name.startswith(("background", "prepare"))]


@pytest.mark.usefixtures("overlapping")
def test_the_bytes_are_the_same(root: Path, reference: dict[str, bytes], tmp_path: Path):
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    run_here(job, ScoreWorker(job.settings))
    assert read_shards(tmp_path / "out") == reference


@pytest.mark.usefixtures("overlapping")
def test_a_portion_is_scored_while_the_next_one_is_encoded(root: Path, reference: dict[str, bytes], tmp_path: Path):
    """Both wait for each other. What is at work is one portion that is encoded, and one that is scored."""
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    worker = ScoreWorker(job.settings)
    portions = 3  # of the part
    met = threading.Barrier(2, timeout=60)
    threads: dict[str, list[threading.Thread]] = {"encoder": [], "scores": []}
    run, make_rows = worker.encoder.run, worker.make_rows

    def run_beside(prepared):
        threads["encoder"].append(threading.current_thread())
        if len(threads["encoder"]) > 1:
            met.wait()
        return run(prepared)

    def make_beside(portion):
        threads["scores"].append(threading.current_thread())
        if len(threads["scores"]) < portions:
            met.wait()
        return make_rows(portion)

    worker.encoder.run, worker.make_rows = run_beside, make_beside
    job.begin()
    worker.process(0, job.parts[0])
    assert threads["encoder"] == [threading.main_thread()] * portions
    assert len(threads["scores"]) == portions and threading.main_thread() not in threads["scores"]
    assert read_shards(tmp_path / "out").items() <= reference.items()


@pytest.mark.parametrize("kind", ["embed", "measure"])
def test_stores_and_statistics_are_the_same(root: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest):
    folders = []
    for name in ("plain", "overlapping"):
        if name == "overlapping":
            request.getfixturevalue("overlapping")
        folders.append(tmp_path / name)
        if kind == "embed":
            settings = Settings(str(folders[-1]), Request(), encoder={"model": str(root / "bert")}, unit_records=16)
            run_here(Job.plan("embed", [str(root / "corpus")], settings, {}), EmbedWorker(settings))
        else:
            job = plan_scores(root / "corpus", root / "detector", folders[-1])
            settings = replace(job.settings, request=Request(), remembered=choose_bound(1, 0))
            run_here(replace(job, settings=settings), MeasureWorker(settings))
    plain, overlapping = (
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".json"
        }
        for folder in map(Path, folders)
    )
    assert plain == overlapping and len(plain) > 30


@pytest.mark.usefixtures("overlapping")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("stage", ["run", "make_rows", "save_more"])
def test_an_error_or_interrupt_leaves_what_is_complete(
    root: Path, reference: dict[str, bytes], tmp_path: Path, stage: str, error: type[BaseException]
):
    """The work is then continued to the same bytes. An error that does not come again leaves no trace at all."""
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    worker = ScoreWorker(job.settings)
    place = worker.encoder if stage == "run" else worker
    whole, calls = getattr(place, stage), iter(range(10**6))

    def fail_once(given):
        if next(calls) == 4:
            raise error("stopped")
        return whole(given)

    setattr(place, stage, fail_once)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            run_here(job, worker)
        assert 3 <= len(read_shards(tmp_path / "out")) <= 4
        run_here(job, ScoreWorker(job.settings))
    else:
        run_here(job, worker)
    assert read_shards(tmp_path / "out") == reference
    assert not list((tmp_path / "out").glob("_tries*"))


@pytest.mark.usefixtures("overlapping")
def test_an_error_beside_an_interrupt_does_not_let_the_work_go_on(root: Path, tmp_path: Path):
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    worker = ScoreWorker(job.settings)
    run, failed, calls = worker.encoder.run, threading.Event(), iter(range(10**6))

    def interrupt_second(prepared):
        if next(calls) != 1:
            return run(prepared)
        assert failed.wait(60)
        raise KeyboardInterrupt

    def fail(_):
        failed.set()
        raise ValueError("beside it")

    worker.encoder.run, worker.make_rows = interrupt_second, fail
    with pytest.raises(KeyboardInterrupt):
        run_here(job, worker)
    assert next(calls) == 2 and not read_shards(tmp_path / "out")
