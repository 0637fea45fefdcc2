"""Tokens from a real server with a real model: vLLM on a CPU, and MiniLM."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import needs, run_partner
from http_server import wait_until

import apood
from apood import KNN, RemoteEncoder, TextDetector, TextEncoder
from apood.encoders.base.known_models import find_installed

pytestmark = needs("vllm")

KNOWN = [f"The {noun} number {n} is stored in the {place}." for noun in ("file", "list") for n in range(40)
         for place in ("folder", "table")]  # fmt: skip
SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import httpx2

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not the command `vllm`, which looks for a package of this name; the one for CPUs has another.
    program = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", port, "--enforce-eager"]
    model = ["--model", find_installed("minilm"), "--dtype", "float32"]
    pooling = ["--runner", "pooling", "--pooler-config.task", "token_embed"]
    url, folder = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("vllm")

    def is_up() -> bool:
        try:
            return httpx2.get(f"{url}/health").status_code == 200
        except httpx2.TransportError:
            return False

    with (folder / "log.txt").open("w") as log:
        options = {"stdout": log, "stderr": subprocess.STDOUT, "env": {**os.environ, **SETTINGS}}
        with run_partner("vllm", *program, *model, *pooling, **options) as running:
            try:
                wait_until(lambda: running.poll() is not None or is_up(), 600)
                assert running.poll() is None, (folder / "log.txt").read_text(encoding="utf-8")[-2000:]
                yield url
            finally:
                running.terminate()  # it ends the processes that it has started
                running.wait(30)


def test_the_tokens_are_those_of_the_model_here(address: str) -> None:
    texts = [*KNOWN[:20], "word " * 400, "Straße 7,5 ☃"]
    served, here = RemoteEncoder(address, max_tokens=128), TextEncoder("minilm", layers=-1, max_tokens=128)
    found, expected = served.encode(texts), here.encode(texts)
    assert found.offsets.tolist() == expected.offsets.tolist() and (found.windows == 1).any()
    assert (found.values - expected.values).norm() <= 1e-4 * expected.values.norm()  # and so they are not normalised


def test_a_detector_is_fitted_and_used_with_the_server(address: str, tmp_path: Path) -> None:
    TextDetector(address, KNN(k=1)).fit(KNOWN).save(tmp_path / "detector")
    loaded = apood.load(tmp_path / "detector", model=address)
    assert loaded.predict([KNOWN[3], "wow!!! ca$h 4 u now"]).tolist() == [1, -1]
