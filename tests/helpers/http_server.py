"""Applications served by uvicorn on a free port of this machine, in a thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tiny_models import WORDS, save_model

from apood import KNN, TextDetector, TextEncoder
from apood.serving.http.app import make_app
from apood.serving.http.service import Service
from apood.serving.http.settings import Settings

KNOWN, FOREIGN = WORDS[:6], WORDS[20:26]


def make_texts(count: int, words: list[str], seed: int, longest: int = 20) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest, (count,), generator=generator).tolist()
    return [" ".join(words[i] for i in torch.randint(len(words), (n,), generator=generator).tolist()) for n in lengths]


def make_detector(folder: Path) -> Path:
    """Return the folder of a detector of texts: texts of known words are in-distribution."""
    save_model("bert", folder / "bert")
    encoder = TextEncoder(folder / "bert", max_tokens=24)
    TextDetector(encoder, KNN(k=3), accept=0.9).fit(make_texts(200, KNOWN, 1)).save(folder / "detector")
    return folder / "detector"


class Running(NamedTuple):
    """A server in a thread: a client for it, its service, and its event loop."""

    client: Any
    service: Service
    loop: asyncio.AbstractEventLoop
    url: str


@contextmanager
def run_app(app: Any, service: Service, **client_options: Any) -> Iterator[Running]:
    """Run an application on a free port of 127.0.0.1 until the block ends."""
    import httpx2
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on"))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        with httpx2.Client(base_url=url, timeout=30, **client_options) as client:
            yield Running(client, service, loop, url)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


def wait_until(happened: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@contextmanager
def run_service(
    served: Any, *, tokens: tuple[str, ...] = (), headers: Any = None, **settings: Any
) -> Iterator[Running]:
    """Serve `served` until the block ends; it begins when the service is ready."""
    service = Service(lambda: served() if callable(served) else served, Settings(**settings))
    with run_app(make_app(service, tokens, local=True), service, headers=headers) as running:
        wait_until(lambda: running.client.get("/readyz").status_code == 204)
        yield running
