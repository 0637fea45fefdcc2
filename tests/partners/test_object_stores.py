"""Cloud paths against real servers on this machine: S3 by moto, and Google's storage by its emulator."""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from environments import find_python, run_partner
from tiny_models import save_model
from typer.testing import CliRunner

import apood
from apood import KNN, TokenBatch, TokenStore, TokenStoreWriter
from apood.cli.app import app
from apood.support import cloud
from apood.support.cloud import CloudAddress, parse_place
from apood.support.errors import ApoodError, ArtefactError, CloudError

SERVERS = {"s3": ("moto", "s3_server.py"), "gs": ("gcs", "gcs_server.py")}
pytestmark = [
    pytest.mark.partners,
    pytest.mark.skipif(
        not all(find_python(name).exists() for name, _ in SERVERS.values()),
        reason="moto or gcs is not installed: run make test-partners",
    ),
]

WORDS = [f"word{number}" for number in range(12)]


@contextmanager
def serve(scheme: str) -> Iterator[dict[str, str]]:
    name, script = SERVERS[scheme]
    with run_partner(name, Path(__file__).with_name(script), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        yield json.loads(next(line for line in running.stdout if line.startswith("{")))


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, str]]:
    """The environment variables that lead to both servers."""
    with serve("s3") as one, serve("gs") as other:
        yield {**one, **other, "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(autouse=True)
def environment(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    cloud._connect.cache_clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bert"
    save_model("bert", folder)
    return folder


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refuse(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def put(address: str, content: bytes) -> None:
    Path("put").write_bytes(content)
    place = parse_place(address)
    assert isinstance(place, CloudAddress)
    place.upload(Path("put"))


def write_texts(seed: int, count: int, words: list[str]) -> bytes:
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(words, size=generator.integers(3, 12))) for _ in range(count)]
    return "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts)).encode()


def forget_copies() -> None:
    """Do what another machine does: begin with an empty cache."""
    os.environ["XDG_CACHE_HOME"] += "+"


def make_knn(value: float) -> KNN:
    return KNN(k=1).fit([np.full((2, 4), value, "f4"), np.full((3, 4), value + 1, "f4")])


@pytest.mark.parametrize("scheme", SERVERS)
def test_the_whole_way_from_texts_to_scores_in_the_cloud(scheme: str, model: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    base = f"{scheme}://apood/way"
    train, held_out, new = (write_texts(seed, count, WORDS) for seed, count in ((0, 120), (1, 60), (2, 20)))
    put(f"{base}/texts/train-0.jsonl", train[: train.index(b"\n", 2000) + 1])
    put(f"{base}/texts/train-1.jsonl.gz", gzip.compress(train[train.index(b"\n", 2000) + 1 :]))
    table = pyarrow.Table.from_pylist([json.loads(line) for line in held_out.splitlines()])
    pyarrow.parquet.write_table(table, "held-out.parquet")
    put(f"{base}/texts/held-out.parquet", Path("held-out.parquet").read_bytes())
    put(f"{base}/new.jsonl", new)
    for name, content in (("train", train), ("held-out", held_out), ("new", new)):
        Path(f"{name}.jsonl").write_bytes(content)

    run("embed", f"{base}/texts/train-*", "--model", model, "--out", f"{base}/train")
    run("embed", f"{base}/texts/held-out.parquet", "--model", model, "--out", f"{base}/held-out")
    run("fit", f"{base}/train", "--method", "knn", "--out", f"{base}/detector")
    forget_copies()
    run("calibrate", f"{base}/detector", f"{base}/held-out", "--accept", 0.9)
    forget_copies()
    run("score", f"{base}/detector", f"{base}/new.jsonl", "--out", f"{base}/scores.jsonl", "--keep", "id")
    run("score", f"{base}/detector", f"{base}/held-out", "--out", f"{base}/scores.parquet")

    run("embed", "train.jsonl", "--model", model, "--out", "train")
    run("embed", "held-out.jsonl", "--model", model, "--out", "held-out")
    run("fit", "train", "--method", "knn", "--out", "detector")
    run("calibrate", "detector", "held-out", "--accept", 0.9)
    run("score", "detector", "new.jsonl", "--out", "scores.jsonl", "--keep", "id")
    place = parse_place(f"{base}/scores.jsonl")
    assert isinstance(place, CloudAddress)
    assert place.read_bytes() == Path("scores.jsonl").read_bytes()

    run("store", "merge", f"{base}/train", f"{base}/held-out", "--out", f"{base}/all")
    run("store", "split", f"{base}/all", "--part", "a=0.5", "--part", "b=0.5", "--out", f"{base}/parts")
    forget_copies()
    assert len(TokenStore(f"{base}/parts/a")) + len(TokenStore(f"{base}/parts/b")) == 180
    run("store", "verify", f"{base}/all", f"{base}/parts/a")
    run("evaluate", f"{base}/detector", "--id", f"{base}/parts/a", "--ood", f"b={base}/parts/b")
    compared = ["--id-train", f"{base}/train", "--id-test", f"{base}/held-out", "--ood", f"b={base}/parts/b"]
    run("compare", *compared, "--method", "knn", "--splits", 1, "--out", tmp_path / "comparison")
    assert f"{base}/detector" in run("inspect", f"{base}/detector")
    assert "exists already" in refuse("score", f"{base}/detector", f"{base}/new.jsonl", "--out", f"{base}/scores.jsonl")
    assert "--force" in refuse("fit", f"{base}/train", "--method", "knn", "--out", f"{base}/detector")
    assert "already a token store" in refuse("embed", "new.jsonl", "--model", model, "--out", f"{base}/train")


@pytest.fixture
def cluster() -> Iterator[None]:
    """A cluster of its own, whose workers have the environment of this test: not one that runs here already."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_workers_of_a_cluster_read_texts_and_the_detector(model: Path) -> None:
    import pyarrow.parquet

    base = "s3://apood/cluster"
    for number in range(2):
        put(f"{base}/new-{number}.jsonl", write_texts(number, 20, WORDS))
    Path("train.jsonl").write_bytes(write_texts(2, 150, WORDS))
    run("build", "train.jsonl", "--model", model, "--method", "knn", "--out", f"{base}/detector")
    run("score", f"{base}/detector", f"{base}/new-*.jsonl", "--out", "plain.jsonl")
    run("score", f"{base}/detector", f"{base}/new-*.jsonl", "--engine", "ray", "--workers", 1, "--out", "rows")
    rows = [
        row for path in sorted(Path("rows").glob("*.parquet")) for row in pyarrow.parquet.read_table(path).to_pylist()
    ]
    plain = [json.loads(line) for line in Path("plain.jsonl").read_text().splitlines()]
    assert [row["decision"] for row in rows] == [row["decision"] for row in plain]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in plain], rel=1e-5)


@pytest.mark.usefixtures("cluster")
def test_workers_of_a_cluster_embed_and_fit_there(model: Path) -> None:
    base = "s3://apood/on-cluster"
    put(f"{base}/texts/a.jsonl", write_texts(0, 100, WORDS))
    put(f"{base}/texts/b.jsonl", write_texts(1, 100, WORDS))
    texts, on_ray = f"{base}/texts/*.jsonl", ["--engine", "ray", "--workers", 1]
    run("embed", texts, "--model", model, "--out", "store")
    assert f"in {base}/store.parts" in run("embed", texts, "--model", model, "--out", f"{base}/store", *on_ray)
    forget_copies()
    ours, plain = TokenStore(f"{base}/store"), TokenStore("store")
    assert ours.lengths.equal(plain.lengths) and ours.index.tally == plain.index.tally
    torch.testing.assert_close(ours.select(slice(0, 200)).values, plain.select(slice(0, 200)).values, rtol=0, atol=1e-3)
    assert "already exists" in refuse("embed", texts, "--model", model, "--out", f"{base}/store", *on_ray)

    given = ["--model", model, "--method", "mahalanobis", "--sample", 100, *on_ray]
    said = run("fit", texts, "--out", f"{base}/detector", *given)
    assert "learnt statistics of 175 texts, set the threshold with 25 others" in said
    assert f"in {base}/detector.scale" in said
    run("fit", texts, "--out", "detector", *given)
    forget_copies()
    here, there = apood.load("detector"), apood.load(f"{base}/detector")
    assert here.mean_.equal(there.mean_)
    assert here.threshold_ == there.threshold_


@pytest.mark.parametrize("scheme", SERVERS)
def test_a_detector_of_several_members_is_saved_and_loaded(scheme: str) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randn(int(n), 8, generator=generator) for n in torch.randint(2, 9, (40,), generator=generator)]
    detector = apood.Fusion([KNN(k=1), apood.Mahalanobis()]).fit(tokens)
    detector.save(f"{scheme}://apood/fusion")
    forget_copies()
    loaded = apood.load(f"{scheme}://apood/fusion")
    assert np.array_equal(loaded.score_samples(tokens), detector.score_samples(tokens))


@pytest.mark.parametrize("scheme", SERVERS)
def test_an_interrupted_upload_leaves_no_detector_that_can_be_loaded(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = list(np.random.default_rng(0).normal(size=(40, 3, 4)))
    detector = apood.Fusion([KNN(k=1), apood.Mahalanobis()]).fit(tokens)
    upload, files = CloudAddress.upload, list[str]()

    def upload_some(address: CloudAddress, file: Path) -> None:
        if len(files) == most:
            raise KeyboardInterrupt
        files.append(address.name)
        upload(address, file)

    monkeypatch.setattr(CloudAddress, "upload", upload_some)
    for most in range(6):
        files.clear()
        address = f"{scheme}://apood/interrupted-{most}"
        with pytest.raises(KeyboardInterrupt):
            detector.save(address)
        with pytest.raises(CloudError, match="incomplete: it has no config.json" if most else "There is nothing at"):
            apood.load(address)
    most = 99
    detector.save(address)  # over what is there
    assert apood.load(address).name == detector.name


def test_a_killed_upload_leaves_no_object(settings: dict[str, str]) -> None:
    """A process that is killed while it uploads a large file leaves neither the file nor a detector."""
    script = """
import os, signal, threading, numpy as np
from apood import KNN
from apood.support.cloud import CloudAddress
upload = CloudAddress.upload
def upload_and_die(address, file):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    upload(address, file)
CloudAddress.upload = upload_and_die
KNN(k=1).fit([np.ones((1, 1024), "f4") * n for n in range(30_000)]).save("s3://apood/killed")
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **settings}, check=False)
    assert done.returncode == -9
    place = parse_place("s3://apood/killed")
    assert isinstance(place, CloudAddress)
    assert place.list_names() == []


