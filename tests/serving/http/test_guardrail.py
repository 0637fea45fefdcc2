"""The answers to LiteLLM: NONE for what may pass, BLOCKED for the rest."""

from typing import Any

from http_server import FOREIGN, KNOWN, Running, run_service

from apood.serving.http.guardrail import GUARDRAIL_PATH
from apood.serving.http.served import Served

KNOWN_TEXT, FOREIGN_TEXT = " ".join(KNOWN * 2), " ".join(FOREIGN * 2)


def ask(server: Running, **body: Any) -> Any:
    answer = server.client.post(GUARDRAIL_PATH, json={"input_type": "request", "request_data": {}, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in zip(("system", "user"), texts, strict=True)]


def test_messages_and_texts_are_judged(server: Running) -> None:
    assert ask(server, structured_messages=chat(FOREIGN_TEXT, KNOWN_TEXT), texts=[FOREIGN_TEXT]) == {"action": "NONE"}
    blocked = ask(server, structured_messages=chat(KNOWN_TEXT, FOREIGN_TEXT))
    assert blocked["action"] == "BLOCKED" and "unlike" in blocked["blocked_reason"]
    assert ask(server, texts=[KNOWN_TEXT])["action"] == "NONE"
    assert ask(server, texts=[KNOWN_TEXT, FOREIGN_TEXT])["action"] == "BLOCKED"


def test_what_cannot_be_judged_is_blocked_and_outputs_pass(server: Running) -> None:
    assert ask(server)["action"] == ask(server, texts=[])["action"] == "BLOCKED"
    assert ask(server, texts=["  "])["action"] == "BLOCKED"
    assert ask(server, texts=[KNOWN_TEXT], images=["data:"])["action"] == "BLOCKED"
    assert ask(server, structured_messages=[{"role": "system", "content": KNOWN_TEXT}])["action"] == "BLOCKED"
    assert ask(server, input_type="response", texts=[FOREIGN_TEXT])["action"] == "NONE"
    assert server.client.post(GUARDRAIL_PATH, json={"texts": [KNOWN_TEXT]}).status_code == 422


def test_in_shadow_mode_nothing_is_blocked(served: Served) -> None:
    with run_service(served, shadow=True) as server:
        assert ask(server, texts=[FOREIGN_TEXT])["action"] == "NONE"
        assert server.client.get("/v1/shadow").json()["ood"] == 1
        assert ask(server)["action"] == ask(server, texts=[KNOWN_TEXT], images=["data:"])["action"] == "NONE"
        assert "apood_unjudged_total 2.0" in server.client.get("/metrics").text
