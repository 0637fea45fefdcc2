"""Parts, units and workers without a cluster: what is done does not depend on who does it, or how often."""

import gzip
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scaled import plan_scores, read_shards, run_here

from apood.data.hub import HubData
from apood.data.inputs import Request
from apood.data.parts import Part, find_parts, read_part
from apood.data.record import Record
from apood.scale.embedding import EmbedWorker, join_units
from apood.scale.job import Job, Settings
from apood.scale.sampling import choose_bound, compute_key, draw_from_records, take_smallest
from apood.scale.scoring import ScoreWorker
from apood.scale.shards import Counts, find_committed
from apood.scale.units import cut_units, make_row, read_row, read_safely
from apood.support.errors import InputError
from apood.support.files import atomic_folder, is_temporary


def read_rows(folder: Path):
    import pyarrow.parquet

    return [row for path in sorted(folder.glob("*.parquet")) for row in pyarrow.parquet.read_table(path).to_pylist()]


@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
@pytest.mark.parametrize("ending", [".jsonl", ".txt"])
def test_ranges_of_a_file_have_each_line_once(tmp_path: Path, size: int, ending: str):
    words = ["first", "", "ä" * 30, "b", "", "last without an end"]
    lines = [json.dumps({"text": word}) if ending == ".jsonl" and word else word for word in words]
    file = tmp_path / f"a{ending}"
    file.write_text("\n".join(lines), encoding="utf-8")
    parts = find_parts([str(file)], size)
    request = Request(allow_empty=True)
    found = [record.item for part in parts for record in read_part(part, request)]
    assert found == [record.item for record in read_part(Part(str(file)), request)]
    assert len(parts) == -(-file.stat().st_size // size)


def test_a_mark_of_byte_order_is_only_dropped_at_the_beginning_of_a_file(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_text("\ufeffone\n\ufefftwo\n", encoding="utf-8")
    found = [record.item for part in find_parts([str(file)], 8) for record in read_part(part, Request())]
    assert found == ["one", "\ufefftwo"]


def test_every_part_of_a_file_in_utf16_is_refused(tmp_path: Path):
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\nthree\n", encoding="utf-16")
    parts = find_parts([str(file)], 8)
    assert len(parts) > 2
    for part in parts:
        with pytest.raises(InputError, match=r"is not UTF-8, but UTF-16: write it in UTF-8\."):
            list(read_part(part, Request()))


def test_parquet_is_cut_between_row_groups(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    file = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"text {n}" for n in range(100)]})
    pyarrow.parquet.write_table(table, file, row_group_size=10)
    parts = find_parts([str(file)], 400)
    assert 2 < len(parts) < 10
    records = [record for part in parts for record in read_part(part, Request())]
    assert [record.item for record in records] == [f"text {n}" for n in range(100)]
    assert records[55].place == f"row 56 of {str(file)!r}"


