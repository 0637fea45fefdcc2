"""Jobs whose work and results are in a cloud store, which a folder of this machine stands in for."""

import itertools
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from bucket import Bucket, put_bucket_in_place
from scaled import plan_scores, read_shards, run_here

from apood import KNN, TokenStore
from apood.cli.arguments import refuse_occupied
from apood.data.inputs import Request
from apood.data.parts import find_parts, read_part
from apood.data.record import Record
from apood.fitting.optimise import Checkpoint
from apood.pipeline.token_cache import TokenCache
from apood.scale.embedding import EmbedWorker, join_units
from apood.scale.fitting import Sample, draw_sample, fit_sample
from apood.scale.job import Job, Settings
from apood.scale.measuring import MeasureWorker, load_identified, merge_units
from apood.scale.sampling import Drawn, DrawWorker, choose_bound
from apood.scale.scoring import ScoreWorker
from apood.scale.shards import Counts
from apood.scale.units import Unit
from apood.scale.worker import Worker
from apood.support.cloud import CloudAddress, parse_place, write_file
from apood.support.errors import CloudError, InputError, StoreError
from apood.tokens.digests import content_digest


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return put_bucket_in_place(tmp_path / "cloud", monkeypatch)


def embed(root: Path, work: str, out: str) -> TokenStore:
    settings = Settings(work, Request(), encoder={"model": str(root / "bert")}, unit_records=16)
    job = Job.plan("embed", [str(root / "corpus")], settings, {})
    run_here(job, EmbedWorker(settings))
    return join_units(job.place, out, job.finish())


@pytest.mark.usefixtures("bucket")
def test_scores_are_the_same_there(root: Path, reference: dict[str, bytes], tmp_path: Path):
    job = plan_scores(root / "corpus", root / "detector", "s3://bucket/scores")
    run_here(job, ScoreWorker(job.settings))
    assert read_shards(tmp_path / "cloud" / "bucket" / "scores") == reference


@pytest.mark.usefixtures("bucket")
def test_a_store_is_the_same_there(root: Path, tmp_path: Path):
    here = embed(root, str(tmp_path / "here.parts"), str(tmp_path / "here"))
    there = embed(root, "s3://bucket/there.parts", "s3://bucket/there")
    assert content_digest(there) == content_digest(here) and there.index == here.index
    shutil.rmtree(tmp_path / "cache")
    assert TokenStore("s3://bucket/there").index == here.index
    units = [path for path in (tmp_path / "cloud" / "bucket" / "there.parts").iterdir() if path.is_dir()]
    assert len(units) > 6 and not list((tmp_path / "cache").rglob("tokens-*"))  # no unit is kept on this machine


@pytest.mark.usefixtures("bucket")
def test_an_interrupted_upload_leaves_no_store(root: Path, monkeypatch: pytest.MonkeyPatch):
    upload = CloudAddress.upload

    def interrupt(address: CloudAddress, file: Path) -> None:
        if str(address) == "s3://bucket/there/index.json":
            raise KeyboardInterrupt
        upload(address, file)

    with monkeypatch.context() as patch:
        patch.setattr(CloudAddress, "upload", interrupt)
        with pytest.raises(KeyboardInterrupt):
            embed(root, "s3://bucket/there.parts", "s3://bucket/there")
    with pytest.raises(CloudError, match=r"incomplete: it has no index\.json"):
        TokenStore("s3://bucket/there")
    refuse_occupied(parse_place("s3://bucket/there"))  # the same command goes on
    embed(root, "s3://bucket/there.parts", "s3://bucket/there")
    for is_taken in (
        lambda: refuse_occupied(parse_place("s3://bucket/there")),
        lambda: embed(root, "s3://bucket/there.parts", "s3://bucket/there"),
    ):
        with pytest.raises(InputError, match="s3://bucket/there already exists and is not empty"):
            is_taken()


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("work", ["s3://bucket/there.parts", "there.parts"])
def test_a_damaged_unit_is_named_with_what_to_delete(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
):
    monkeypatch.chdir(tmp_path)
    store = embed(root, work, "first")
    units = tmp_path / work.replace("s3://", "cloud/")
    for file in ("shard-00000.safetensors", "index.json"):
        (units / "tokens-000001-00001" / file).write_text("")
        with pytest.raises(StoreError, match=rf"the token store {work}/tokens-000001-00001 cannot be read") as caught:
            embed(root, work, "second")
        assert f"Delete {work}/tokens-000001-00001 and rows-000001-00001.parquet beside it" in str(caught.value)
        shutil.rmtree(units / "tokens-000001-00001")
        (units / "rows-000001-00001.parquet").unlink()
        again = embed(root, work, f"again with {file}")
        assert content_digest(again) == content_digest(store)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("work", ["s3://bucket/there.parts", "there.parts"])
