"""Addresses and folders in cloud stores. A folder stands for the buckets here; tests/partners has real servers."""

import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import put_bucket_in_place
from scaled import make_corpus, make_small_detector, run_here
from typer.testing import CliRunner

import apood
from apood import KNN, TokenBatch, TokenStore, TokenStoreWriter
from apood.cli.app import app
from apood.cli.arguments import refuse_occupied
from apood.data.inputs import Request, read_records
from apood.data.parts import find_parts, read_part
from apood.data.record import Record
from apood.encoders.base.pretrained import find_pretrained
from apood.scale.job import Job, Settings
from apood.scale.scoring import ScoreWorker
from apood.scale.shards import Counts, read_counts, write_shard
from apood.support import cloud
from apood.support.cloud import CloudAddress, parse_place, write_file
from apood.support.cloud_folders import find_work_folder
from apood.support.errors import ApoodError, CloudError, InputError, StoreError

pytest.importorskip("pyarrow")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for s3://bucket."""
    put_bucket_in_place(tmp_path / "cloud", monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cloud" / "bucket").mkdir()
    return tmp_path / "cloud" / "bucket"


@pytest.fixture
def forget_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    return lambda: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def write_store(place: str, value: float = 1.0, count: int = 3) -> None:
    with TokenStoreWriter(place, dim=4, shard_bytes=32) as writer:
        writer.append(TokenBatch.from_sequences([np.full((2, 4), value + n, "f4") for n in range(count)]))


def test_a_name_is_a_path_or_an_address():
    assert parse_place("data/x.jsonl") == Path("data/x.jsonl") == parse_place(Path("data/x.jsonl"))
    assert parse_place("hf:owner/name:train") == Path("hf:owner/name:train")
    assert parse_place("file:///tmp/a%20b/c") == Path("/tmp/a b/c") == parse_place("file://localhost/tmp/a b/c")
    address = parse_place("s3://bucket/a/b.jsonl/")
    assert address == CloudAddress("s3", "bucket", "a/b.jsonl")
    assert (str(address), address.name, address.suffix) == ("s3://bucket/a/b.jsonl", "b.jsonl", ".jsonl")
    assert str(parse_place("GS://bucket") / "x") == "gs://bucket/x"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("az://container/x", r"'az://container/x' is an address of an unknown kind: allowed are s3://BUCKET/KEY, gs:"),
        ("https://host/x.jsonl", "unknown kind"),
        ("https://host/x.jsonl?X-Amz-Signature=secret", r"^'https://host/x\.jsonl' is an address of an unknown kind"),
        ("s3://bucket/x?X-Amz-Signature=secret", "'s3://bucket/x' has settings after its question mark"),
        ("s3://", "does not name a bucket: an address is s3://BUCKET/KEY"),
        ("s3:///key", "does not name a bucket"),
        ("s3://bucket//x", "has an empty part"),
        ("gs://bucket/a/../../x", "'.' or '..'"),
        ("s3://bucket/x?endpoint_override=evil.example", "'s3://bucket/x' has settings after its question mark"),
        ("file://host/x", r"is not a path of this machine: write it as file:///PATH"),
        (Path("s3://bucket/x"), "has one slash too few: give an address as a text"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        parse_place(given)


@pytest.mark.parametrize("given", ["s3://KEY:SECRET@bucket/x", "s3://KEY:SEC/RET@bucket/x", "gs://SECRET@bucket"])
def test_credentials_in_an_address_are_refused_and_not_repeated(given):
    with pytest.raises(InputError, match="give these in the environment") as caught:
        parse_place(given)
    assert "SEC" not in str(caught.value)


def test_a_path_that_was_an_address_is_not_written_to_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_store("store")
    result = CliRunner().invoke(app, ["select", "store", "--method", "knn", "--out", "s3://bucket/search"])
    assert result.exit_code == 2 and "it is an address, and a path of this machine is needed" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_model_is_not_fetched_because_a_detector_names_it():
    with pytest.raises(InputError, match="s3://bucket/model is in a cloud store: copy it to this machine"):
        find_pretrained("s3://bucket/model", download=False)


def test_inputs_are_read_as_streams_and_by_patterns(bucket):
    import pyarrow
    import pyarrow.parquet

    for name in ("a", "b"):
        (bucket / "in" / name).mkdir(parents=True)
    (bucket / "in" / "a" / "1.jsonl").write_text('{"text": "one"}\n')
    (bucket / "in" / "b" / "2.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n'))
    (bucket / "in" / "b" / ".hidden.jsonl").write_text('{"text": "no"}\n')
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"text": "three"}]), bucket / "in" / "3.parquet")

    def read(*names: str) -> list[str]:
        return [record.item for record in read_records(names) if isinstance(record, Record)]

    assert read("s3://bucket/in/**/*.jsonl*", "s3://bucket/in/3.parquet") == ["one", "two", "three"]
    assert read("s3://bucket/in/?/1.jsonl") == ["one"]
    assert read(f"file://{bucket}/in/a/1.jsonl") == ["one"]
    parts = find_parts(["s3://bucket/in/*/*.jsonl*", f"file://{bucket}/in/3.parquet"], 1000)
    assert [part.name.rpartition("/in/")[2] for part in parts] == ["a/1.jsonl", "b/2.jsonl.gz", "3.parquet"]
    assert [r.item for part in parts for r in read_part(part, Request())] == ["one", "two", "three"]
    assert [part.size for part in parts][:2] == [16, (bucket / "in" / "b" / "2.jsonl.gz").stat().st_size]
    with pytest.raises(InputError, match=r"There is nothing at 's3://bucket/in/none.txt'"):
        read_records(["s3://bucket/in/none.txt"])
    for name in ("s3://bucket/in", "s3://bucket"):
        with pytest.raises(InputError, match=rf"'{name}' is a folder: give its objects, for example '{name}/\*.jsonl'"):
            read_records([name])


