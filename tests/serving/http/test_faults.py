"""Whatever goes wrong has its status code and one sentence, and nothing is lost or stuck."""

import asyncio
import gzip
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from http_server import FOREIGN, KNOWN, Running, make_texts, run_app, run_service, wait_until
from safetensors.torch import save

from apood import MSP, TokenBatch
from apood.serving.http.access import check_exposure, read_tokens
from apood.serving.http.app import make_app
from apood.serving.http.batcher import LateError
from apood.serving.http.served import Scored, Served, load_served
from apood.serving.http.server import run_server
from apood.serving.http.service import Service
from apood.serving.http.settings import Settings
from apood.support.errors import ApoodError, InputError
from apood.tokens.batch import Ragged

SAFETENSORS = {"content-type": "application/vnd.safetensors"}
JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
TOKEN = "a-token-of-the-tests"


def error_of(answer: Any, status: int) -> str:
    """Return the sentence of an error, which must have this status."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith(".") and "\n" not in error["message"]
    return str(error["message"])


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b'{"text": "\xff"}', 400, "not UTF-8: byte 10"),
        (b'{"text": NaN}', 400, "NaN is not a JSON number"),
        (b'{"text": "a", "text": "b"}', 400, "same name twice"),
        (b'{"text": "a", "Text": "b"}', 400, "same name twice"),
        (b'{"text": [' + b"[]," * 300_000 + b"[]]}", 400, "more than 250,000 brackets"),
        (b'{"text": ' + b"9" * 5000 + b"}", 400, "thousands of digits"),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "nested too deeply"),
        (b'{"text": ' + b"[" * 70 + b"]" * 70 + b"}", 400, "nested too deeply"),
        (b'{"text": 1}', 422, "index 0"),
        (b'{"texts": "a"}', 422, "list of at least one"),
        (b'{"texts": []}', 422, "list of at least one"),
        (b'{"texts": ["a", null]}', 422, "index 1"),
        (b'{"text": "a", "texts": ["a"]}', 422, "nothing else"),
        (b'{"prompt": "a"}', 422, "nothing else"),
    ],
)
def test_bodies_that_cannot_be_read(server: Running, body: bytes, status: int, sentence: str) -> None:
    assert sentence in error_of(server.client.post("/v1/score", content=body, headers=JSON), status)


def test_other_types_and_encodings_are_refused(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = server.client.post("/v1/score", content=b"{}", headers={"content-type": kind})
        assert "content type" in error_of(answer, 415)
    packed = gzip.compress(b'{"text": "a"}')
    answer = server.client.post("/v1/score", content=packed, headers={**JSON, "content-encoding": "gzip"})
    assert "compressed" in error_of(answer, 415)


def test_unknown_paths_and_methods(server: Running) -> None:
    assert "no such path" in error_of(server.client.get("/v1/nothing"), 404)
    assert "method" in error_of(server.client.get("/v1/score"), 405)


def test_token_arrays_that_cannot_be_scored(server: Running) -> None:
    good, offsets = torch.ones(4, 16), torch.tensor([0, 4])
    broken = good.clone()
    broken[2, 3] = torch.nan
    cases = [
        (save({"values": broken, "offsets": offsets}), "Token 2 of sequence 0"),
        (save({"values": torch.ones(4, 3), "offsets": offsets}), "D=3"),
        (save({"values": good, "offsets": torch.tensor([0, 9])}), "offsets must rise"),
        (save({"values": good}), "must have the tensors"),
        (save({"values": good, "offsets": offsets, "extra": torch.ones(1)}), "must have the tensors"),
        (save({"values": good, "offsets": offsets})[:-7], "not a safetensors file"),
        (save({"values": torch.ones(0, 16), "offsets": torch.zeros(1, dtype=torch.int64)}), "no sequences"),
        (b"nothing", "not a safetensors file"),
        (b"\xff" * 64, "not a safetensors file"),
    ]
    for body, sentence in cases:
        assert sentence in error_of(server.client.post("/v1/score", content=body, headers=SAFETENSORS), 422)


def test_limits_on_bodies_texts_and_tokens(served: Served) -> None:
    with run_service(served, most_bytes=1000, most_texts=3, most_text_tokens=30, most_tokens=60) as server:
        large = json.dumps({"text": "word1 " * 200}).encode()
        assert "1,000 bytes" in error_of(server.client.post("/v1/score", content=large, headers=JSON), 413)
        chunks = (large[start : start + 100] for start in range(0, len(large), 100))
        assert "1,000 bytes" in error_of(server.client.post("/v1/score", content=chunks, headers=JSON), 413)
        assert "4 texts" in error_of(server.client.post("/v1/score", json={"texts": ["word1"] * 4}), 413)
        assert "index 1" in error_of(server.client.post("/v1/score", json={"texts": ["word1", "word1 " * 40]}), 413)
        assert "at most 60" in error_of(server.client.post("/v1/score", json={"texts": ["word1 " * 20] * 3}), 413)
        body = save({"values": torch.ones(4, 16), "offsets": torch.arange(5)})
        assert "4 sequences" in error_of(server.client.post("/v1/score", content=body, headers=SAFETENSORS), 413)
        assert "961 characters" in error_of(server.client.post("/v1/score", json={"text": "a" * 961}), 413)
        assert server.client.post("/v1/score", json={"text": "word1"}).status_code == 200


def test_too_many_sequences_are_refused_before_they_are_prepared(served: Served) -> None:
    class Unprepared(Served):
        def prepare_tokens(self, _batch: Any) -> Any:
            raise AssertionError

    values, count = torch.ones(0, 16), 30_000
    offsets = torch.zeros(count + 1, dtype=torch.int64)
    windows = {"channel.window.values": torch.arange(count), "channel.window.offsets": torch.arange(count + 1)}
    with run_service(Unprepared(served.detector, served.encoder, served.digest)) as server:
        body = save({"values": values, "offsets": offsets})
        assert "30,000 sequences" in error_of(server.client.post("/v1/score", content=body, headers=SAFETENSORS), 413)
        body = save({"values": values, "offsets": offsets, **windows})
        assert "30,000 windows" in error_of(server.client.post("/v1/score", content=body, headers=SAFETENSORS), 413)


def send_raw(server: Running, content: bytes) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(content)
    return connection


def test_a_body_that_comes_too_slowly(served: Served) -> None:
    with run_service(served, deadline=0.3) as server:
        with send_raw(server, HEAD + b"content-length: 99\r\n\r\n{") as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert server.client.post("/v1/score", json={"text": "word1"}).status_code == 200


class Held(Served):
    """What waits before every batch after the warm-up until it is freed, and fails at the text of one unknown word."""

    def __init__(self, served: Served) -> None:
        super().__init__(served.detector, served.encoder, served.digest, served.facts)
        self.free = threading.Event()
        self.free.set()
        self.ran: list[int] = []

    def run_texts(self, pieces: Sequence[Any]) -> list[Scored]:
        assert self.free.wait(20)
        self.ran.append(len(pieces))
        if any(len(piece.ids) == 3 and int(piece.ids[1]) == 1 for piece in pieces):  # [A] [UNK] [B]
            raise RuntimeError("a message that quotes secret-input")
        return super().run_texts(pieces)


@pytest.fixture
def held(served: Served) -> Iterator[Held]:
    found = Held(served)
    yield found
    found.free.set()


def hold(server: Running, held: Held, pool: ThreadPoolExecutor) -> Any:
    """Occupy the worker with one request, and return the future of its answer."""
    held.free.clear()
    first = pool.submit(server.client.post, "/v1/score", json={"text": "word1 word2"})
    wait_until(lambda: server.service.in_flight == 4)
    return first


def test_a_missed_deadline_is_504_and_its_work_is_dropped(held: Held) -> None:
    with run_service(held, deadline=0.5) as server, ThreadPoolExecutor(8) as pool:
        first = hold(server, held, pool)
        before = len(held.ran)
        late = [pool.submit(server.client.post, "/v1/score", json={"text": "word3"}) for _ in range(3)]
        for answer in [first, *late]:
            assert "deadline" in error_of(answer.result(), 504)
        held.free.set()
        wait_until(lambda: server.service.in_flight == 0)
        assert server.client.post("/v1/score", json={"text": "word1"}).status_code == 200
        assert held.ran[before:] == [1, 1]  # the batch that was running, and the request after it


@pytest.mark.parametrize("texts", [["word1 " * 12], ["word1"] * 5])
def test_a_full_service_answers_429(held: Held, texts: list[str]) -> None:
    with run_service(held, most_tokens=16) as server, ThreadPoolExecutor(8) as pool:
        first = hold(server, held, pool)
        answer = server.client.post("/v1/score", json={"texts": texts})
        assert "try again" in error_of(answer, 429) and int(answer.headers["retry-after"]) >= 1
        held.free.set()
        assert first.result().status_code == 200
        assert server.client.post("/v1/score", json={"texts": texts}).status_code == 200


def test_what_waits_to_be_tokenised_counts_as_in_flight(served: Served) -> None:
    free = threading.Event()

    class Slow(Served):
        def prepare_texts(self, texts: Sequence[str]) -> Any:
            assert texts[0] != "word1 word2" or free.wait(20)
            return super().prepare_texts(texts)

    slow = Slow(served.detector, served.encoder, served.digest)
    with run_service(slow, most_tokens=16) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.client.post, "/v1/score", json={"text": "word1 word2"})
        wait_until(lambda: server.service.in_flight > 0)
        error_of(server.client.post("/v1/score", json={"text": "word1 " * 12}), 429)
        free.set()
        assert first.result().status_code == 200
        late = server.service.judge_texts(slow, ["word1"], end=0.0)  # reading the body took all of its time
        with pytest.raises(LateError):
            asyncio.run_coroutine_threadsafe(late, server.loop).result(20)


def test_the_work_of_a_client_that_is_gone_is_dropped(held: Held) -> None:
    body = json.dumps({"texts": ["word1 word2"] * 50}).encode()
    with run_service(held) as server, ThreadPoolExecutor(8) as pool:
        first = hold(server, held, pool)
        before = len(held.ran)
        gone = [send_raw(server, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) for _ in range(5)]
        wait_until(lambda: server.service.in_flight == 4 + 5 * 200)
        for connection in gone:
            connection.close()
        wait_until(lambda: server.service.in_flight == 4)
        held.free.set()
        assert first.result().status_code == 200
        assert server.client.post("/v1/score", json={"text": "word1"}).status_code == 200
        assert held.ran[before:] == [1, 1]
        assert 'apood_requests_total{route="/v1/score",status="499"} 5.0' in server.client.get("/metrics").text


@pytest.mark.parametrize(("given", "logged"), [(f"00-{'4b' * 16}-{'0a' * 8}-01", "4b" * 16), ("secret-trace", None)])
def test_the_trace_of_a_request_that_fails_is_logged(
    held: Held, caplog: pytest.LogCaptureFixture, given: str, logged: str | None
) -> None:
    held.free.set()
    with run_service(held) as server, caplog.at_level(logging.INFO):
        answer = server.client.post("/v1/score", json={"text": "unheard-of"}, headers={"traceparent": given})
        assert answer.status_code == 500
        assert (f"(trace {logged})" in caplog.text) == (logged is not None) and "secret-trace" not in caplog.text


def test_an_error_of_the_model_is_500_for_its_request_alone_and_quotes_nothing(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    with run_service(held) as server, ThreadPoolExecutor(8) as pool, caplog.at_level(logging.INFO):
        first = hold(server, held, pool)
        bad = pool.submit(server.client.post, "/v1/score", json={"text": "unheard-of"})
        good = pool.submit(server.client.post, "/v1/score", json={"text": "word1"})
        wait_until(lambda: server.service.in_flight == 10)
        held.free.set()
        assert first.result().status_code == good.result().status_code == 200
        assert "secret-input" not in error_of(bad.result(), 500)
        assert "RuntimeError" in caplog.text
        assert "secret-input" not in caplog.text and "unheard-of" not in caplog.text
        assert "apood_errors_total 1.0" in server.client.get("/metrics").text


def test_with_on_error_accept_what_cannot_be_judged_passes_and_says_so(held: Held) -> None:
    with run_service(held, on_error="accept", most_tokens=16) as server, ThreadPoolExecutor(8) as pool:
        answer = server.client.post("/v1/score", json={"text": "unheard-of"})
        assert answer.status_code == 200 and answer.json()["accepted"] and answer.json()["results"] == []
        assert "could not be judged" in answer.json()["problem"]
        first = hold(server, held, pool)
        answer = server.client.post("/v1/score", json={"text": "word1 " * 12})
        assert answer.json()["accepted"] and "full" in answer.json()["problem"]
        held.free.set()
        assert first.result().json()["problem"] is None
        answer = server.client.post("/v1/score", json={"text": FOREIGN[0]})
        assert not answer.json()["accepted"] and answer.json()["problem"] is None
        error_of(server.client.post("/v1/score", json={"text": 1}), 422)
        assert "apood_unjudged_total 2.0" in server.client.get("/metrics").text


def test_the_detector_is_replaced_without_losing_a_request(held: Held, detector_folder: Path) -> None:
    fresh = load_served(detector_folder)
    fresh.digest = "fresh"
    turns = iter([held, fresh])

    def load() -> Served:
        found = next(turns, None)
        if found is None:
            raise InputError("There is no third one.")
        return found

    texts = [*make_texts(10, KNOWN, 8), *make_texts(10, FOREIGN, 9)]
    tokens = 4 + sum(len(text.split()) + 2 for text in texts)
    with run_service(load, most_tokens=tokens + 100) as server, ThreadPoolExecutor(32) as pool:
        first = hold(server, held, pool)
        waiting = [pool.submit(server.client.post, "/v1/score", json={"text": text}) for text in texts]
        wait_until(lambda: server.service.in_flight == tokens)
        # There is no room for the warm-up among the requests, and none is needed.
        assert asyncio.run_coroutine_threadsafe(server.service.reload(), server.loop).result(20)
        held.free.set()
        answers = [one.result() for one in (first, *waiting)]
        assert [one.status_code for one in answers] == [200] * 21
        assert {one.json()["detector"] for one in answers} == {held.digest}
        after = server.client.post("/v1/score", json={"texts": texts}).json()
        assert after["detector"] == "fresh"
        assert [own["score"] for own in after["results"]] == pytest.approx(
            [one.json()["results"][0]["score"] for one in answers[1:]], rel=1e-5
        )
        assert not asyncio.run_coroutine_threadsafe(server.service.reload(), server.loop).result(20)
        assert server.client.get("/v1/detector").json()["detector"] == "fresh"
        assert 'apood_reloads_total{outcome="failed"} 1.0' in server.client.get("/metrics").text


def test_before_it_is_ready_the_service_says_so(served: Served) -> None:
    loaded = threading.Event()

    def load() -> Served:
        assert loaded.wait(20)
        return served

    service = Service(load, Settings())
    with run_app(make_app(service, (), local=True), service) as server:
        assert server.client.get("/healthz").status_code == 204
        assert "being loaded" in error_of(server.client.get("/readyz"), 503)
        error_of(server.client.post("/v1/score", json={"text": "word1"}), 503)
        loaded.set()
        wait_until(lambda: server.client.get("/readyz").status_code == 204)


def test_a_failed_start_is_named_and_stops_the_server(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    class Cold(Served):
        def make_warm_up(self) -> Any:
            raise KeyError("logits")

    service = Service(lambda: Cold(served.detector, served.encoder, served.digest), Settings())
    stopped = threading.Event()
    service.on_failure = stopped.set
    with run_app(make_app(service, (), local=True), service) as server:
        assert stopped.wait(20)
        assert "could not be started" in error_of(server.client.get("/readyz"), 503)
        assert "could not be started" in caplog.text and "KeyError" in caplog.text


def test_the_command_ends_with_an_error_if_the_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Served:
        raise InputError("The folder is gone.")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", lambda *_: None)
    service = Service(fail, Settings())
    with pytest.raises(ApoodError, match=r"could not be started: The folder is gone\."):
        run_server(make_app(service, (), local=True), service, "127.0.0.1", 0, longest=1)


def test_a_detector_without_an_encoder_that_reads_a_channel_can_be_served() -> None:
    logits = Ragged.from_lengths(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), [1] * 40)
    batch = TokenBatch.without_tokens(logits=logits)
    detector = MSP().fit(batch).calibrate(batch)
    body = save({"channel.logits.values": logits.values, "channel.logits.offsets": logits.offsets})
    with run_service(Served(detector, None, "logits")) as server:
        answer = server.client.post("/v1/score", content=body, headers=SAFETENSORS)
        assert len(answer.json()["results"]) == 40


def test_tokens_are_required_where_they_are_set(served: Served) -> None:
    with run_service(served, tokens=("another-token-there", TOKEN)) as server:
        for headers in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": f"Basic {TOKEN}"}):
            for path in ("/v1/detector", "/v1/shadow", "/metrics", "/openapi.json"):
                answer = server.client.get(path, headers=headers)
                assert "token is required" in error_of(answer, 401) and answer.headers["www-authenticate"] == "Bearer"
            error_of(server.client.post("/v1/score", json={"text": "a"}, headers=headers), 401)
        for allowed in ({"authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}):
            assert server.client.post("/v1/score", json={"text": "word1"}, headers=allowed).status_code == 200
        assert server.client.get("/healthz").status_code == 204
        named = {"x-api-key": TOKEN, "host": "apood.example"}  # as behind a reverse proxy
        assert server.client.get("/v1/detector", headers=named).status_code == 200


def test_too_many_requests_at_once_are_429_but_the_process_still_says_how_it_is(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apood.serving.http.access._MOST_REQUESTS", 0)
    answer = server.client.get("/v1/detector")
    assert "full" in error_of(answer, 429) and answer.headers["retry-after"] == "1"
    assert server.client.get("/readyz").status_code == 204
    assert server.client.get("/metrics").status_code == 200
    monkeypatch.undo()
    assert server.client.get("/v1/detector").status_code == 200


def test_other_machines_need_a_token() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(InputError, match="access tokens are required"):
            check_exposure(host, ())
        check_exposure(host, (TOKEN,))
    for host in ("127.0.0.1", "::1", "localhost"):
        check_exposure(host, ())
    assert read_tokens(f"{TOKEN}\n\n  {TOKEN}2 \n") == (TOKEN, f"{TOKEN}2")
    with pytest.raises(InputError, match="number 1 has not"):
        read_tokens("short")


def test_a_web_page_cannot_use_the_service_through_a_browser(server: Running) -> None:
    for host in ("attacker.example", "127.0.0.1.attacker.example", ""):
        error_of(server.client.get("/v1/detector", headers={"host": host}), 403)
    for host in ("localhost:1", "LOCALHOST", "127.0.0.2:80", "[::1]:80"):
        assert server.client.get("/v1/detector", headers={"host": host}).status_code == 200
    answer = server.client.options(
        "/v1/score", headers={"origin": "https://attacker.example", "access-control-request-method": "POST"}
    )
    assert answer.status_code == 405
    answer = server.client.get("/v1/detector", headers={"origin": "https://attacker.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.fixture
def process(detector_folder: Path, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """The command itself, in a process of its own, and its address."""
    command = [sys.executable, "-m", "apood", "serve", str(detector_folder), "--port", "0"]
    with (tmp_path / "errors.txt").open("w") as errors:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert " at http://127.0.0.1:" in line, (tmp_path / "errors.txt").read_text()
        yield running, line.split(" at ")[1].strip()
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()


def test_sigterm_under_load_answers_what_was_accepted_and_sighup_reloads(process: tuple[Any, str]) -> None:
    import httpx2

    running, url = process
    texts = [*make_texts(20, KNOWN, 8), *make_texts(20, FOREIGN, 9)]
    with httpx2.Client(base_url=url, timeout=30) as client:
        wait_until(lambda: client.get("/readyz").status_code == 204)
        os.kill(running.pid, signal.SIGHUP)
        wait_until(lambda: 'apood_reloads_total{outcome="done"} 1.0' in client.get("/metrics").text)
    stop = threading.Event()

    def ask_on(number: int) -> list[int]:
        answers = []
        with httpx2.Client(base_url=url, timeout=30) as own:
            while not stop.is_set():
                try:
                    answers.append(own.post("/v1/score", json={"texts": texts[number:]}).status_code)
                except (httpx2.ConnectError, httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError):
                    # The server closed a connection that was idle, or accepts no new one.
                    return answers
        return answers

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_on, number) for number in range(8)]
        time.sleep(0.5)
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(30) == 0
        stop.set()
        answers = [status for one in asking for status in one.result()]
    assert answers and set(answers) <= {200, 429}