@pytest.mark.parametrize("scheme", SERVERS)
def test_racing_writers_never_give_a_mixture(scheme: str) -> None:
    address = f"{scheme}://apood/raced"
    kinds = [make_knn(0.0), make_knn(7.0)]
    tokens = [np.zeros((2, 4), "f4")]
    allowed = [kind.score_samples(tokens).tolist() for kind in kinds]
    ended = threading.Event()
    problems: list[BaseException] = []

    def write(kind: KNN) -> None:
        for _ in range(10):
            try:
                kind.save(address)
            except ApoodError as error:
                problems.append(error)

    writers = [threading.Thread(target=write, args=(kind,)) for kind in kinds]
    loads = refusals = 0

    def read() -> None:
        nonlocal loads, refusals
        while not ended.is_set() or not loads + refusals:
            try:
                found = apood.load(address)
            except (ArtefactError, CloudError):
                refusals += 1
                continue
            assert isinstance(found, KNN)
            if found.score_samples(tokens).tolist() not in allowed:
                problems.append(AssertionError("a mixture"))
            loads += 1

    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    reader.join()
    assert not problems
    kinds[0].save(address)
    forget_copies()
    assert apood.load(address).score_samples(tokens).tolist() == allowed[0]


@pytest.mark.parametrize("scheme", SERVERS)
def test_a_store_that_was_replaced_in_part_is_refused(scheme: str) -> None:
    for name, value in (("one", 1.0), ("two", 2.0)):
        with TokenStoreWriter(f"{scheme}://apood/mixed/{name}", dim=3) as writer:
            writer.append(TokenBatch.from_sequences([np.full((2, 3), value, "f4")]))
    shard = parse_place(f"{scheme}://apood/mixed/two/shard-00000.safetensors")
    assert isinstance(shard, CloudAddress)
    put(f"{scheme}://apood/mixed/one/shard-00000.safetensors", shard.read_bytes())
    forget_copies()
    for _ in range(2):  # nothing of the bad copy is kept
        with pytest.raises(ApoodError, match=rf"{scheme}://apood/mixed/one is not the one that was written"):
            TokenStore(f"{scheme}://apood/mixed/one")