def test_a_bucket_may_be_a_detector(bucket, forget_copies):
    KNN(k=1).fit([np.eye(4, dtype="f4")[:2], np.eye(4, dtype="f4")[1:]]).save("s3://bucket")
    assert (bucket / "config.json").exists()
    forget_copies()
    assert isinstance(apood.load("s3://bucket"), KNN)


@pytest.mark.usefixtures("bucket")
def test_shards_of_a_job_are_objects_with_the_manifest_last(bucket, tmp_path):
    make_corpus(tmp_path / "corpus")
    make_small_detector(tmp_path)
    written = {}
    for out in ("s3://bucket/scores", "local"):
        settings = Settings(out, Request(keep=("id",)), detector=str(tmp_path / "detector"), unit_records=16)
        job = Job.plan("score", [str(tmp_path / "corpus")], settings, {})
        worker = ScoreWorker(settings)
        first, *_ = job.begin()
        worker.process(first, job.parts[first])
        assert first not in job.begin()  # it is done
        with pytest.raises(InputError, match="5 parts of"):
            job.finish()
        run_here(job, worker)
        folder = bucket / "scores" if out != "local" else tmp_path / "local"
        written[out] = {path.name: path.read_bytes() for path in folder.iterdir()}
    there = {name: content for name, content in written["s3://bucket/scores"].items() if "_claim" not in name}
    assert there == written["local"] and len(written["s3://bucket/scores"]) == len(there) + 1
    assert {"_plan.json", "_manifest.json", "rows-000000-00000.parquet"} <= written["local"].keys()


