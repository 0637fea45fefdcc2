"""The generic guardrail of LiteLLM: its proxy asks before a call whether the input may pass."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from apood.data.conversations import Chat, OtherParts, choose_text, read_messages
from apood.pipeline.judging import Judgement
from apood.serving.http.bodies import read_json, work_on
from apood.serving.http.errors import HttpError
from apood.serving.http.requests import run_unless_gone
from apood.serving.http.service import Service

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["GUARDRAIL_PATH", "answer_guardrail"]

GUARDRAIL_PATH = "/beta/litellm_basic_guardrail_api"
"""The path that LiteLLM asks."""


async def answer_guardrail(request: "Request", service: Service, other_parts: OtherParts) -> dict[str, Any]:
    """Return whether a call of LiteLLM may pass: the action NONE, or BLOCKED with the reason.

    Outputs are not judged: their answer is NONE. What cannot be judged is blocked, except in shadow mode.
    """
    end = service.set_deadline()
    body, asked = await read_json(request, service.settings.most_bytes, end)
    if asked.get("input_type") not in ("request", "response"):
        raise HttpError(422, "input_type must be request or response.")
    if asked["input_type"] == "response":
        return {"action": "NONE"}
    served = service.served

    async def judge() -> list[Judgement]:
        texts = await work_on(body, lambda: _find_texts(asked, served.chat, other_parts))
        return await service.judge_texts(served, texts, end)

    try:
        outcome = await run_unless_gone(request, service.decide(served, judge()))
    except HttpError as error:
        if error.status != 400:
            raise
        return {"action": "BLOCKED", "blocked_reason": error.message}
    if outcome.accepted:
        return {"action": "NONE"}
    return {"action": "BLOCKED", "blocked_reason": outcome.describe_refusal()}


def _find_texts(body: Mapping[str, Any], chat: Chat, other_parts: OtherParts) -> list[str]:
    messages, texts = body.get("structured_messages"), body.get("texts")
    if messages:
        return [choose_text(read_messages(messages), chat, other_parts)]
    if body.get("images") and other_parts == "refuse":
        raise HttpError(400, "The request has images, and only texts can be judged.")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise HttpError(400, "The request has no text, so there is nothing to judge.")
    return texts
