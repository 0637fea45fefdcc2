"""The real proxy of LiteLLM asks the service before it calls a model."""

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from environments import needs, run_partner
from http_server import FOREIGN, KNOWN, run_app, run_service, wait_until

from apood.serving.http.served import Served

pytestmark = needs("litellm")

KNOWN_TEXT, FOREIGN_TEXT = " ".join(KNOWN * 2), " ".join(FOREIGN * 2)
TOKEN = "a-token-of-the-tests"
CONFIG = """
model_list:
  - model_name: tiny
    litellm_params: {{model: openai/tiny, api_base: "{model}/v1", api_key: none}}
guardrails:
  - guardrail_name: apood
    litellm_params:
      guardrail: generic_guardrail_api
      mode: pre_call
      api_base: "{guard}"
      api_key: {token}
      default_on: true
"""


class Model:
    """A server of chat completions that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def make_app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response, StreamingResponse
        from starlette.routing import Route

        async def answer(request: Request) -> Response:
            body = await request.json()
            self.asked.append(body["messages"][-1]["content"])
            head = {"id": "1", "created": 1, "model": "tiny"}
            if body.get("stream"):
                deltas = [{"role": "assistant", "content": "well "}, {"content": "said"}, {}]
                choices = [{"index": 0, "delta": own, "finish_reason": None if own else "stop"} for own in deltas]
                chunks = [{**head, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
                events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
                return StreamingResponse(iter(events), media_type="text/event-stream")
            message = {"role": "assistant", "content": "well said"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})

        return Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def litellm(served: Served, model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    import httpx2

    folder = tmp_path_factory.mktemp("litellm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    headers = {"authorization": f"Bearer {TOKEN}"}
    with run_app(model.make_app(), None) as upstream, run_service(served, tokens=(TOKEN,), headers=headers) as guard:
        config = CONFIG.format(model=upstream.url, guard=guard.url, token=TOKEN)
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        program = "import sys; from litellm import run_server; sys.exit(run_server())"
        arguments = ["-c", program, "--config", "config.yaml", "--host", "127.0.0.1", "--port", port]
        key = f"sk-{secrets.token_hex(32)}"
        settings = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
        options = {"cwd": folder, "stderr": subprocess.STDOUT, "env": {**os.environ, **settings}}
        with (
            (folder / "log.txt").open("w") as log,
            run_partner("litellm", *arguments, stdout=log, **options) as running,
            httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=60, headers={"authorization": f"Bearer {key}"}
            ) as client,
        ):
            wait_until(lambda: running.poll() is not None or is_up(client), 180)
            assert running.poll() is None, (folder / "log.txt").read_text(encoding="utf-8")[-2000:]
            yield client


def is_up(client: Any) -> bool:
    import httpx2

    try:
        return client.get("/health/liveliness").status_code == 200
    except httpx2.TransportError:
        return False


def ask(client: Any, text: str, stream: bool) -> Any:
    messages = [{"role": "system", "content": FOREIGN_TEXT}, {"role": "user", "content": text}]
    return client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, "stream": stream})


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_in_distribution_passes(litellm: Any, model: Model, stream: bool) -> None:
    before = len(model.asked)
    answer = ask(litellm, KNOWN_TEXT, stream)
    assert answer.status_code == 200, answer.text
    if stream:
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "well said"
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "well said"
    assert model.asked[before:] == [KNOWN_TEXT]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_out_of_distribution_never_reaches_the_model(litellm: Any, model: Model, stream: bool) -> None:
    before = len(model.asked)
    answer = ask(litellm, FOREIGN_TEXT, stream)
    assert answer.status_code == 400 and "unlike those" in answer.text
    assert model.asked[before:] == []
