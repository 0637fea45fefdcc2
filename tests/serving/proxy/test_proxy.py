"""The proxy passes on what is in-distribution, unchanged, and nothing else."""

import asyncio
import json
import pkgutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from http_server import FOREIGN, KNOWN, Running, run_app, wait_until

from apood.serving.http.served import Served
from apood.serving.http.server import run_server
from apood.serving.http.service import Service
from apood.serving.http.settings import Settings
from apood.serving.proxy.app import Rules, find_texts, make_proxy
from apood.serving.proxy.upstream import Upstream, check_upstream
from apood.support.errors import InputError

KNOWN_TEXT, FOREIGN_TEXT = " ".join(KNOWN * 2), " ".join(FOREIGN * 2)
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


class Model:
    """A server that notes what it is sent. A stream waits after its first event until it is freed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, list[tuple[bytes, bytes]]]] = []
        self.free = threading.Event()
        self.gone = threading.Event()

    def make_app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import Response, StreamingResponse
        from starlette.routing import Route

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield b'data: {"n": 1}\n\n'
                while not self.free.is_set():
                    await asyncio.sleep(0.005)
                yield b'data: {"n": 2}\n\ndata: [DONE]\n\n'
            except (asyncio.CancelledError, GeneratorExit):
                self.gone.set()
                raise

        async def answer(request: Request) -> Response:
            body = await request.body()
            self.seen.append((f"{request.url.path}?{request.url.query}", body, request.headers.raw))
            asked = json.loads(body or b"{}")
            if asked.get("stream"):
                return StreamingResponse(stream(), media_type="text/event-stream")
            if asked.get("model") == "slow":
                await asyncio.sleep(1)
            response = Response(b'{"odd":  "spacing"}', 418 if asked.get("model") == "teapot" else 200)
            response.raw_headers += [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-apood-score", b"forged")]
            return response

        return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def upstream(model: Model) -> Iterator[str]:
    with run_app(model.make_app(), None) as running:
        yield running.url


@contextmanager
def run_proxy(served: Served, url: str, seconds: float = 30, settings: Any = None, **rules: Any) -> Iterator[Running]:
    service = Service(lambda: served, Settings(**(settings or {})))
    app = make_proxy(service, Upstream(url, seconds), Rules(**rules))
    with run_app(app, service) as running:
        wait_until(lambda: running.client.get("/readyz").status_code == 204)
        yield running


@pytest.fixture(scope="module")
def proxy(served: Served, upstream: str) -> Iterator[Running]:
    with run_proxy(served, upstream) as running:
        yield running


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def test_accepted_requests_and_their_answers_pass_unchanged(proxy: Running, model: Model) -> None:
    body = b'{ "messages": [{"role": "user", "content": "' + KNOWN_TEXT.encode() + b'"}],\n "x":1e3}'
    headers = {
        "authorization": "Bearer of-upstream",
        "content-type": "application/json; charset=utf-8",
        "traceparent": "00-1-2-01",
        "connection": "x-private",
        "x-private": "1",
        "x-apood-decision": "forged",
        "accept-encoding": "identity",
    }
    answer = proxy.client.post(f"{CHAT}?a=b%20c", content=body, headers=headers)
    assert answer.status_code == 200 and answer.content == b'{"odd":  "spacing"}'
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert answer.headers.get_list("x-apood-decision") == ["ID"] and len(answer.headers.get_list("date")) == 1
    assert answer.headers.get_list("x-apood-score") != ["forged"] and float(answer.headers["x-apood-p-value"]) > 0.1
    path, seen, raw = model.seen[-1]
    passed = {name.decode(): value.decode() for name, value in raw}
    assert path == f"{CHAT}?a=b%20c" and seen == body
    for name in ("authorization", "content-type", "traceparent", "accept-encoding"):
        assert passed[name] == headers[name]
    assert not {"x-private", "x-apood-decision"} & passed.keys()
    assert passed["user-agent"] == proxy.client.headers["user-agent"]  # that of the client, not one of the proxy
    assert proxy.client.post(CHAT, json=ask(KNOWN_TEXT, model="teapot")).status_code == 418


def test_a_cookie_of_one_client_is_not_sent_for_another_one(proxy: Running, model: Model) -> None:
    import httpx2

    for _ in range(2):
        with httpx2.Client(base_url=proxy.url) as client:
            assert client.post(CHAT, json=ask(KNOWN_TEXT)).headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert b"cookie" not in dict(model.seen[-1][2])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ask(FOREIGN_TEXT)),
        (CHAT, ask(FOREIGN_TEXT, stream=True)),
        (CHAT, ask("  ")),
        (TEXT, {"prompt": FOREIGN_TEXT}),
        (TEXT, {"prompt": [KNOWN_TEXT, FOREIGN_TEXT]}),
        (TEXT, {"prompt": KNOWN_TEXT, "suffix": FOREIGN_TEXT}),
        (RESPONSES, {"input": FOREIGN_TEXT}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": FOREIGN_TEXT}]}]}),
    ],
)
def test_a_refused_request_never_reaches_upstream(proxy: Running, model: Model, path: str, body: Any) -> None:
    before = len(model.seen)
    answer = proxy.client.post(path, json=body)
    assert answer.status_code == 400 and answer.headers["x-apood-decision"] == "OOD"
    error = answer.json()["error"]
    assert error["code"] == "out_of_distribution" and error["type"] == "invalid_request_error"
    assert len(model.seen) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [(TEXT, {"prompt": KNOWN_TEXT}), (TEXT, {"prompt": [KNOWN_TEXT] * 2}), (RESPONSES, {"input": KNOWN_TEXT})],
)
def test_other_endpoints_pass_too(proxy: Running, model: Model, path: str, body: Any) -> None:
    assert proxy.client.post(path, json=body).headers["x-apood-decision"] == "ID"
    assert json.loads(model.seen[-1][1]) == body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", CHAT, {"messages": []}, 400),
        ("POST", CHAT, {"prompt": KNOWN_TEXT}, 400),
        ("POST", CHAT, ask(KNOWN_TEXT, messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400),
        ("POST", TEXT, {"prompt": [1, 2, 3]}, 400),
        ("POST", TEXT, {"prompt": [[1, 2, 3]]}, 400),
        ("POST", RESPONSES, {"input": KNOWN_TEXT, "prompt": {"id": "p"}}, 400),
        ("POST", CHAT, ask(KNOWN_TEXT, documents=[{"text": FOREIGN_TEXT}]), 400),
        ("POST", CHAT, ask(KNOWN_TEXT, Chat_Template=FOREIGN_TEXT), 400),
        ("POST", TEXT, {"prompt": KNOWN_TEXT, "prompt_embeds": "AAAA"}, 400),
        ("POST", TEXT, {"prompt": KNOWN_TEXT, "Suffix": FOREIGN_TEXT}, 400),
        ("POST", f"{CHAT}/", ask(KNOWN_TEXT), 404),
        ("POST", "/v1//chat/completions", ask(KNOWN_TEXT), 404),
        ("POST", "/completion", {"prompt": FOREIGN_TEXT}, 404),
        ("POST", "/v1/embeddings", {"input": FOREIGN_TEXT}, 404),
        ("PUT", CHAT, ask(KNOWN_TEXT), 405),
    ],
)
def test_no_way_leads_around_the_guard(
    proxy: Running, model: Model, method: str, path: str, body: Any, status: int
) -> None:
    before = len(model.seen)
    answer = proxy.client.request(method, path, json=body)
    assert answer.status_code == status and answer.json()["error"]["message"].endswith(".")
    assert len(model.seen) == before


@pytest.mark.parametrize("path", ["../../slots", "%2e%2e/%2e%2e/slots", "..%2f..%2fslots", "%252e%252e/slots", "./a"])
def test_no_path_of_a_model_leads_around_the_guard(proxy: Running, model: Model, path: str) -> None:
    before = len(model.seen)
    connection = HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)  # it leaves paths as they are
    connection.request("GET", f"/v1/models/{path}")
    assert connection.getresponse().status == 404
    connection.close()
    assert len(model.seen) == before


def test_the_header_host_does_not_choose_what_is_judged(proxy: Running, model: Model) -> None:
    before = len(model.seen)
    body = {**ask(FOREIGN_TEXT), "prompt": KNOWN_TEXT}
    for host in ("localhost:1/v1/completions?", "localhost/v1/completions#"):
        assert proxy.client.post(CHAT, json=body, headers={"host": host}).status_code in (400, 403)
    assert len(model.seen) == before


def test_a_body_that_two_programs_would_read_differently_is_refused(proxy: Running, model: Model) -> None:
    before = len(model.seen)
    plain, kind = json.dumps(ask(KNOWN_TEXT)).encode(), ("content-type", "application/json")
    one, other = (json.dumps(ask(text)["messages"]) for text in (FOREIGN_TEXT, KNOWN_TEXT))
    cases: list[tuple[bytes, list[tuple[str, str]], int]] = [
        (f'{{"messages": {one}, "messages": {other}}}'.encode(), [kind], 400),
        (f'{{"messages": {other}, "Messages": {one}}}'.encode(), [kind], 400),
        (plain.decode().encode("utf-16"), [kind], 400),
        (plain, [("content-type", "application/json; charset=utf-7")], 415),
        (plain, [kind, ("content-type", "application/json; charset=utf-7")], 400),
        (plain, [kind, ("content-encoding", "identity"), ("content-encoding", "gzip")], 400),
        (plain, [("content-type", 'application/json; charset="UTF-8"')], 200),
    ]
    for content, headers, status in cases:
        assert proxy.client.post(CHAT, content=content, headers=headers).status_code == status
    assert len(model.seen) == before + 1


@pytest.mark.parametrize("work", ["apood.serving.http.bodies.parse_object", "apood.serving.proxy.app.find_texts"])
def test_the_event_loop_runs_while_a_large_body_is_read(
    proxy: Running, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    begun, free, real = threading.Event(), threading.Event(), pkgutil.resolve_name(work)

    def wait(*arguments: Any) -> Any:
        begun.set()
        assert free.wait(20)
        return real(*arguments)

    monkeypatch.setattr(work, wait)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(proxy.client.post, CHAT, json=ask(KNOWN_TEXT, user="a" * 20_000))
        assert begun.wait(20)
        try:
            assert proxy.client.get("/healthz", timeout=10).status_code == 204
        finally:
            free.set()
        assert asking.result().headers["x-apood-decision"] == "ID"


def test_the_system_prompt_and_the_history_do_not_change_the_score_by_a_bit(proxy: Running) -> None:
    last = {"role": "user", "content": KNOWN_TEXT}
    history = [
        {"role": "system", "content": FOREIGN_TEXT * 3},
        {"role": "user", "content": FOREIGN_TEXT},
        {"role": "assistant", "content": "word3"},
        {"role": "tool", "content": FOREIGN_TEXT},
    ]

    def score(path: str, body: Any) -> float:
        texts = find_texts(path, body, "last-user", "refuse")
        judging = proxy.service.judge_texts(proxy.service.served, texts, proxy.loop.time() + 30)
        (judgement,) = asyncio.run_coroutine_threadsafe(judging, proxy.loop).result(30)
        return float(judgement.score)

    alone = score(CHAT, {"messages": [last]})
    assert score(CHAT, {"messages": [*history, last]}) == alone
    assert score(RESPONSES, {"instructions": FOREIGN_TEXT, "input": [*history, last]}) == alone
    one, other = (proxy.client.post(CHAT, json={"messages": own}).headers for own in ([last], [*history, last]))
    for name in ("x-apood-decision", "x-apood-score", "x-apood-p-value"):
        assert one[name] == other[name]
    assert one["x-apood-decision"] == "ID"


def test_the_whole_conversation_is_judged_if_the_contract_says_so(served: Served, upstream: str) -> None:
    messages = [{"role": "user", "content": FOREIGN_TEXT}, {"role": "user", "content": KNOWN_TEXT}]
    for chat in ("all-user", "whole"):
        other = Served(served.detector, served.encoder, served.digest, chat=chat)
        with run_proxy(other, upstream) as proxy:
            assert proxy.client.post(CHAT, json={"messages": messages}).status_code == 400


def test_a_stream_arrives_event_by_event(proxy: Running, model: Model) -> None:
    model.free.clear()
    with proxy.client.stream("POST", CHAT, json=ask(KNOWN_TEXT, stream=True)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-apood-decision"] == "ID"
        chunks = answer.iter_raw()
        assert next(chunks) == b'data: {"n": 1}\n\n'  # upstream still waits
        model.free.set()
        assert b"".join(chunks) == b'data: {"n": 2}\n\ndata: [DONE]\n\n'


def test_upstream_is_told_when_the_client_is_gone(proxy: Running, model: Model) -> None:
    model.free.clear()
    model.gone.clear()
    with proxy.client.stream("POST", CHAT, json=ask(KNOWN_TEXT, stream=True)) as answer:
        next(answer.iter_raw())
    assert model.gone.wait(10)
    model.free.set()


def test_a_refusal_can_be_an_ordinary_completion(served: Served, upstream: str, model: Model) -> None:
    before = len(model.seen)
    with run_proxy(served, upstream, refusal_text="Ask about trains.") as proxy:
        answer = proxy.client.post(CHAT, json=ask(FOREIGN_TEXT))
        assert answer.status_code == 200 and answer.headers["x-apood-decision"] == "OOD"
        assert (
            answer.json()["choices"][0]["message"]["content"] == "Ask about trains." and answer.json()["model"] == "m"
        )
        assert (
            proxy.client.post(TEXT, json={"prompt": FOREIGN_TEXT}).json()["choices"][0]["text"] == "Ask about trains."
        )
        output = proxy.client.post(RESPONSES, json={"input": FOREIGN_TEXT}).json()["output"]
        assert output[0]["content"][0]["text"] == "Ask about trains."

        def read(path: str, body: dict[str, Any]) -> list[Any]:
            answer = proxy.client.post(path, json={**body, "stream": True})
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
            return [line if line == "[DONE]" else json.loads(line) for line in lines]

        *events, end = read(CHAT, ask(FOREIGN_TEXT))
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert end == "[DONE]" and text == "Ask about trains." and events[-1]["choices"][0]["finish_reason"] == "stop"
        *events, end = read(TEXT, {"prompt": FOREIGN_TEXT})
        assert end == "[DONE]" and events[0]["choices"][0]["text"] == "Ask about trains."
        events = read(RESPONSES, {"input": FOREIGN_TEXT})
        assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == [
            "Ask about trains."
        ]
        assert events[-1]["type"] == "response.completed"
    assert len(model.seen) == before


@pytest.mark.parametrize(("given", "named"), [("\ud800", "\ud800"), (["m"], ""), (None, "")])
def test_any_name_of_a_model_gets_a_refusal(served: Served, upstream: str, given: Any, named: str) -> None:
    body = json.dumps(ask(FOREIGN_TEXT) | {"model": given})  # half a surrogate pair is valid JSON
    with run_proxy(served, upstream, refusal_text="Ask about trains.") as proxy:
        answer = proxy.client.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        assert json.loads(answer.text)["model"] == named


def test_in_shadow_mode_everything_passes_with_a_tag(served: Served, upstream: str) -> None:
    with run_proxy(served, upstream, settings={"shadow": True}) as proxy:
        answer = proxy.client.post(CHAT, json=ask(FOREIGN_TEXT))
        assert answer.status_code == 200
        assert answer.headers["x-apood-decision"] == "OOD" and answer.headers["x-apood-shadow"] == "true"
        assert 'apood_texts_total{decision="OOD"} 1.0' in proxy.client.get("/metrics").text
        assert f'apood_requests_total{{route="{CHAT}",status="200"}} 1.0' in proxy.client.get("/metrics").text
        counts = proxy.client.get("/v1/shadow").json()
        assert counts["ood"] == 1 and counts["drift"]["inputs"] == 1 and counts["drift"]["alarm"] == 0


def test_in_shadow_mode_what_cannot_be_judged_passes_and_is_counted(served: Served, upstream: str) -> None:
    class Broken(Served):
        def run_texts(self, pieces: Any) -> Any:
            if len(pieces) == 1 and len(pieces[0].ids) == 3:  # not the warm-up
                raise RuntimeError
            return super().run_texts(pieces)

    broken = Broken(served.detector, served.encoder, served.digest)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    system = [{"role": "system", "content": "rules"}]
    with run_proxy(broken, upstream, settings={"shadow": True, "most_text_tokens": 30}) as proxy:
        for path, body, problem in [
            (CHAT, {"messages": image}, "unjudged"),
            (CHAT, {"messages": system}, "unjudged"),
            (CHAT, ask("word1 " * 40), "too_large"),
            (CHAT, ask("word1"), "internal"),
            (TEXT, {"prompt": [1, 2]}, "bad_request"),
        ]:
            answer = proxy.client.post(path, json=body)
            assert answer.status_code == 200 and answer.headers["x-apood-decision"] == "none"
            assert answer.headers["x-apood-problem"] == problem
        assert "apood_unjudged_total 5.0" in proxy.client.get("/metrics").text
        assert proxy.client.post(CHAT, json=[]).status_code == 400  # it cannot be read


def test_an_answer_names_the_detector_that_judged_it_also_during_a_swap(served: Served, upstream: str) -> None:
    entered, free = threading.Event(), threading.Event()

    class Old(Served):
        def prepare_texts(self, texts: Any) -> Any:
            if texts == [KNOWN_TEXT]:
                entered.set()
                assert free.wait(20)
            return super().prepare_texts(texts)

    turns = iter([Old(served.detector, served.encoder, "old"), Served(served.detector, served.encoder, "new")])
    service = Service(lambda: next(turns), Settings())
    app = make_proxy(service, Upstream(upstream, 30), Rules())
    with run_app(app, service) as proxy, ThreadPoolExecutor(1) as pool:
        wait_until(lambda: proxy.client.get("/readyz").status_code == 204)
        asked = pool.submit(proxy.client.post, CHAT, json=ask(KNOWN_TEXT))
        assert entered.wait(20)
        assert asyncio.run_coroutine_threadsafe(service.reload(), proxy.loop).result(20)
        free.set()
        assert asked.result().headers["x-apood-detector"] == "old"
        assert proxy.client.post(CHAT, json=ask(KNOWN_TEXT)).headers["x-apood-detector"] == "new"


def test_an_upstream_that_is_dead_or_slow_is_named(served: Served, upstream: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        with run_proxy(served, f"http://127.0.0.1:{taken.getsockname()[1]}") as proxy:
            answer = proxy.client.post(CHAT, json=ask(KNOWN_TEXT))
            assert answer.status_code == 502 and answer.json()["error"]["code"] == "upstream_failed"
            assert proxy.client.post(CHAT, json=ask(FOREIGN_TEXT)).status_code == 400
    with run_proxy(served, upstream, seconds=0.2) as proxy:
        assert proxy.client.post(CHAT, json=ask(KNOWN_TEXT, model="slow")).status_code == 504
        assert proxy.client.post(CHAT, json=ask(KNOWN_TEXT)).status_code == 200


def test_an_answer_that_ends_too_early_is_cut_and_no_error_of_the_proxy(served: Served) -> None:
    import httpx2

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def answer_in_part() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

        pool.submit(answer_in_part)
        with run_proxy(served, f"http://127.0.0.1:{listening.getsockname()[1]}") as proxy:
            with pytest.raises(httpx2.RemoteProtocolError):
                proxy.client.post(CHAT, json=ask(KNOWN_TEXT))
            metrics = proxy.client.get("/metrics").text
            assert "apood_upstream_failures_total 1.0" in metrics and "apood_errors_total 0.0" in metrics


def test_no_request_meets_a_connection_that_the_upstream_server_is_closing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(listening: socket.socket) -> None:
        """Answer one request per connection, and close it when another one comes, as a server that has waited does."""
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                while not connection.recv(65536).endswith(b"}"):  # the body may come after the headers
                    pass
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                connection.recv(65536)

    waited, read = 0.0, list[float]()

    def read_clock() -> float:
        read.append(time.monotonic() + waited)
        return read[-1]

    # the clock by which the proxy drops idle connections
    monkeypatch.setattr("httpcore2._async.http11.time", SimpleNamespace(monotonic=read_clock))
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        listening.settimeout(20)
        pool.submit(answer, listening)
        with run_proxy(served, f"http://127.0.0.1:{listening.getsockname()[1]}") as proxy:
            assert proxy.client.post(CHAT, json=ask(KNOWN_TEXT)).status_code == 200
            wait_until(lambda: read)  # at the end of the answer, which the client may have before
            waited = 4  # seconds; model servers close a connection after 5
            assert proxy.client.post(CHAT, json=ask(KNOWN_TEXT)).status_code == 200


class Signalled(NamedTuple):
    """A server in a thread that gets signals: a client for it, its address, its end, and what a signal calls."""

    client: Any
    url: str
    end: Future[None]
    send: Callable[[int], None]


@pytest.fixture
def signalled(served: Served, upstream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Signalled]:
    import httpx2

    handlers: dict[int, Callable[[], Any]] = {}

    def keep(loop: asyncio.AbstractEventLoop, number: int, call: Callable[[], None]) -> None:
        handlers[number] = lambda: loop.call_soon_threadsafe(call)  # signals reach the main thread only

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", keep)
    monkeypatch.setattr("apood.serving.http.server._SPARE", 0)
    service = Service(lambda: served, Settings())
    app, found = make_proxy(service, Upstream(upstream, 30), Rules()), []
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(run_server, app, service, "127.0.0.1", 0, longest=30, report=found.append)
        wait_until(lambda: found)
        with httpx2.Client(base_url=found[0], timeout=30) as client:
            wait_until(lambda: client.get("/readyz").status_code == 204)
            yield Signalled(client, found[0], end, lambda number: handlers[number]())
        end.result(20)


def test_idle_connections_stay_open_for_longer_than_a_reverse_proxy_keeps_them(
    signalled: Signalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    kept, respond = [], H11Protocol.on_response_complete
    monkeypatch.setattr(
        H11Protocol, "on_response_complete", lambda self: (kept.append(self.timeout_keep_alive), respond(self))
    )
    assert signalled.client.get("/healthz").status_code == 204
    signalled.send(signal.SIGTERM)
    assert min(kept) > 60


def test_sigterm_lets_a_stream_end(signalled: Signalled, model: Model) -> None:
    model.free.clear()
    with signalled.client.stream("POST", CHAT, json=ask(KNOWN_TEXT, stream=True)) as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b'data: {"n": 1}\n\n'
        signalled.send(signal.SIGTERM)
        wait_until(lambda: refuses_connections(signalled.url))
        assert not signalled.end.done()
        model.free.set()
        assert b"".join(chunks).endswith(b"data: [DONE]\n\n")


def test_a_second_ctrl_c_does_not_wait_for_a_stream(signalled: Signalled, model: Model) -> None:
    import httpx2

    model.free.clear()
    with signalled.client.stream("POST", CHAT, json=ask(KNOWN_TEXT, stream=True)) as answer:
        chunks = answer.iter_raw()
        assert next(chunks) == b'data: {"n": 1}\n\n'
        for _ in range(2):
            signalled.send(signal.SIGINT)
        signalled.end.result(20)
        with pytest.raises(httpx2.TransportError):
            next(chunks)
    model.free.set()


def test_a_connection_of_the_last_moment_does_not_keep_the_server_from_ending(
    signalled: Signalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2
    from uvicorn.protocols.http.h11_impl import H11Protocol

    close, missed = H11Protocol.shutdown, []

    def miss_once(connection: H11Protocol) -> None:
        if connection in missed:
            close(connection)
        missed.append(connection)

    monkeypatch.setattr(H11Protocol, "shutdown", miss_once)
    statuses = [signalled.client.post(CHAT, json=ask(KNOWN_TEXT)).status_code]
    signalled.send(signal.SIGTERM)
    with pytest.raises(httpx2.TransportError):  # the connection is closed between two requests
        while True:
            statuses.append(signalled.client.post(CHAT, json=ask(KNOWN_TEXT)).status_code)
    assert set(statuses) == {200} and missed
    signalled.end.result(20)


def refuses_connections(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as trying:
        return trying.connect_ex((host, int(port))) != 0


def test_what_cannot_be_judged_is_refused_unless_the_operator_accepts_it(served: Served, upstream: str) -> None:
    class Broken(Served):
        def run_texts(self, pieces: Any) -> Any:
            if len(pieces) == 1 and len(pieces[0].ids) < 24:  # not the warm-up
                raise RuntimeError
            return super().run_texts(pieces)

    broken = Broken(served.detector, served.encoder, served.digest)
    with run_proxy(broken, upstream) as proxy:
        answer = proxy.client.post(CHAT, json=ask(KNOWN_TEXT))
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    with run_proxy(broken, upstream, settings={"on_error": "accept"}) as proxy:
        answer = proxy.client.post(CHAT, json=ask(KNOWN_TEXT))
        assert answer.status_code == 200 and answer.headers["x-apood-decision"] == "none"
        assert answer.headers["x-apood-problem"] == "internal"


def test_the_list_of_models_passes(proxy: Running, model: Model) -> None:
    assert proxy.client.get("/v1/models").content == b'{"odd":  "spacing"}'
    assert proxy.client.get("/v1/models/a/b").status_code == 200
    assert model.seen[-1][0] == "/v1/models/a/b?"


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://host", "http://", "http://a:b@host", "http://host?x=1"])
def test_an_upstream_must_be_a_plain_url(url: str) -> None:
    with pytest.raises(InputError, match="--upstream must be a URL"):
        check_upstream(url)
    assert check_upstream("https://host/base/v1/") == "https://host/base"
