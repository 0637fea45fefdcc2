"""Tokens from a model server, by the documented contract of each kind of server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from http_server import FOREIGN, KNOWN, make_texts, run_service
from model_server import ModelServer, serve_model
from tiny_models import save_model

import apood
from apood import KNN, RemoteEncoder, TextDetector, TextEncoder
from apood.cli.app import app
from apood.encoders.remote import client
from apood.serving.http.served import load_served
from apood.support.errors import InputError, ServerError

DIALECTS = ("llama", "vllm", "tei")
LONG = " ".join(KNOWN * 20)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    folder = tmp_path_factory.mktemp("model") / "bert"
    save_model("bert", folder)
    return TextEncoder(folder, layers=-1, max_tokens=24)


@pytest.fixture
def server(local: TextEncoder) -> ModelServer:
    return ModelServer(local, "llama")


@pytest.fixture
def address(server: ModelServer) -> Iterator[str]:
    with serve_model(server) as found:
        yield found


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.001)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("on_long", ["windows", "beginning"])
def test_tokens_are_those_of_the_model(tmp_path: Path, local: TextEncoder, dialect: str, on_long: str) -> None:
    save_model("bert", tmp_path / "bert")
    own = TextEncoder(tmp_path / "bert", layers=-1, max_tokens=24, on_long=on_long)
    texts = [*make_texts(9, KNOWN, 3), LONG, ""]
    with serve_model(ModelServer(local, dialect)) as address:
        encoder = RemoteEncoder(address, max_tokens=24, on_long=on_long)
        expected, found = own.encode(texts), encoder.encode(texts)
    assert found.offsets.tolist() == expected.offsets.tolist()
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-5)
    for name in found.channels:
        assert torch.equal(found.channels[name].values, expected.channels[name].values), name
    assert encoder.truncated == own.truncated


def test_a_text_of_too_many_tokens_is_refused_before_it_is_sent(address: str) -> None:
    encoder = RemoteEncoder(address, max_tokens=24, on_long="refuse")
    with pytest.raises(InputError, match=r"The text at index 1 has 122 tokens, .* more than max_tokens=24 is refused"):
        encoder.encode(["a", LONG])


def test_a_server_that_takes_shorter_texts_is_refused_at_once(server: ModelServer, address: str) -> None:
    server.limit = 20
    with pytest.raises(ServerError, match=r"does not take texts of 24 tokens .*too large.*: give a smaller max_tokens"):
        RemoteEncoder(address, max_tokens=24)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.mean(0, keepdim=True), r"gives 1x\d+ numbers for a text of \d+ tokens.*--pooling none"),
        (lambda rows: rows.mean(0), "not one vector per token"),
        (lambda rows: torch.full_like(rows, float("nan")), "numbers that are not finite"),
    ],
)
def test_answers_that_are_no_tokens_are_refused(server: ModelServer, address: str, change, problem: str) -> None:
    server.change = change
    with pytest.raises(ServerError, match=problem):
        RemoteEncoder(address)


def test_another_dimension_later_is_refused(server: ModelServer, address: str) -> None:
    encoder = RemoteEncoder(address)
    server.change = lambda rows: rows[:, :-1]
    with pytest.raises(ServerError, match=r"gives tokens of D=\d+, and gave D=\d+ before"):
        encoder.encode(["a"])


def test_a_busy_server_is_asked_again(server: ModelServer, address: str) -> None:
    server.busy = 3
    assert RemoteEncoder(address).dim
    server.busy = 4
    with pytest.raises(ServerError, match="status 503"):
        RemoteEncoder(address).encode(["a"])


def test_a_server_that_is_down_is_named() -> None:
    with pytest.raises(ServerError, match=r"The server http://127.0.0.1:1 did not answer .* start it"):
        RemoteEncoder("http://127.0.0.1:1")


def test_the_key_is_read_from_the_environment(
    server: ModelServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "a key of the server"
    with pytest.raises(ServerError, match="APOOD_SERVER_KEY"):
        RemoteEncoder(address)
    monkeypatch.setenv("APOOD_SERVER_KEY", server.key)
    assert RemoteEncoder(address).dim


@pytest.mark.parametrize("address", ["http://", "http://user:key@127.0.0.1", "http://127.0.0.1:x", "http://a?b=c"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match="A server has an address such as"):
        RemoteEncoder(address)


def test_other_servers_are_refused(local: TextEncoder) -> None:
    other = ModelServer(local, "llama")
    other.answer = lambda _path, _body: (200, {"data": []})  # type: ignore[method-assign]
    with serve_model(other) as address, pytest.raises(ServerError, match="none of those that give tokens"):
        RemoteEncoder(address)


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("/tokenize", {"ids": [1]}, "in an unknown form"),
        ("/tokenize", {"tokens": [{"piece": "a"}]}, "in an unknown form"),
        ("/tokenize", {"tokens": [1 << 40]}, "in an unknown form"),
        ("/tokenize", {"tokens": []}, "gives no tokens for a text that has some"),
        ("/embeddings", {"object": "list", "data": []}, "in an unknown form"),
        ("/embeddings", [{"index": 0}] * 4, "in an unknown form"),
        ("/embeddings", [{"index": 0, "embedding": [[10**400]]}] * 4, "gives 0 numbers for a text of"),
    ],
)
def test_answers_of_another_form_are_refused(local: TextEncoder, path: str, content: Any, problem: str) -> None:
    odd = ModelServer(local, "llama")
    usual = odd.answer
    odd.answer = lambda asked, body: (200, content) if asked == path else usual(asked, body)  # type: ignore[method-assign]
    with serve_model(odd) as address, pytest.raises(ServerError, match=rf"{problem}.*: start llama-server with"):
        RemoteEncoder(address)


def test_there_is_one_layer(address: str) -> None:
    with pytest.raises(InputError, match="a server gives the states of one layer, the last one"):
        RemoteEncoder(address, layers="mix")


@pytest.fixture
def detector(address: str, tmp_path: Path) -> Path:
    found = TextDetector(RemoteEncoder(address, max_tokens=24), KNN(k=3), accept=0.9).fit(make_texts(100, KNOWN, 1))
    found.save(tmp_path / "detector")
    return tmp_path / "detector"


def test_a_saved_detector_asks_no_server_by_itself(
    local: TextEncoder, server: ModelServer, address: str, detector: Path
) -> None:
    assert address.rpartition(":")[2] not in (detector / "config.json").read_text()
    server.requests.clear()
    with pytest.raises(InputError, match="asks no server by itself: give the address of the server with model="):
        apood.load(detector).predict(["a"])
    assert not server.requests
    texts = [*make_texts(5, KNOWN, 5), " ".join(FOREIGN * 2), LONG]
    expected = TextDetector(local, KNN(k=3), accept=0.9).fit(make_texts(100, KNOWN, 1)).score_samples(texts)
    np.testing.assert_allclose(apood.load(detector, model=address).score_samples(texts), expected, rtol=1e-3)


@pytest.mark.parametrize("dialect", ["vllm", "tei"])
def test_the_same_model_behind_another_server_is_the_same_encoder(
    local: TextEncoder, detector: Path, dialect: str
) -> None:
    with serve_model(ModelServer(local, dialect)) as other:
        assert apood.load(detector, model=other).predict([KNOWN[0]]).shape == (1,)


def test_a_server_with_other_tokens_is_refused_with_the_difference(
    server: ModelServer, address: str, detector: Path
) -> None:
    server.change = lambda rows: 1.01 * rows
    apood.load(detector, model=address).predict(["a"])
    server.change = lambda rows: 1.1 * rows
    with pytest.raises(InputError, match=r"the tokens of fixed texts differ by 9.1%, more than 2%"):
        apood.load(detector, model=address).predict(["a"])


def test_a_damaged_probe_is_another_one(address: str, detector: Path) -> None:
    loaded = apood.load(detector, model=address)
    loaded.detector.encoder_["probe"] = "no numbers"
    with pytest.raises(InputError, match="fixed texts have other tokens"):
        loaded.predict(["a"])


def test_detectors_of_a_model_here_take_no_server(local: TextEncoder, address: str, tmp_path: Path) -> None:
    mixed = TextEncoder(str(local.identity["folder"]), max_tokens=24)
    for encoder, problem in ((mixed, "made of the layers mix, and a server gives"), (local, "cannot be compared")):
        TextDetector(encoder, KNN(k=3), accept=0.9).fit(make_texts(100, KNOWN, 1)).save(tmp_path / problem[:4])
        with pytest.raises(InputError, match=problem):
            apood.load(tmp_path / problem[:4], model=address).predict(["a"])


def test_a_detector_of_a_server_takes_no_folder(local: TextEncoder, detector: Path) -> None:
    with pytest.raises(InputError, match="give the address of the server"):
        apood.load(detector, model=str(local.identity["folder"])).predict(["a"])


def test_commands_take_an_address(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, store, built = tmp_path / "texts.txt", str(tmp_path / "store"), str(tmp_path / "built")
    texts.write_text("\n".join(make_texts(120, KNOWN, 7)), encoding="utf-8")
    for command in (
        ["embed", str(texts), "--model", address, "--max-tokens", "24", "--out", store],
        ["build", str(texts), "--model", address, "--out", built, "--method", "knn"],
        ["score", built, str(texts), "--model", address],
    ):
        with pytest.raises(SystemExit) as ended:
            app(command, standalone_mode=False)
        assert not ended.value.code
    assert "Embedded 120" in capsys.readouterr().out


def test_the_service_answers_and_says_if_the_server_is_gone(server: ModelServer, address: str, detector: Path) -> None:
    served = load_served(detector, model=address)
    known = make_texts(1, KNOWN, 5)[0]
    expected = apood.load(detector, model=address).score_samples([known, LONG])
    with run_service(served) as running:
        results = running.client.post("/v1/score", json={"texts": [known, LONG]}).json()["results"]
        np.testing.assert_allclose([result["score"] for result in results], expected, rtol=1e-3)
        assert results[1]["windows"] > 1
        server.busy = 10**6
        gone = running.client.post("/v1/score", json={"text": known})
        assert gone.status_code == 503 and gone.json()["error"]["code"] == "no_tokens"
        assert address not in gone.text


@pytest.mark.parametrize(
    ("dialect", "path", "content", "problem"),
    [
        ("tei", "/tokenize", [[{"id": 5}]] * 2, "answers 1 texts by 2"),
        ("tei", "/embed_all", 5, "in an unknown form"),
    ],
)
def test_answers_of_another_number_are_refused(
    local: TextEncoder, dialect: str, path: str, content: Any, problem: str
) -> None:
    odd = ModelServer(local, dialect)
    usual = odd.answer
    odd.answer = lambda asked, body: (200, content) if asked == path else usual(asked, body)  # type: ignore[method-assign]
    with serve_model(odd) as address, pytest.raises(ServerError, match=problem):
        RemoteEncoder(address)


def test_a_limit_that_is_no_number_is_none(local: TextEncoder) -> None:
    odd = ModelServer(local, "llama")
    usual = odd.answer
    models = {"data": [{"id": "tiny", "owned_by": "llamacpp", "meta": ["n_ctx"]}]}
    odd.answer = lambda asked, body: (200, models) if asked == "/v1/models" else usual(asked, body)  # type: ignore[method-assign]
    with serve_model(odd) as address:
        assert RemoteEncoder(address, max_tokens=24).max_tokens == 24