def test_what_cannot_be_divided(tmp_path: Path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n'))
    assert [part.stop for part in find_parts([str(tmp_path)], 4)] == [None]
    with pytest.raises(InputError, match="Standard input cannot be divided"):
        find_parts(["-"], 4)
    with pytest.raises(InputError, match=r"There is no file 'absent\.jsonl'"):
        find_parts(["absent.jsonl"], 4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no files that end in \.parquet"):
        find_parts([str(tmp_path / "empty")], 4)


def test_units_end_by_number_or_by_length():
    records = [Record("x" * 5000, str(n)) for n in range(3)] + [Record("y", str(n)) for n in range(3, 9)]
    units = list(cut_units(1, records, 4))
    assert [[record.place for record in unit.records] for unit in units] == [
        ["0"],
        ["1"],
        ["2"],
        ["3", "4", "5", "6"],
        ["7", "8"],
    ]
    assert [unit.last for unit in units] == [False] * 4 + [True]
    assert [unit.name for unit in cut_units(3, [])] == ["000003-00000"]


@pytest.mark.usefixtures("reference")
def test_rows_are_those_of_the_plain_command(root: Path):
    from apood import load

    rows = read_rows(root / "reference")
    good = [row for row in rows if row["error"] is None]
    texts = [
        record.item
        for part in find_parts([str(root / "corpus")], 10**6)
        for record in read_part(part, Request(allow_empty=True))
        if isinstance(record, Record)
    ]
    with pytest.warns(UserWarning, match="empty"):
        expected = load(root / "detector").judge(texts)
    assert len(good) == len(expected) == 240
    spread = np.std(load(root / "detector").detector.calibration.scores)
    for row, judgement in zip(good, expected, strict=True):
        assert row["decision"] == ("ID" if judgement.accepted else "OOD")
        assert row["p_value"] == judgement.p_value
        assert row["score"] == pytest.approx(judgement.score, abs=1e-4 * spread)
        assert (row["tokens"], row["windows"], row["note"]) == (judgement.tokens, judgement.windows, judgement.note)
    assert {row["decision"] for row in good} == {"ID", "OOD"}
    assert max(row["windows"] for row in good) > 1


@pytest.mark.usefixtures("reference")
def test_bad_documents_are_rows_with_their_errors(root: Path):
    rows = read_rows(root / "reference")
    bad = [row for row in rows if row["error"] is not None]
    assert len(bad) == 12
    assert bad[0]["place"] == f"line 21 of {str(root / 'corpus' / '0.jsonl')!r}"
    assert "is not valid JSON" in bad[0]["error"] and "must be a string" in bad[1]["error"]
    assert bad[0]["score"] is None and bad[0]["decision"] is None
    assert [row["id"] for row in rows[:3]] == ["0-0", "0-1", "0-2"]


def test_the_manifest_lists_all_shards_in_order(root: Path, reference: dict[str, bytes]):
    manifest = json.loads((root / "reference" / "_manifest.json").read_text())
    assert [shard["file"] for shard in manifest["shards"]] == list(reference)
    assert manifest["counts"]["rows"] == 252 and manifest["counts"]["bad"] == 12
    rows = 0
    for shard in manifest["shards"]:
        assert shard["first"] == rows
        rows += shard["rows"]


def test_a_unit_that_is_lost_is_done_again_with_the_same_bytes(root: Path, reference: dict[str, bytes], tmp_path: Path):
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    worker = ScoreWorker(job.settings)
    for number in job.begin()[::-1]:
        worker.process(number, job.parts[number])
    lost = sorted((tmp_path / "out").glob("*.parquet"))[1::4]
    for path in lost:
        path.unlink()
    assert 0 < len(job.begin()) < len(job.parts)
    run_here(job, worker)
    assert read_shards(tmp_path / "out") == reference


def test_shards_are_in_the_order_of_their_numbers(tmp_path: Path):
    for name in ("000000-99999", "000000-100000", "1000000-00000", "999999-00000"):
        (tmp_path / f"rows-{name}.parquet").touch()
    found = find_committed(tmp_path)
    assert list(found) == [0, 999_999, 1_000_000]
    assert [path.name for path in found[0]] == ["rows-000000-99999.parquet", "rows-000000-100000.parquet"]


def test_a_document_that_fails_alone_is_a_row(root: Path, tmp_path: Path):
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")

    class Failing(ScoreWorker):
        def make_rows(self, portion):
            if any("word5 word5" in record.item for record in portion.records):
                raise ValueError("this one fails")
            return super().make_rows(portion)

    run_here(job, Failing(job.settings))
    failed = [row for row in read_rows(tmp_path / "out") if "this one fails" in (row["error"] or "")]
    scored = {row["place"]: row["score"] for row in read_rows(tmp_path / "out") if row["score"] is not None}
    before = {row["place"]: row["score"] for row in read_rows(root / "reference") if row["score"] is not None}
    assert 0 < len(failed) < 100 and len(scored) + len(failed) == 240
    assert all(scored[place] == pytest.approx(before[place], rel=1e-4) for place in scored)


def test_a_document_that_fails_in_a_unit_of_its_own_is_a_row(root: Path, tmp_path: Path):
    long = "word1 " * 4000  # with units of 16 documents, a text of so many characters is alone in its unit
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": 0, "text": text}) + "\n" for text in (long, "word2")))
    job = plan_scores(tmp_path / "a.jsonl", root / "detector", tmp_path / "out")

    class Failing(ScoreWorker):
        def make_rows(self, portion):
            if any(record.item == long for record in portion.records):
                raise ValueError("too much")
            return super().make_rows(portion)

    run_here(job, Failing(job.settings))
    assert [row["error"] for row in read_rows(tmp_path / "out")] == ["It cannot be encoded or scored: too much", None]


def test_an_error_of_every_document_is_raised(root: Path, tmp_path: Path):
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")

    class Failing(ScoreWorker):
        def make_rows(self, _portion):
            raise ValueError("nothing works")

    job.begin()
    with pytest.raises(ValueError, match="nothing works"):
        Failing(job.settings).process(0, job.parts[0])


def test_a_file_that_a_machine_cannot_open_is_an_error_and_not_a_row(root: Path, tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.jsonl").write_text('{"text": "word1", "id": 1}\n')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "word1", "id": 1}\n'))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["word1"], "id": [1]}), tmp_path / "c.parquet")
    job = plan_scores(tmp_path, root / "detector", tmp_path / "out")
    job.begin()
    worker = ScoreWorker(job.settings)
    for number, part in enumerate(job.parts):
        Path(part.name).unlink()
        with pytest.raises(InputError, match=r"cannot be read|There is no file"):
            worker.process(number, part)
    assert read_shards(tmp_path / "out") == {}


def test_relative_paths_begin_at_the_folder_of_the_command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "command").mkdir()
    (tmp_path / "command" / "a.txt").write_text("word1\n")
    monkeypatch.chdir(tmp_path / "command")
    settings = Settings(str(tmp_path / "out"), Request(), detector=str(root / "detector"))
    job = Job.plan("score", ["a.txt"], settings, {})
    job.begin()
    monkeypatch.chdir(tmp_path)  # where Ray started the worker
    assert ScoreWorker(settings).process(0, job.parts[0]).bad == 0


def test_a_unit_of_bad_records_before_one_that_fails_is_committed(root: Path, tmp_path: Path):
    bad, good = ["not JSON"] * 16, [json.dumps({"id": n, "text": f"word{n}"}) for n in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(['{"id": 0, "text": "word0"}', *bad[1:], *bad, *good]) + "\n")
    job = plan_scores(tmp_path / "a.jsonl", root / "detector", tmp_path / "out")
    run_here(job, ScoreWorker(job.settings))
    (tmp_path / "out" / "rows-000000-00001.parquet").unlink()
    (tmp_path / "out" / "rows-000000-00002.parquet").unlink()
    worker = ScoreWorker(job.settings)
    prepare = worker.encoder.prepare

    def fail_on_one(texts):
        if "word1" in texts:
            raise ValueError("this one")
        return prepare(texts)

    worker.encoder.prepare = fail_on_one
    run_here(job, worker)
    assert [row["error"] for row in read_rows(tmp_path / "out")[32:]][1] == "It cannot be encoded or scored: this one"


def test_what_killed_workers_left_does_not_stop_a_job(root: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("word1\n")
    settings = Settings(str(tmp_path / "out"), Request(), encoder={"model": str(root / "bert")})
    job = Job.plan("embed", [str(tmp_path / "a.txt")], settings, {})
    with atomic_folder(tmp_path / "out" / "tokens-000000-00000") as temporary:
        left = temporary.name
    shutil.rmtree(tmp_path / "out")
    job.begin()
    elsewhere = tmp_path / "out" / left.replace("00000.", "00007.", 1)
    elsewhere.mkdir()
    assert is_temporary(elsewhere)
    run_here(job, EmbedWorker(settings))
    assert not elsewhere.exists() and len(join_units(job.place, str(tmp_path / "store"), Counts())) == 1


@pytest.mark.usefixtures("reference")
def test_another_command_does_not_continue_the_work(root: Path, tmp_path: Path):
    with pytest.raises(InputError, match="holds the work of another command, whose inputs are not the same"):
        plan_scores(root / "corpus" / "0.jsonl", root / "detector", root / "reference").begin()
    (tmp_path / "note").touch()
    with pytest.raises(InputError, match="already exists and is not empty"):
        plan_scores(root / "corpus", root / "detector", tmp_path).begin()


def test_a_job_does_not_finish_what_another_command_began_at_the_same_time(root: Path, tmp_path: Path):
    one = plan_scores(root / "corpus" / "0.jsonl", root / "detector", tmp_path / "one")
    other = plan_scores(root / "corpus" / "1.jsonl", root / "detector", tmp_path / "other")
    run_here(other, ScoreWorker(other.settings))
    for number in one.begin():
        ScoreWorker(one.settings).process(number, one.parts[number])
    shutil.copy(tmp_path / "other" / "_plan.json", tmp_path / "one")
    with pytest.raises(InputError, match="holds the work of another command, whose inputs are not the same"):
        one.finish()
    assert not (tmp_path / "one" / "_manifest.json").exists()


def test_a_job_does_not_finish_if_an_input_has_changed(root: Path, tmp_path: Path):
    shutil.copytree(root / "corpus", tmp_path / "corpus")
    job = plan_scores(tmp_path / "corpus", root / "detector", tmp_path / "out")
    worker = ScoreWorker(job.settings)
    for number in job.begin():
        worker.process(number, job.parts[number])
    (tmp_path / "corpus" / "new.txt").write_text("a file that another program writes meanwhile\n")
    assert job.finish().rows == 252
    os.utime(tmp_path / "corpus" / "1.jsonl")
    with pytest.raises(InputError, match=r"1\.jsonl' has changed since the work began, so that .* of both versions"):
        job.finish()


def test_a_job_says_that_an_input_has_changed_before_it_says_that_parts_are_missing(root: Path, tmp_path: Path):
    """The same command would not go on."""
    job = plan_scores(shutil.copy(root / "corpus" / "0.jsonl", tmp_path), root / "detector", tmp_path / "out")
    job.begin()
    os.utime(tmp_path / "0.jsonl")
    with pytest.raises(InputError, match=r"0\.jsonl' has changed since the work began"):
        job.finish()


def test_an_input_that_is_no_longer_read_may_be_gone(root: Path, tmp_path: Path):
    corpus = shutil.copytree(root / "corpus", tmp_path / "corpus")
    job = plan_scores(corpus, root / "detector", tmp_path / "out")
    worker = ScoreWorker(job.settings)
    for number in job.begin():
        worker.process(number, job.parts[number])
    lost = tmp_path / "out" / "rows-000001-00000.parquet"
    content = lost.read_bytes()
    lost.unlink()
    shutil.rmtree(corpus)
    with pytest.raises(InputError, match="There is no file"):
        job.finish()
    lost.write_bytes(content)
    assert job.finish().rows == 252


def test_work_goes_on_with_the_commit_of_its_beginning(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commit, parts = "a" * 40, [Part("a.txt", size=1, version="1-1")]
    monkeypatch.setattr(HubData, "find_commit", lambda data: data.revision or commit)
    monkeypatch.setattr("apood.scale.job.find_parts", lambda names, _: [replace(parts[0], name=name) for name in names])
    monkeypatch.setattr("apood.scale.job.read_safely", lambda *_: iter([]))

    def make_plan(*names: str) -> Job:
        return Job.plan("score", names, Settings(str(tmp_path / "out"), Request(), detector=str(root)), {})

    given = "hf:owner/name:train"
    begun = make_plan(given)
    begun.begin()
    commit = "b" * 40  # a new one of the hub
    again = make_plan(given)
    assert again == begun and again.inputs == {given: f"{given}@{'a' * 40}"} and again.begin() == [0]
    with pytest.raises(InputError, match="holds the work of another command"):
        make_plan(f"{given}@{'b' * 40}").begin()


def test_a_part_travels_to_workers():
    for part in (Part("a.jsonl", 4, 8, 4, "8-1"), Part("a.jsonl.gz", size=4, version="4-1")):
        assert read_row(make_row(0, part)) == part


def test_other_code_of_the_same_version_does_not_continue_the_work(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan_scores(root / "corpus", root / "detector", tmp_path / "out").begin()
    monkeypatch.setattr("apood.scale.job.source_digest", lambda **_: "other code")
    with pytest.raises(InputError, match=r"/out holds the work of another command, which other code of"):
        plan_scores(root / "corpus", root / "detector", tmp_path / "out").begin()


def test_a_job_is_refused_before_there_is_a_folder(root: Path, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"words": "a"}\n')
    with pytest.raises(InputError, match="name it with --field"):
        plan_scores(tmp_path / "a.jsonl", root / "detector", tmp_path / "out")


def test_the_smallest_keys_do_not_depend_on_the_order_of_the_parts_or_on_the_bound(root: Path):
    parts = find_parts([str(root / "corpus")], 500)

    def draw(order, bound):
        drawn = [
            own
            for number in order
            for own in draw_from_records(number, read_safely(parts[number], Request()), seed=3, bound=bound)
        ]
        return take_smallest(drawn, 30)

    forward = draw(range(len(parts)), choose_bound(30, 0))
    assert forward == draw(reversed(range(len(parts))), choose_bound(30, 0))
    bound = choose_bound(30, 240)
    assert bound < choose_bound(30, 0) and forward == draw(range(len(parts)), bound)
    assert len({own.place for own in forward}) == 30


def test_samples_are_uniform():
    keys = np.array([[compute_key(seed, part, n) for part in range(5) for n in range(20)] for seed in range(2000)])
    chosen = np.argsort(keys, axis=1)[:, :10]
    shares = np.bincount(chosen.ravel(), minlength=100) / 2000
    assert np.abs(shares - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / 2000)  # five standard deviations


def test_workers_have_the_version_of_the_command(root: Path, tmp_path: Path):
    from dataclasses import replace

    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    with pytest.raises(InputError, match="install the same version everywhere"):
        ScoreWorker(replace(job.settings, version="0.0.1"))


def test_tokens_that_float16_cannot_hold_are_rows_with_the_error(root: Path, tmp_path: Path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two three four", "five")))
    settings = Settings(str(tmp_path / "parts"), Request(), encoder={"model": str(root / "bert")})
    job = Job.plan("embed", [str(corpus)], settings, {})
    worker = EmbedWorker(settings)
    encode = worker.encoder.run

    def grow(prepared):
        batch = encode(prepared)
        factors = torch.where(batch.lengths > 4, 1e6, 1.0).repeat_interleave(batch.lengths)
        return replace(batch, values=batch.values * factors[:, None])

    worker.encoder.run = grow
    run_here(job, worker)
    rows = read_rows(tmp_path / "parts")
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert "become infinite as float16, in which they are stored" in rows[1]["error"]
