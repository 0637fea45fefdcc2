"""A small corpus in files, a detector of it, and workers that fail, for tests of jobs in parts."""

import gzip
import json
import os
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from http_server import FOREIGN, KNOWN, make_texts
from tiny_models import save_model

from apood import KNN, TextDetector, TextEncoder
from apood.cli.engine import OnRay
from apood.data.inputs import Request
from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker
from apood.scale.shards import Counts
from apood.scale.worker import Worker

FILES, EACH = 6, 40


def make_corpus(folder: Path) -> Path:
    """Return a folder of files with one text per line; some lines are bad, some texts are empty, long or foreign."""
    texts = make_texts(FILES * EACH, KNOWN, 3)
    texts[5::40] = make_texts(FILES, FOREIGN, 4)
    texts[7], texts[11] = "", " ".join(KNOWN * 10)
    folder.mkdir()
    for number in range(FILES):
        own = texts[number * EACH : (number + 1) * EACH]
        lines = [json.dumps({"id": f"{number}-{place}", "text": text}) for place, text in enumerate(own)]
        lines[20:20] = ["not JSON", '{"id": 1, "text": 5}']
        content = "".join(f"{line}\n" for line in lines).encode()
        if number == FILES - 1:  # a file that can only be read from its beginning
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{number}.jsonl").write_bytes(content)
    return folder


def make_small_detector(folder: Path) -> Path:
    """Return the folder of a detector, in whose encoder a text of more than 24 tokens has windows."""
    save_model("bert", folder / "bert")
    encoder = TextEncoder(folder / "bert", max_tokens=24)
    TextDetector(encoder, KNN(k=3), accept=0.9).fit(make_texts(200, KNOWN, 1)).save(folder / "detector")
    return folder / "detector"


def plan_scores(corpus: Path, detector: Path, out: Path | str, **options: Any) -> Job:
    """Return a job with units of 16 documents."""
    request = Request(allow_empty=True, keep=("id",))
    settings = Settings(str(out), request, detector=str(detector), unit_records=16)
    return Job.plan("score", [str(corpus)], settings, {}, **options)


def run_here(job: Job, worker: Worker) -> Counts:
    """Do what is left of a job in this process, and return the counts of all rows."""
    for number in job.begin():
        worker.process(number, job.parts[number])
    return job.finish()


def run_commands_here(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Let commands with --engine ray do their work in this process, and return the list of the jobs that encode."""
    jobs: list[Job] = []

    def run(_: OnRay, job: Job, worker: type[Worker]) -> Counts:
        jobs.extend([job] if worker.encodes else [])
        return run_here(job, worker(job.settings))

    monkeypatch.setattr(OnRay, "run", run)
    monkeypatch.setattr("apood.scale.engine.connect", lambda _: nullcontext())
    return jobs


def score_with(worker: type[ScoreWorker], patch: pytest.MonkeyPatch) -> None:
    """Let `apood score --engine ray` use these workers, and units of 16 documents."""
    patch.setattr("apood.scale.scoring.ScoreWorker", worker)
    patch.setattr("apood.scale.job.Settings", partial(Settings, unit_records=16))


def run_held() -> None:
    """Run the command line in this process, with workers that commit two units."""
    from apood.cli.app import app

    score_with(HoldingWorker, pytest.MonkeyPatch())
    app()


def read_shards(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all shards by their names."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


class DyingWorker(ScoreWorker):
    """Kills its process the first time that any worker has encoded something of the third part."""

    def save_more(self, unit: Any) -> None:
        marker = self.place.parent / "died"
        if unit.part == 2 and unit.number == 1 and not marker.exists():
            marker.touch()
            os._exit(1)


class LateWorker(ScoreWorker):
    """Fails to start the first three times, and then takes long for the first unit."""

    def __init__(self, settings: Settings) -> None:
        beside = Path(settings.folder).parent
        failures = len(list(beside.glob("failed-*")))
        if failures < 3:
            (beside / f"failed-{failures}").touch()
            raise OSError("The model cannot be read.")
        super().__init__(settings)

    def save_more(self, unit: Any) -> None:
        if (unit.part, unit.number) == (0, 0):
            time.sleep(1)


class HoldingWorker(ScoreWorker):
    """Commits two units, and holds the next one for ever."""

    def save_more(self, _unit: Any) -> None:
        while len(read_shards(self.place)) >= 2:
            time.sleep(0.1)
