"""What neighbours remember of a corpus that is read in parts: all documents, or those with the smallest keys."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bucket import put_bucket_in_place
from http_server import KNOWN, make_texts
from safetensors.torch import save_file
from scaled import plan_scores, run_here

from apood import MahalanobisKNN, TextDetector, TextEncoder
from apood.data.inputs import Request
from apood.data.parts import read_part
from apood.detectors.contract.refinable import Refinable
from apood.scale.fitting import Sample
from apood.scale.job import Job
from apood.scale.measuring import MeasureWorker, load_identified, merge_job, merge_units
from apood.scale.sampling import choose_bound, count_by_keys, draw_from_records, take_smallest
from apood.scale.shards import Counts
from apood.scale.worker import Worker
from apood.support.errors import InputError


def measure(root: Path, out: Path, *, remembered: int, left_out: frozenset[str] = frozenset()) -> Job:
    job = plan_scores(root / "corpus", root / "detector", out)
    settings = replace(job.settings, request=Request(), remembered=remembered, left_out=left_out)
    job = replace(job, settings=settings)
    run_here(job, MeasureWorker(job.settings))
    return job


def draw(job: Job, wanted: int):
    parts = ((number, read_part(part, Request())) for number, part in enumerate(job.parts))
    options = {"seed": 0, "bound": choose_bound(wanted, 0)}
    return take_smallest((own for part in parts for own in draw_from_records(*part, **options)), wanted)


def load_neighbours(root: Path) -> tuple[Refinable, str]:
    detector, digest = load_identified(root / "detector")
    assert isinstance(detector, Refinable)
    return detector, digest


def test_neighbours_remember_every_document_but_those_held_out(root: Path, tmp_path: Path):
    everything = measure(root, tmp_path / "all", remembered=choose_bound(1, 0))
    detector, digest = load_neighbours(root)
    _, rows = merge_units(everything.place, detector, digest, 10**6)
    assert len(rows["vectors"]) == 242  # 239 texts that are not empty, one of which has four windows
    held_out = frozenset(own.place for own in draw(everything, 20))
    job = measure(root, tmp_path / "rest", remembered=choose_bound(1, 0), left_out=held_out)
    _, rest = merge_units(job.place, detector, digest, 10**6)
    assert len(rest["vectors"]) == 222
    detector.refine({}, rest)
    assert detector.bank_.equal(rest["vectors"])


def test_the_smallest_keys_are_remembered_if_there_are_too_many(root: Path, tmp_path: Path):
    detector = load_neighbours(root)
    job = measure(root, tmp_path / "out", remembered=choose_bound(1, 0))
    drawn = draw(job, 50)
    bound = measure(root, tmp_path / "bound", remembered=drawn[-1].key + 1)  # what a worker writes is bounded, too
    (_, first), (_, second) = (merge_units(own.place, *detector, 50) for own in (job, bound))
    assert 50 <= len(first["vectors"]) <= 53 and first["vectors"].equal(second["vectors"])
    sizes = [sum(path.stat().st_size for path in own.place.glob("*.safetensors")) for own in (job, bound)]
    assert sizes[1] < sizes[0] / 2


@pytest.mark.parametrize(("most", "rows"), [(50, 60), (60, 60), (61, 80), (10**6, 200)])
def test_the_bound_counts_windows_and_documents_stay_whole(root: Path, tmp_path: Path, most: int, rows: int):
    detector, digest = load_neighbours(root)
    measured_by = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8)
    keys = torch.tensor([7, 3, 9, 1, 5, 0, 8, 2, 6, 4])  # ten documents of 20 windows, one per unit
    for number, key in enumerate(keys.repeat_interleave(20).split(20)):
        vectors = key[:, None] + torch.arange(20)[:, None] / 100
        save_file(
            {"row.key": key, "row.vectors": vectors, "detector": measured_by},
            tmp_path / f"measured-000000-{number:05d}.safetensors",
        )
    _, remembered = merge_units(tmp_path, detector, digest, most)
    expected = [key + n / 100 for key in keys[keys < rows // 20].tolist() for n in range(20)]
    assert list(remembered) == ["vectors"]
    assert remembered["vectors"].flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("most", [50, 10**6])
@pytest.mark.parametrize("where", [None, "s3://bucket"])
def test_groups_of_units_that_workers_merge_give_the_same(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, where: str | None
):
    put_bucket_in_place(tmp_path / "cloud", monkeypatch)
    texts = TextDetector(TextEncoder(root / "bert", max_tokens=24), MahalanobisKNN(k=3), accept=0.9)
    texts.fit(make_texts(200, KNOWN, 1)).save(tmp_path / "detector")
    detector, digest = load_identified(tmp_path / "detector")
    assert isinstance(detector, Refinable)
    job = plan_scores(root / "corpus", tmp_path / "detector", f"{where or tmp_path}/measured")
    job = replace(job, settings=replace(job.settings, request=Request(), remembered=choose_bound(1, 0)))
    run_here(job, MeasureWorker(job.settings))
    groups: list[int] = []

    def run(own: Job, worker: type[Worker]) -> Counts:
        groups.append(len(own.parts))
        return run_here(own, worker(own.settings))

    alone = merge_job(job, run, detector, digest, most)
    assert groups == []
    monkeypatch.setattr("apood.scale.measuring._GROUP", 4)
    for merged in (merge_job(job, run, detector, digest, most) for _ in range(2)):  # the second one finds the first
        for first, second in zip(merged, alone, strict=True):
            assert first and list(first) == list(second)
            for name in first:
                torch.testing.assert_close(first[name], second[name], rtol=1e-12, atol=1e-12)
    assert groups == [5, 5]
    other = "0" * len(digest)
    with pytest.raises(InputError, match="holds what was measured with another detector"):
        merge_job(job, run, detector, other, most)


def test_documents_that_are_tried_again_are_measured_once(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    job = replace(job, settings=replace(job.settings, request=Request(), remembered=choose_bound(1, 0)))
    worker = MeasureWorker(job.settings)
    detector, failures = worker._detector, iter(range(2))  # the unit fails, and then its first portion again
    remember = detector.remember

    def remember_later(batch):
        if next(failures, None) is not None:
            raise ValueError("not yet")
        return remember(batch)

    monkeypatch.setattr(detector, "remember", remember_later)
    monkeypatch.setattr(detector, "measure", lambda batch: {"sequences": torch.tensor(len(batch))})
    monkeypatch.setattr(detector, "merge_measured", lambda one, two: {"sequences": one["sequences"] + two["sequences"]})
    run_here(job, worker)
    measured, rows = merge_units(job.place, detector, worker._digest, 10**6)
    assert next(failures, None) is None
    assert measured["sequences"] == len(rows["vectors"]) == 242


def test_units_that_two_detectors_measured_are_not_merged(root: Path, tmp_path: Path):
    """Of two commands that train at the same time, the later one replaces the detector of the other."""
    detector, digest = load_identified(root / "detector")
    detector.save(tmp_path / "same", facts={"when": "later"})
    assert load_identified(tmp_path / "same")[1] == digest
    job = plan_scores(root / "corpus", tmp_path / "same", tmp_path / "out")
    worker = MeasureWorker(replace(job.settings, request=Request()))
    for number in job.begin():
        if number == 3:
            detector.calibrate([np.ones((2, detector.dim_))] * 100, 0.9)
            detector.save(tmp_path / "same")
            worker = MeasureWorker(worker.settings)
        worker.process(number, job.parts[number])
    with pytest.raises(InputError, match="holds what was measured with another detector"):
        merge_units(job.place, detector, digest, 10)


def test_the_number_of_documents_follows_from_the_keys(root: Path):
    job = plan_scores(root / "corpus", root / "detector", root / "unused")
    assert count_by_keys(draw(job, 100), 100) == pytest.approx(251, rel=0.3)
    assert count_by_keys(draw(job, 1000), 1000) == 239
    sample = Sample.of(draw(job, 125), 100)
    assert sample.bound == choose_bound(1, 0)  # all may be remembered, for there are fewer than the bound