def test_a_store_that_fails_is_not_a_damaged_shard(bucket, monkeypatch):
    import pyarrow.parquet

    shard = parse_place("s3://bucket/scores/rows-000000-00000.parquet")
    write_shard(shard, [{"place": "line 1", "score": 0.5}], ["score"], [], last=True)
    assert read_counts(shard) == (Counts(rows=1), True)
    opened = list[Any]()

    def time_out(file: Any) -> None:
        opened.append(file)
        raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached")

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet, "read_schema", time_out)
        with pytest.raises(CloudError, match=r"rows-000000-00000\.parquet cannot be read: the store does not answer"):
            read_counts(shard)
    assert opened[0].closed
    (bucket / "scores" / shard.name).write_bytes(b"no Parquet")
    with pytest.raises(InputError, match="is damaged, or apood did not write it"):
        read_counts(shard)


def test_a_store_is_uploaded_with_its_index_last_and_read_from_a_copy(bucket, monkeypatch, forget_copies):
    upload, order = CloudAddress.upload, list[str]()

    def note(address: CloudAddress, file: Path) -> None:
        order.append(address.name)
        upload(address, file)

    monkeypatch.setattr(CloudAddress, "upload", note)
    write_store("s3://bucket/store")
    assert order == ["shard-00000.safetensors", "shard-00001.safetensors", "shard-00002.safetensors", "index.json"]
    assert sorted(path.name for path in (bucket / "store").iterdir()) == sorted(order)
    downloads = list[str]()
    download = CloudAddress.download
    monkeypatch.setattr(CloudAddress, "download", lambda a, file: (downloads.append(a.name), download(a, file))[1])
    assert len(TokenStore("s3://bucket/store")) == 3
    assert downloads == []  # the copy of the writer
    forget_copies()
    assert len(TokenStore("s3://bucket/store")) == len(TokenStore("s3://bucket/store")) == 3
    assert sorted(downloads) == sorted(order[:-1])
    with pytest.raises(StoreError, match="already a token store in s3://bucket/store"):
        write_store("s3://bucket/store")


