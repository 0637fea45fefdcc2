"""Workers that draw a sample: what they keep, and what they do with files that cannot be read."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from scaled import make_corpus, run_here

from apood.data.inputs import Request
from apood.data.parts import read_part
from apood.scale.job import Job, Settings
from apood.scale.sampling import DrawWorker, choose_bound, draw_from_records, read_drawn, take_smallest
from apood.scale.tries import PATIENCE
from apood.support.errors import DataWarning, InputError


class Died(BaseException):
    """The death of a worker's process."""


class DyingWorker(DrawWorker):
    """Dies when it has read a record of the third file."""

    def read(self, number, part):
        for record in super().read(number, part):
            yield record
            if part.name.endswith("2.jsonl"):
                raise Died


def plan(tmp_path: Path, wanted: int = 20) -> Job:
    settings = Settings(str(tmp_path / "drawn"), Request(), remembered=choose_bound(1, 0), unit_records=wanted)
    return Job.plan("measure", [str(tmp_path / "corpus")], settings, {})


def draw_here(job: Job, wanted: int):
    """Return the documents with the smallest keys of all texts, read at once."""
    found = (
        own
        for number, part in enumerate(job.parts)
        for own in draw_from_records(number, read_part(part, Request()), seed=0, bound=choose_bound(1, 0))
    )
    return take_smallest(found, wanted)


@pytest.mark.parametrize("wanted", [1, 20, 1000])
def test_the_smallest_keys_of_all_parts_are_among_those_of_each(tmp_path: Path, wanted: int):
    make_corpus(tmp_path / "corpus")
    job = plan(tmp_path, wanted)
    run_here(job, DrawWorker(job.settings))
    drawn = list(read_drawn(job.place))
    assert take_smallest(drawn, wanted) == draw_here(job, wanted)
    assert len(drawn) == sum(min(wanted, count) for count in (39, 40, 40, 40, 40, 40))


def test_a_file_that_kills_every_reader_is_given_up(tmp_path: Path):
    make_corpus(tmp_path / "corpus")
    job = plan(tmp_path)
    worker, deaths = DyingWorker(job.settings), 0
    for number in job.begin():
        while True:
            try:
                worker.process(number, job.parts[number])
                break
            except Died:
                deaths += 1
    assert deaths == PATIENCE
    with pytest.warns(DataWarning, match=r"A part of '.*2\.jsonl' was given up"):
        job.finish()
    assert {own.part for own in read_drawn(job.place)} == {0, 1, 3, 4, 5}
    assert not list(job.place.glob("_tries*"))


def test_a_damaged_file_is_named(tmp_path: Path):
    make_corpus(tmp_path / "corpus")
    whole = b"".join(b'{"text": "word1 %d"}\n' % number for number in range(5000))
    content = gzip.compress(whole)
    (tmp_path / "corpus" / "6.jsonl.gz").write_bytes(content[: len(content) // 2])
    job = plan(tmp_path)
    with pytest.warns(DataWarning, match=r"6\.jsonl\.gz' is damaged, and was read only up to the damage"):
        run_here(job, DrawWorker(job.settings))
    assert {own.part for own in read_drawn(job.place)} == set(range(7))


def test_other_code_of_the_same_version_is_refused(tmp_path: Path):
    make_corpus(tmp_path / "corpus")
    with pytest.raises(InputError, match="has other code of apood"):
        DrawWorker(replace(plan(tmp_path).settings, source="other code"))


def test_a_folder_that_a_machine_does_not_share_is_refused(tmp_path: Path):
    make_corpus(tmp_path / "corpus")
    with pytest.raises(InputError, match="does not see what the command wrote"):
        DrawWorker(replace(plan(tmp_path).settings, on_gpu=False))
