"""Tokens from a real server with a real model: llama.cpp and SmolLM2."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from environments import needs, run_partner

import apood
from apood import KNN, RemoteEncoder, TextDetector
from apood.support.errors import InputError, ServerError
from apood.tokens.identity import find_difference

pytestmark = needs("llama")

KNOWN = [f"The {noun} number {n} is stored in the {place}." for noun in ("file", "list") for n in range(40)
         for place in ("folder", "table")]  # fmt: skip


@contextmanager
def serve(pooling: str) -> Iterator[str]:
    script = Path(__file__).with_name("llama_server.py")
    with run_partner("llama", script, pooling, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        yield next(line for line in running.stdout if line.startswith("http")).strip()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve("none") as found:
        yield found


def test_a_text_alone_has_the_tokens_that_it_has_among_others(address: str) -> None:
    encoder = RemoteEncoder(address)
    texts = [*KNOWN[:20], "word " * 700]
    together, alone = encoder.encode(texts), encoder.encode(texts[7:8])
    assert (together.windows == 1).any() and together.dim == 576
    assert (together.sequence(7) - alone.values).norm() <= 1e-3 * alone.values.norm()
    assert 40 < float(alone.values.norm(dim=1).median()) < 60  # not normalised


def test_a_detector_of_the_server_is_used_with_the_server_alone(address: str, tmp_path: Path) -> None:
    TextDetector(address, KNN(k=1)).fit(KNOWN).save(tmp_path / "detector")
    with pytest.raises(InputError, match="asks no server by itself"):
        apood.load(tmp_path / "detector").predict(KNOWN[:1])
    with serve("none") as again:
        loaded = apood.load(tmp_path / "detector", model=again)
        assert loaded.predict([KNOWN[3], "wow!!! ca$h 4 u now"]).tolist() == [1, -1]
        assert find_difference(loaded.detector.encoder_, loaded.encoder.identity) < 1e-3


def test_a_server_with_another_pooling_is_refused() -> None:
    with serve("mean") as other, pytest.raises(ServerError, match="not one vector per token: start llama-server with"):
        RemoteEncoder(other)


def test_a_server_without_embeddings_is_refused() -> None:
    script = Path(__file__).with_name("llama_server.py")
    with run_partner("llama", script, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        other = next(line for line in running.stdout if line.startswith("http")).strip()
        with pytest.raises(ServerError, match="status 501"):
            RemoteEncoder(other)


def test_a_server_with_smaller_batches_is_refused(address: str) -> None:
    with pytest.raises(ServerError, match=r"does not take texts of 1,024 tokens .*physical batch size"):
        RemoteEncoder(address, max_tokens=1024)