@pytest.mark.usefixtures("bucket")
def test_a_fetch_that_was_interrupted_goes_on(monkeypatch, forget_copies):
    write_store("s3://bucket/store")
    forget_copies()
    download, done = CloudAddress.download, list[str]()

    def stop_after_two(address: CloudAddress, file: Path) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(address.name)
        download(address, file)

    monkeypatch.setattr(CloudAddress, "download", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        TokenStore("s3://bucket/store")
    done.clear()
    assert len(TokenStore("s3://bucket/store")) == 3
    assert done == ["shard-00002.safetensors"]


def test_files_that_do_not_belong_together_are_refused_and_not_kept(bucket, forget_copies):
    KNN(k=1).fit([np.ones((2, 4)), np.zeros((2, 4))]).save("s3://bucket/detector")
    KNN(k=1).fit([np.ones((2, 4)), np.full((2, 4), 5.0)]).save("other")
    good = (bucket / "detector" / "model.safetensors").read_bytes()
    (bucket / "detector" / "model.safetensors").write_bytes(Path("other/model.safetensors").read_bytes())
    forget_copies()
    with pytest.raises(ApoodError, match=r"s3://bucket/detector/model.safetensors is not the file that was saved"):
        apood.load("s3://bucket/detector")
    (bucket / "detector" / "model.safetensors").write_bytes(good)
    assert isinstance(apood.load("s3://bucket/detector"), KNN)
    (bucket / "detector" / "config.json").unlink()
    with pytest.raises(CloudError, match=r"incomplete: it has no config.json, which is written last"):
        apood.load("s3://bucket/detector")
    (bucket / "detector" / "notes.txt").write_text("mine")
    with pytest.raises(ApoodError, match="is not just a saved detector"):
        apood.load("other").save("s3://bucket/detector")


@pytest.mark.usefixtures("bucket")
def test_a_folder_that_a_killed_process_did_not_upload_is_deleted_by_the_next_one(tmp_path, monkeypatch):
    detector, upload = KNN(k=1).fit([np.ones((2, 4)), np.zeros((2, 4))]), CloudAddress.upload
    cache = tmp_path / "cache" / "apood" / "cloud"
    left = list[Path]()

    def leave(address: CloudAddress, file: Path) -> None:
        """Upload a file, and leave a copy of its folder with the name that it would have of a process that ended."""
        folder = file.parents[1]
        left.append(folder.with_name(folder.name.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")))
        left[-1].mkdir(exist_ok=True)
        upload(address, file)

    with monkeypatch.context() as patch:
        patch.setattr(CloudAddress, "upload", leave)
        detector.save("s3://bucket/detector")
    assert left[-1] in cache.iterdir()
    detector.save("s3://bucket/detector")
    assert [path.name for path in cache.iterdir()] == ["s3"]


def test_names_in_a_store_cannot_lead_out_of_the_copy(bucket, forget_copies):
    write_store("s3://bucket/store")
    index = json.loads((bucket / "store" / "index.json").read_text())
    index["shards"][0]["file"] = "../../../stolen"
    (bucket / "store" / "index.json").write_text(json.dumps(index))
    forget_copies()
    with pytest.raises(StoreError, match=r"index.json in s3://bucket/store is damaged"):
        TokenStore("s3://bucket/store")


def test_commands_take_addresses(bucket, forget_copies):
    write_store("s3://bucket/train", count=30)
    write_store("s3://bucket/more", value=0.5, count=30)
    run("fit", "s3://bucket/train", "--method", "knn", "--out", "s3://bucket/detector")
    forget_copies()
    run("calibrate", "s3://bucket/detector", "s3://bucket/more")
    run("score", "s3://bucket/detector", "s3://bucket/more", "--out", "s3://bucket/out/scores.jsonl")
    assert len((bucket / "out" / "scores.jsonl").read_text().splitlines()) == 30
    run("store", "merge", "s3://bucket/train", "s3://bucket/more", "--out", "s3://bucket/all")
    run("store", "split", "s3://bucket/all", "--part", "a=0.5", "--part", "b=0.5", "--out", "s3://bucket/parts")
    assert len(TokenStore("s3://bucket/all")) == 60 == 2 * len(TokenStore("s3://bucket/parts/b"))
    assert '"folder": "s3://bucket/all"' in run("inspect", "s3://bucket/all", "--json")


@pytest.mark.parametrize(
    ("command", "last"),
    [
        (["fit", "s3://bucket/train", "--method", "knn", "--out", "s3://bucket/new"], "new/config.json"),
        (["store", "merge", "s3://bucket/train", "s3://bucket/more", "--out", "s3://bucket/new"], "new/index.json"),
        (["store", "split", "s3://bucket/train", "--part", "a=0.5", "--out", "s3://bucket/new"], "new/a/index.json"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_a_command_whose_upload_was_interrupted_can_be_repeated(monkeypatch, command, last):
    write_store("s3://bucket/train", count=30)
    write_store("s3://bucket/more", value=0.5, count=30)
    upload = CloudAddress.upload

    def interrupt(address: CloudAddress, file: Path) -> None:
        if str(address) == f"s3://bucket/{last}":
            raise KeyboardInterrupt
        upload(address, file)

    with monkeypatch.context() as patch:
        patch.setattr(CloudAddress, "upload", interrupt)
        assert CliRunner().invoke(app, command).exit_code == 130
    run(*command)
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and "already exists and is not empty" in refused.stderr


@pytest.mark.parametrize("there", ["detector", "members", "notes.txt"])
def test_no_store_is_written_to_what_is_something_else(bucket, there):
    write_store("s3://bucket/train", count=30)
    write_store("s3://bucket/more", value=0.5, count=30)
    if there == "detector":
        run("fit", "s3://bucket/train", "--method", "knn", "--out", "s3://bucket/new")
    else:  # a part of a detector whose upload was interrupted, or a file of somebody
        file = bucket / "new" / {"members": "members/0/model.safetensors"}.get(there, there)
        file.parent.mkdir(parents=True)
        file.write_text("mine")
    held = sorted((bucket / "new").rglob("*"))
    for command in (
        ["merge", "s3://bucket/train", "s3://bucket/more"],
        ["split", "s3://bucket/train", "--part", "a=1"],
    ):
        refused = CliRunner().invoke(app, ["store", *command, "--out", "s3://bucket/new"])
        assert refused.exit_code == 2 and "already exists and is not empty" in refused.stderr
    with pytest.raises(InputError, match="s3://bucket/new already exists and is not empty"):
        refuse_occupied(parse_place("s3://bucket/new"))
    with pytest.raises(StoreError, match="s3://bucket/new holds something else than a token store"):
        write_store("s3://bucket/new")
    assert sorted((bucket / "new").rglob("*")) == held


def test_file_addresses_are_paths(tmp_path):
    write_store(f"file://{tmp_path}/store", count=30)
    run("fit", f"file://{tmp_path}/store", "--method", "knn", "--out", f"file://{tmp_path}/detector")
    assert isinstance(apood.load(f"file://{tmp_path}/detector"), KNN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector", "store"]


def test_objects_are_the_bytes_of_files(bucket):
    address = CloudAddress("s3", "bucket", "x.gz")
    for content in (gzip.compress(b"text"), b""):
        Path("x").write_bytes(content)
        address.upload(Path("x"))
        assert (bucket / "x.gz").read_bytes() == content == address.read_bytes()


def test_an_output_that_fails_leaves_nothing(bucket):
    with pytest.raises(ZeroDivisionError), write_file(parse_place("s3://bucket/x.txt")) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert not (bucket / "x.txt").exists() and not temporary.exists()
    assert find_work_folder(parse_place("s3://bucket/a")) != find_work_folder(parse_place("gs://bucket/a"))


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("keep", [False, True])
def test_a_file_that_cannot_be_uploaded_is_kept_only_for_the_user(tmp_path, monkeypatch, keep):
    """A worker writes it again, and its machine has no use for it."""

    def fail(*_: object) -> None:
        raise CloudError("s3://bucket/x.txt cannot be written: the store does not answer.")

    monkeypatch.setattr(CloudAddress, "upload", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with pytest.raises(CloudError) as error, write_file(parse_place("s3://bucket/x.txt"), keep=keep) as temporary:
        temporary.write_text("rows")
    assert temporary.exists() == keep and (f"kept as {temporary}" in str(error.value)) == keep
    assert bool(list((tmp_path / "tmp").iterdir())) == keep


def test_a_store_that_never_answers_is_given_up(monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(cloud, "_open_s3", lambda *_: answer.wait(60))
    monkeypatch.setattr(cloud, "_ANSWER_SECONDS", 0.1)
    with pytest.raises(CloudError, match=r"s3://silent cannot be opened: the store did not answer within 0.1 seconds"):
        apood.load("s3://silent/detector")
    answer.set()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject", "access was denied"),
        ("AWS Error NO_SUCH_BUCKET during PutObject", "there is no such bucket"),
        ("curlCode: 28, Timeout was reached", "the store does not answer"),
        ("Could not create a OAuth2 access token", "there are no credentials"),
        ("AWS Error UNKNOWN (HTTP status 301) during HeadObject", "another region: set AWS_REGION"),
        ("something else", "the store refuses it"),
    ],
)
def test_errors_of_the_store_become_sentences(error, said, monkeypatch):
    def fail(_: object) -> None:
        raise OSError(error)

    monkeypatch.setattr(cloud, "_connect", fail)
    with pytest.raises(CloudError, match=rf"^s3://bucket/x/config.json cannot be read: .*{said}"):
        apood.load("s3://bucket/x")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"s3://nobody.* needs the package pyarrow: pip install 'apood\[cloud\]'"):
        apood.load("s3://nobody/x")
