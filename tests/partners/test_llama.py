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
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


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


def ask(path: str, text: str, **more: Any) -> dict[str, Any]:
    """Return a request for a few tokens, always the same ones."""
    same = {"temperature": 0, "seed": 1, **more}
    if path == CHAT:
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **same}
    if path == TEXT:
        return {"prompt": text, "max_tokens": 8, **same}
    return {"input": text, "max_output_tokens": 8, **same}


def read_answer(path: str, answer: Any) -> str:
    """Return what the model says in an answer."""
    content = answer.json()
    if path == RESPONSES:
        return str(content["output"][-1]["content"][0]["text"])
    (choice,) = content["choices"]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


def read_stream(path: str, answer: Any) -> str:
    """Return what the model says in the events of an answer."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    if path == RESPONSES:
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        assert events[-1]["type"] == "response.completed"
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert lines[-1] == "[DONE]"
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return "".join((choice["delta"].get("content") or "") if path == CHAT else choice["text"] for choice in choices)


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
def test_answers_are_those_of_the_server_itself(proxy: Running, upstream: str, path: str) -> None:
    import httpx2

    direct = read_answer(path, httpx2.post(f"{upstream}{path}", json=ask(path, KNOWN_TEXT), timeout=300))
    guarded = proxy.client.post(path, json=ask(path, KNOWN_TEXT))
    assert guarded.headers["x-apood-decision"] == "ID"
    assert direct and read_answer(path, guarded) == direct
    assert read_stream(path, proxy.client.post(path, json=ask(path, KNOWN_TEXT, stream=True))) == direct


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
def test_refused_requests_are_not_generated_from(proxy: Running, path: str) -> None:
    for stream in (False, True):
        answer = proxy.client.post(path, json=ask(path, FOREIGN_TEXT, stream=stream))
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "out_of_distribution"


def test_the_list_of_models_is_that_of_the_server(proxy: Running) -> None:
    assert proxy.client.get("/v1/models").json()["data"]