def test_units_of_two_models_are_both_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str):
    save, saved = EmbedWorker.save_more, itertools.count()

    def save_as_other(worker: EmbedWorker, unit: Unit) -> None:
        if next(saved) == 1:
            worker.encoder.identity = {**worker.encoder.identity, "fingerprint": "other"}
        save(worker, unit)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EmbedWorker, "save_more", save_as_other)
    with pytest.raises(StoreError) as caught:
        embed(root, work, "store")
    one, other = "000000-00000", "000000-00001"
    assert str(caught.value).startswith(f"The token stores {work}/tokens-{one} and {work}/tokens-{other} cannot be")
    assert str(caught.value).endswith(
        f" Delete {work}/tokens-{one} and rows-{one}.parquet beside it, {work}/tokens-{other} and rows-{other}.parquet "
        "beside it, and run the same command again."
    )


@pytest.mark.usefixtures("bucket")
def test_an_error_about_no_unit_is_raised_as_it_is(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise StoreError("This is not about a unit.")

    monkeypatch.setattr("apood.scale.embedding.join_stores", fail)
    with pytest.raises(StoreError, match=r"^This is not about a unit\.$"):
        embed(root, str(tmp_path / "parts"), str(tmp_path / "store"))


@pytest.mark.usefixtures("bucket")
def test_what_is_measured_is_the_same_there(root: Path, tmp_path: Path):
    found = []
    for out in (str(tmp_path / "here"), "s3://bucket/there"):
        job = plan_scores(root / "corpus", root / "detector", out)
        settings = replace(job.settings, request=Request(), remembered=choose_bound(1, 0))
        run_here(replace(job, settings=settings), MeasureWorker(settings))
        found.append(merge_units(job.place, *load_identified(root / "detector"), 10**6))
    (_, here), (_, there) = found
    assert here.keys() == there.keys() and all(here[name].equal(there[name]) for name in here)


@pytest.mark.usefixtures("bucket")
def test_a_fit_goes_on_with_the_sample_and_the_detector_that_are_there(root: Path, tmp_path: Path):
    """Also on another machine: what was measured belongs to this detector."""
    records = [Record(f"word{number % 9} word{number % 7}", str(number)) for number in range(60)]
    sample = Sample(records, [], 100, choose_bound(1, 0))
    cache = TokenCache.of_model(tmp_path / "tokens", root / "bert")
    place, checkpoint = parse_place("s3://bucket/fit.scale/detector"), Checkpoint(tmp_path / "checkpoint")
    fitted, digest = fit_sample(KNN(k=2), sample, cache, place, checkpoint)
    shutil.rmtree(tmp_path / "cache")
    again, same = fit_sample(KNN(k=3), sample, cache, place, checkpoint)
    assert digest == same and again.k == 2 and again.bank_.equal(fitted.bank_)


@pytest.mark.usefixtures("bucket")
def test_a_sample_is_drawn_once(root: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[type[Worker]] = []

    def run(_: Job, worker: type[Worker]) -> Counts:
        asked.append(worker)
        return Counts()

    job = plan_scores(root / "corpus", root / "detector", "s3://bucket/measured")
    drawn = [Drawn(number, 0, number, f"line {number}", f"word{number}") for number in range(125)]
    work = parse_place("s3://bucket/fit.scale")
    with monkeypatch.context() as patch:
        patch.setattr("apood.scale.fitting.read_drawn", lambda _: drawn)
        sample = draw_sample(job, 100, work, run)
    assert draw_sample(job, 100, work, run) == sample and len(sample.training) == 100
    assert asked == [DrawWorker]


def test_the_number_of_requests_for_inputs_does_not_depend_on_their_number(bucket: Bucket, tmp_path: Path):
    asked = []
    for count in (2, 30):
        folder = tmp_path / "cloud" / "bucket" / f"texts-{count}"
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.txt").write_text("word1\n" * (number + 1))
        bucket.asked.clear()
        parts = find_parts([f"s3://bucket/texts-{count}/*.txt"], 10**6)
        assert sorted(part.size for part in parts) == [6 * (number + 1) for number in range(count)]
        asked.append(len(bucket.asked))
    assert asked[0] == asked[1] == 4
    alone = find_parts(["s3://bucket/texts-2/1.txt"], 10**6)
    assert [(part.name, part.size) for part in alone] == [("s3://bucket/texts-2/1.txt", 12)]


@pytest.mark.usefixtures("bucket")
def test_shards_are_read_at_the_same_time(root: Path, monkeypatch: pytest.MonkeyPatch):
    """The manifest is in order, and the first two reads wait for each other, both of the beginning and of the end."""
    job = plan_scores(root / "corpus", root / "detector", "s3://bucket/scores")
    run_here(job, ScoreWorker(job.settings))
    read = CloudAddress.open_anywhere

    def let_two_meet() -> None:
        met, numbers = threading.Barrier(2, timeout=30), itertools.count()

        def meet_and_read(address: CloudAddress):
            if next(numbers) < 2:
                met.wait()
            return read(address)

        monkeypatch.setattr(CloudAddress, "open_anywhere", meet_and_read)

    let_two_meet()
    assert job.begin() == []
    monkeypatch.setattr("apood.scale.job.list_finished", set)  # which has read some of them
    let_two_meet()
    assert job.finish().rows == 252
    manifest = json.loads((job.place / "_manifest.json").read_bytes())
    assert [shard["file"] for shard in manifest["shards"]] == sorted(shard["file"] for shard in manifest["shards"])


def plan_two(root: Path) -> tuple[Job, Job]:
    """Return two jobs with other inputs and the same address."""
    one, other = (
        plan_scores(root / "corpus" / f"{number}.jsonl", root / "detector", "s3://bucket/scores") for number in (0, 1)
    )
    return one, other


@pytest.mark.usefixtures("bucket")
def test_a_command_that_begins_while_another_one_begins_gives_up(root: Path, monkeypatch: pytest.MonkeyPatch):
    one, other = plan_two(root)
    upload = CloudAddress.upload

    def begin_before(address: CloudAddress, file: Path) -> None:
        monkeypatch.setattr(CloudAddress, "upload", upload)
        assert one.begin() == [0]
        upload(address, file)

    monkeypatch.setattr(CloudAddress, "upload", begin_before)  # the other one has looked, and found nothing
    with pytest.raises(InputError, match="Another command began to write to s3://bucket/scores at the same moment"):
        other.begin()
    with pytest.raises(InputError, match="holds the work of another command, whose inputs are not the same"):
        other.begin()
    run_here(one, ScoreWorker(one.settings))


@pytest.mark.usefixtures("bucket")
def test_two_commands_that_see_each_other_both_give_up(root: Path, monkeypatch: pytest.MonkeyPatch):
    one, other = plan_two(root)
    upload = CloudAddress.upload

    def claim_before(address: CloudAddress, file: Path) -> None:
        monkeypatch.setattr(CloudAddress, "upload", upload)
        with pytest.raises(InputError, match="at the same moment"):
            upload(address, file)
            one.begin()
            raise AssertionError("not reached")

    monkeypatch.setattr(CloudAddress, "upload", claim_before)
    with pytest.raises(InputError, match="at the same moment"):
        other.begin()


@pytest.mark.usefixtures("bucket")
def test_a_claim_without_a_plan_is_of_another_command(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Also of the same command that was started twice, or killed when it had claimed: nobody can say which."""
    one, _ = plan_two(root)
    with monkeypatch.context() as patch:
        patch.setattr("apood.scale.job._write_json", lambda place, _: place.name.startswith("_claim") and write(place))
        assert one.begin() == [0]
    with pytest.raises(
        InputError, match=r"begun: choose another folder, or delete its objects _claim-\* if no command"
    ):
        plan_two(root)[0].begin()


def write(place: CloudAddress) -> None:
    with write_file(place) as temporary:
        temporary.write_text("{}")


@pytest.mark.usefixtures("bucket")
def test_parquet_there_is_cut_between_row_groups_if_it_is_large(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    folder = tmp_path / "cloud" / "bucket"
    folder.mkdir(parents=True)
    for name, count in (("a", 5), ("b", 100)):
        table = pyarrow.table({"text": [f"{name} text {n}" for n in range(count)]})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=10)
    (folder / "c.jsonl").write_text('{"text": "c"}\n' * 1000)
    large = (folder / "a.parquet").stat().st_size
    parts = find_parts(["s3://bucket/*"], large)
    assert [(part.name[-9:], part.start, part.stop) for part in parts if "b.parquet" not in part.name] == [
        ("a.parquet", 0, None),
        ("t/c.jsonl", 0, None),
    ]
    assert 1 < len(parts) - 2 <= 10
    records = [record for part in parts for record in read_part(part, Request())]
    assert [record.item for record in records[5:105]] == [f"b text {n}" for n in range(100)]
    assert records[60].place == "row 56 of 's3://bucket/b.parquet'"