def test_an_interrupted_store_is_resumed_and_uploaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.jsonl").write_bytes(write_texts(0, 30, WORDS))
    upload = CloudAddress.upload

    def fail(address: CloudAddress, _: Path) -> None:
        raise CloudError(f"{address} cannot be written: the store does not answer.")

    monkeypatch.setattr(CloudAddress, "upload", fail)
    command = ("embed", "train.jsonl", "--model", model, "--out", "s3://apood/resumed")
    assert "is complete in" in refuse(*command)
    monkeypatch.setattr(CloudAddress, "upload", upload)
    assert "add --resume" in refuse(*command)
    assert "30 were there before" in run(*command, "--resume")
    forget_copies()
    assert len(TokenStore("s3://apood/resumed")) == 30


def test_scores_that_cannot_be_written_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: CloudAddress, _: Path) -> None:
        raise CloudError(f"{address} cannot be written: access was denied.")

    tokens = [np.ones((2, 4), "f4") * n for n in range(30)]
    KNN(k=1).fit(tokens).save("detector")
    with TokenStoreWriter("tokens", dim=4) as writer:
        writer.append(TokenBatch.from_sequences(tokens))
    monkeypatch.setattr(CloudAddress, "upload", fail)
    sentence = refuse("score", "detector", "tokens", "--out", "s3://apood/lost.jsonl")
    kept = Path(sentence.rpartition("kept as ")[2].rstrip(".\n"))
    assert len(kept.read_text().splitlines()) == 30


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://missing-bucket/detector", "There is no bucket s3://missing-bucket"),
        ("gs://missing-bucket/detector", "There is no bucket gs://missing-bucket"),
        ("s3://closed/detector", "s3://closed/detector/config.json cannot be read: access was denied"),
        ("s3://apood/nothing", "There is nothing at s3://apood/nothing"),
    ],
)
def test_places_that_cannot_be_read_get_a_sentence(address: str, said: str) -> None:
    with pytest.raises(CloudError, match=said):
        apood.load(address)


def test_wrong_credentials_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "not-the-key")
    for address in ("s3://apood/any", "s3://apood/any.jsonl"):
        with pytest.raises(CloudError, match="access was denied") as caught:
            make_knn(0.0).save(address)
        assert "not-the-secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", SERVERS)
def test_a_server_that_is_away_gets_a_sentence(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(CloudError, match=f"{scheme}://apood cannot be opened: the store does not answer"):
        apood.load(f"{scheme}://apood/detector")


def test_no_credentials_are_written_anywhere(settings: dict[str, str], tmp_path: Path) -> None:
    make_knn(0.0).save("s3://apood/secret-free")
    apood.load("s3://apood/secret-free")
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert settings[name].encode() not in written
