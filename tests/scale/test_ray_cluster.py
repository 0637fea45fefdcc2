"""The commands on a real Ray cluster of three nodes on this machine, some of whose processes are killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scaled import DyingWorker, LateWorker, plan_scores, read_shards, run_here, score_with
from typer.testing import CliRunner

from apood import TextEncoder, load
from apood.cli.app import app
from apood.cli.engine import OnRay
from apood.data.inputs import Request
from apood.data.parts import Part, find_parts, read_part
from apood.data.record import Record
from apood.detectors.shared.mean_pooling import measure_spread
from apood.scale.engine import _SOME_FAIL, Cluster, run_workers
from apood.scale.job import Job, Settings
from apood.scale.measuring import MeasureWorker, load_identified, merge_units
from apood.scale.sampling import Drawn, DrawWorker, choose_bound, draw_from_records, read_drawn, take_smallest
from apood.scale.shards import Counts
from apood.tokens.batch import TokenBatch
from apood.tokens.source import trim_ends

_HELD = [sys.executable, "-c", "import scaled; scaled.run_held()"]
_MEMORY = 80 * 2**20  # of each node's object store


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    helpers = str(Path(__file__).parents[1] / "helpers")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), helpers]))
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": _MEMORY},
    )
    for _ in range(2):
        cluster.add_node(num_cpus=2, object_store_memory=_MEMORY)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def cluster(address: str):
    from apood.scale.engine import connect, find_resources

    with connect(address):
        yield find_resources()


def test_one_worker_that_starts_late_and_takes_long_is_waited_for(
    root: Path, reference, cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from ray.data import DataContext

    monkeypatch.setattr(DataContext.get_current(), "execution_no_progress_timeout_s", 0.5)
    job = plan_scores(root / "corpus", root / "detector", tmp_path / "out")
    chosen = job.begin()
    found = list(run_workers(LateWorker, job.settings, job.parts, chosen, cluster=cluster, workers=1))
    assert sorted(row["part"] for row in found) == chosen
    job.finish()
    assert read_shards(tmp_path / "out") == reference
    assert len(list(tmp_path.glob("failed-*"))) == 3


@pytest.mark.usefixtures("cluster")
def test_a_killed_command_is_resumed_by_other_workers_one_of_which_dies(
    root: Path, reference, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    command = ["score", str(root / "detector"), str(root / "corpus"), "--out", str(out), "--engine", "ray"]
    options = ["--keep", "id", "--address", address]
    killed = subprocess.Popen([*_HELD, *command, *options, "--workers", "1"])
    while len(read_shards(out)) < 2 and killed.poll() is None:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    done = read_shards(out)
    assert len(done) == 2 and done.items() <= reference.items()
    score_with(DyingWorker, monkeypatch)
    result = CliRunner().invoke(app, [*command, *options, "--workers", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 252
    assert (tmp_path / "died").exists()  # which costs a unit
    assert read_shards(out) == reference  # whoever scored a file, the bytes are the same
    assert json.loads((out / "_manifest.json").read_text())["counts"]["bad"] == 12


def test_a_fit_at_scale_is_the_same_for_any_number_of_workers(
    root: Path, cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs: list[Job] = []
    run = OnRay.run

    def note_job(own: OnRay, job: Job, *arguments: Any, **options: Any) -> Counts:
        jobs.append(job)
        return run(own, job, *arguments, **options)

    monkeypatch.setattr(OnRay, "run", note_job)
    monkeypatch.setattr("apood.cli.engine._tidy", lambda _: None)
    out = tmp_path / "fitted"
    command = ["fit", str(root / "corpus"), "--model", str(root / "bert"), "--out", str(out), "--method", "mahalanobis"]
    result = CliRunner().invoke(app, [*command, "--engine", "ray", "--sample", "50", "--workers", "2"])
    assert result.exit_code == 0, result.output
    assert "learnt statistics of 220 texts, set the threshold with 19 others" in result.stdout
    drawing, measuring = jobs
    own = take_smallest(read_drawn(drawing.place), 69)
    assert own == _draw_here(drawing, 69)
    _check_moments(root, load(out), {document.place for document in own[50:]})
    expected = [_read_shards_and_statistics(job.place) for job in jobs]
    assert len(expected[1]) == 12  # rows and statistics of six parts
    for workers in (None, 4):  # this process is one worker
        again = _repeat(drawing, measuring, tmp_path / f"with-{workers}", cluster, workers)
        assert [_read_shards_and_statistics(job.place) for job in again] == expected
    detector, digest = load_identified(tmp_path / "fitted.scale" / "detector")
    merged = [merge_units(job.place, detector, digest, 100)[0] for job in (measuring, again[1])]
    assert merged[0].keys() == merged[1].keys() and all(merged[0][name].equal(merged[1][name]) for name in merged[0])


def _repeat(drawing: Job, measuring: Job, folder: Path, cluster: Cluster, workers: int | None) -> tuple[Job, Job]:
    """Do two jobs again in a folder, by so many workers that do both or by this process, and return them."""
    drawing = replace(drawing, settings=replace(drawing.settings, folder=str(folder / "drawn")))
    measuring = replace(measuring, settings=replace(measuring.settings, folder=str(folder / "measured")))

    class BothWorker(MeasureWorker):
        def __init__(self, settings: Settings) -> None:
            super().__init__(settings)
            self.drawing = DrawWorker(replace(drawing.settings, on_gpu=False))

        def process(self, number: int, part: Part) -> Counts:
            self.drawing.process(number, part)
            return super().process(number, part)

    drawing.begin()
    settings, parts, chosen = measuring.settings, measuring.parts, measuring.begin()
    if workers is None:
        run_here(measuring, BothWorker(settings))
    else:
        assert len(list(run_workers(BothWorker, settings, parts, chosen, cluster=cluster, workers=workers))) == 6
    return drawing, measuring


def _read_shards_and_statistics(folder: Path) -> dict[str, bytes]:
    return read_shards(folder) | {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def _check_moments(root: Path, fitted: Any, held_out: Collection[str]) -> None:
    """Compare the mean of a detector with that of all texts but those held out."""
    texts = [
        record.item
        for part in find_parts([str(root / "corpus")], 10**7)
        for record in read_part(part, Request())
        if isinstance(record, Record) and record.place not in held_out
    ]
    encoder = TextEncoder(root / "bert")
    batches = [encoder.encode(texts[start : start + 50]) for start in range(0, len(texts), 50)]
    values = torch.cat([batch.values for batch in batches])
    lengths = torch.cat([batch.lengths for batch in batches])
    kept = trim_ends(TokenBatch.from_lengths(values, lengths), first=fitted.skips_first_, last=fitted.skips_last_)
    spread = measure_spread(kept, "none")
    assert len(texts) == 220
    np.testing.assert_allclose(fitted.mean_, spread["mean"], rtol=1e-5, atol=1e-6)
    assert fitted.threshold_ < 0


def _draw_here(job: Job, wanted: int) -> list[Drawn]:
    """Return the documents with the smallest keys, drawn by this process."""
    drawn = (
        own
        for number, part in enumerate(job.parts)
        for own in draw_from_records(number, read_part(part, Request()), seed=0, bound=choose_bound(wanted, 0))
    )
    return take_smallest(drawn, wanted)


@pytest.mark.usefixtures("cluster")
def test_a_store_that_workers_embed_is_that_of_the_plain_command(root: Path, tmp_path: Path):
    from apood import TokenStore

    command = ["embed", str(root / "corpus" / "0.jsonl"), "--model", str(root / "bert"), "--skip-bad"]
    for options in (["--out", str(tmp_path / "ray"), "--engine", "ray"], ["--out", str(tmp_path / "plain")]):
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 0, result.output
    ray, plain = TokenStore(tmp_path / "ray"), TokenStore(tmp_path / "plain")
    assert ray.encoder == plain.encoder and ray.index.tally == plain.index.tally
    assert ray.lengths.equal(plain.lengths)
    everything = slice(0, len(plain))
    one, two = ray.select(everything), plain.select(everything)
    assert one.channels["text"].values.equal(two.channels["text"].values)
    torch.testing.assert_close(one.values, two.values, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("cluster")
def test_an_error_of_apood_in_a_worker_is_the_error_of_the_command(root: Path, tmp_path: Path):
    model = tmp_path / "other"
    shutil.copytree(root / "bert", model)
    weights = load_file(model / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, model / "model.safetensors", {"format": "pt"})
    options = ["--out", str(tmp_path / "out"), "--engine", "ray", "--workers", "1", "--model", str(model)]
    result = CliRunner().invoke(app, ["score", str(root / "detector"), str(root / "corpus" / "0.jsonl"), *options])
    assert result.exit_code == 2 and result.stdout == ""
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]  # not notices of Ray
    assert error.startswith("Error: The model 'other' is another encoder than the requested one: it gives tokens from ")
    assert error.endswith(f" were requested. {_SOME_FAIL}")


def test_a_busy_cluster_is_named(cluster, monkeypatch: pytest.MonkeyPatch):
    import ray

    class Holder:
        def answer(self) -> bool:
            return True

    monkeypatch.setattr("apood.scale.engine._FREE_SECONDS", 60.0)  # until workers of other tests have ended
    assert list(cluster.list_notices(4)) == []
    monkeypatch.setattr("apood.scale.engine._FREE_SECONDS", 0.5)
    holder = ray.remote(num_cpus=2)(Holder).remote()
    assert ray.get(holder.answer.remote())
    (notice,) = cluster.list_notices(4)
    assert notice.startswith("The cluster has room for 2 of 4 workers: other programs use its processors")
    ray.kill(holder)


@pytest.mark.usefixtures("cluster")
def test_more_workers_than_the_cluster_has_are_refused(root: Path, tmp_path: Path):
    options = ["--out", str(tmp_path / "out"), "--engine", "ray", "--workers", "5"]
    result = CliRunner().invoke(app, ["score", str(root / "detector"), str(root / "corpus"), *options])
    assert result.exit_code == 2 and "the cluster has 4" in result.output


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("127.0.0.1:1", "Nobody answers at 127.0.0.1:1 "),
        ("ray://a:1", "takes host:port"),
        ("cluster", "takes host:port"),
    ],
)
def test_a_wrong_address_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, wrong: str, message: str):
    from apood.scale.engine import connect
    from apood.support.errors import InputError

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(InputError, match=message), connect(wrong):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "--workers is for --engine ray"),
        (["--engine", "ray"], "writes a folder of Parquet files"),
        (["--engine", "ray", "--out", "x", "--keep", "place"], "--keep place cannot be kept"),
    ],
)
def test_options_that_do_not_go_together(root: Path, options: list[str], message: str):
    result = CliRunner().invoke(app, ["score", str(root / "detector"), str(root / "corpus" / "0.jsonl"), *options])
    assert result.exit_code == 2 and message in result.output


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    from apood.scale.engine import connect
    from apood.support.errors import InputError

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the package ray: pip install 'apood\[ray\]'"), connect(None):
        pass


def test_a_dry_run_estimates_and_writes_nothing(root: Path, tmp_path: Path):
    out = tmp_path / "out"
    command = ["score", str(root / "detector"), str(root / "corpus"), "--out", str(out), "--engine", "ray", "--dry-run"]
    result = CliRunner().invoke(app, [*command, "--json", "--workers", "2"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["parts"] == 6 and 120 < facts["documents"] < 500 and facts["workers"] == 2
    assert not out.exists()
