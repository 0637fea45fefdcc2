"""Scoring on a GPU while the encoder runs there: its own stream, the same results. Run with `pytest -m gpu`."""

import threading
from pathlib import Path

import pytest
import torch
from http_server import KNOWN, make_texts
from scaled import make_corpus, plan_scores, read_shards, run_here
from tiny_models import save_model

from apood import APOOD, KNN, Fusion, TextDetector, TextEncoder
from apood.encoders.embed import follow_encoder
from apood.scale.scoring import ScoreWorker
from apood.support.background import BackgroundCalls

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::apood.support.errors.FitWarning")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gpu")
    make_corpus(root / "corpus")
    save_model("bert", root / "bert")
    encoder = TextEncoder(root / "bert", max_tokens=24, device="cuda")
    members = [APOOD(steps=5, heads=4, queries=2, device="cuda"), KNN(k=3)]
    TextDetector(encoder, Fusion(members), accept=0.9).fit(make_texts(200, KNOWN, 1)).save(root / "detector")
    return root


@pytest.mark.parametrize("part_bytes", [10**6, 700])
def test_shards_are_those_of_one_thread(
    root: Path, tmp_path: Path, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("overlapping", "at once"):
        if name == "at once":
            monkeypatch.setattr("apood.scale.worker.follow_encoder", lambda _: BackgroundCalls(at_once=True))
        job = plan_scores(root / "corpus", root / "detector", tmp_path / name, part_bytes=part_bytes)
        run_here(job, ScoreWorker(job.settings))
        found.append(read_shards(tmp_path / name))
    assert found[0] == found[1] and len(found[0]) > 6


def test_scores_do_not_wait_for_the_encoder(root: Path) -> None:
    """The stream of the encoder is busy for long; a call that was started before ends before it."""
    encoder = TextEncoder(root / "bert", max_tokens=24, device="cuda")
    seen, busy = [], threading.Event()

    def compute() -> float:
        busy.wait(30)
        seen.append((threading.current_thread(), torch.cuda.current_stream(), torch.cuda.current_device()))
        return float(torch.ones(1000, device="cuda").sum())

    with follow_encoder(encoder) as background:
        busy.set()
        background.start(compute).result()  # warms up
        busy.clear()
        call = background.start(compute)
        torch.cuda._sleep(4_000_000_000)  # about two seconds
        done = torch.cuda.Event()
        done.record()
        busy.set()
        assert call.result(timeout=30) == 1000 and not done.query()
    torch.cuda.synchronize()
    assert all(thread is not threading.main_thread() for thread, _, _ in seen)
    assert all(stream != torch.cuda.default_stream() for _, stream, _ in seen)
    assert {device for _, _, device in seen} == {torch.cuda.current_device()}
    assert len({stream for _, stream, _ in seen}) == 1
    with follow_encoder(encoder) as again:
        assert again.start(torch.cuda.current_stream).result() == seen[0][1]  # with the memory that it has


def test_judgements_are_those_of_one_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apood import load

    texts = make_texts(300, KNOWN, 7)
    detector = load(root / "detector")
    found = detector.judge(texts)
    monkeypatch.setattr("apood.pipeline.judging.follow_encoder", lambda _: BackgroundCalls(at_once=True))
    again = detector.judge(texts)
    for one, other in zip(found, again, strict=True):  # portions adapt to the speed
        assert one.score == pytest.approx(other.score, rel=1e-4) and one.accepted == other.accepted
