"""The proxy in front of a real server with a real model: llama.cpp and SmolLM2."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from environments import needs, run_partner
from http_server import FOREIGN, KNOWN, Running, run_app, wait_until

from apood.serving.http.served import Served
from apood.serving.http.service import Service
from apood.serving.http.settings import Settings
from apood.serving.proxy.app import Rules, make_proxy
from apood.serving.proxy.upstream import Upstream

pytestmark = needs("llama")

KNOWN_TEXT, FOREIGN_TEXT = " ".join(KNOWN * 2), " ".join(FOREIGN * 2)
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with run_partner("llama", Path(__file__).with_name("llama_server.py"), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        line = next(line for line in running.stdout if line.startswith("http"))
        yield line.strip()


@pytest.fixture(scope="module")
def proxy(served: Served, upstream: str) -> Iterator[Running]:
    service = Service(lambda: served, Settings())
    with run_app(make_proxy(service, Upstream(upstream, 300), Rules()), service) as running:
        wait_until(lambda: running.client.get("/readyz").status_code == 204)
        running.client.timeout = 300
        yield running


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0, "seed": 1, **more}


def read_stream(text: str) -> str:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_answers_are_those_of_the_server_itself(proxy: Running, upstream: str) -> None:
    import httpx2

    direct = httpx2.post(f"{upstream}{CHAT}", json=ask(KNOWN_TEXT), timeout=300).json()
    guarded = proxy.client.post(CHAT, json=ask(KNOWN_TEXT))
    assert guarded.headers["x-apood-decision"] == "ID"
    said = guarded.json()["choices"][0]["message"]["content"]
    assert said and said == direct["choices"][0]["message"]["content"]
    streamed = proxy.client.post(CHAT, json=ask(KNOWN_TEXT, stream=True))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert read_stream(streamed.text) == said
    assert proxy.client.get("/v1/models").json()["data"]


def test_refused_requests_are_not_generated_from(proxy: Running) -> None:
    for stream in (False, True):
        answer = proxy.client.post(CHAT, json=ask(FOREIGN_TEXT, stream=stream))
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "out_of_distribution"
