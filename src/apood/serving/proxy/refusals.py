"""A refusal in the form of an ordinary completion, for each endpoint of the OpenAI protocol that is judged."""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["ENDPOINTS", "Completion", "make_completion", "stream_completion"]

Completion = Mapping[str, Any]


def make_completion(path: str, model: Any, text: str) -> Completion:
    """Return an ordinary completion of the endpoint `path` that says `text`, as JSON."""
    return ENDPOINTS[path][0](model if isinstance(model, str) else "", text)


def stream_completion(path: str, completion: Completion) -> Iterator[bytes]:
    """Yield a completion as the server-sent events of its endpoint."""
    yield from ENDPOINTS[path][1](completion)


def _identify(prefix: str) -> str:
    return f"{prefix}-apood-{uuid.uuid4().hex}"


def _make_chat(model: str, text: str) -> Completion:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": _identify("chatcmpl"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _stream_chat(completion: Completion) -> Iterator[bytes]:
    shared = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    text = completion["choices"][0]["message"]["content"]
    for delta, reason in (({"role": "assistant", "content": ""}, None), ({"content": text}, None), ({}, "stop")):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        yield _format_event({**shared, "choices": [choice]})
    yield b"data: [DONE]\n\n"


def _make_text(model: str, text: str) -> Completion:
    return {
        "id": _identify("cmpl"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _stream_text(completion: Completion) -> Iterator[bytes]:
    yield _format_event({key: value for key, value in completion.items() if key != "usage"})
    yield b"data: [DONE]\n\n"


def _make_response(model: str, text: str) -> Completion:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": _identify("msg"), "status": "completed", "role": "assistant", "content": [part]}
    return {
        "id": _identify("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [item],
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "none",
        "tools": [],
        "top_p": None,
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }


def _stream_response(completion: Completion) -> Iterator[bytes]:
    (item,) = completion["output"]
    (part,) = item["content"]
    started = {**completion, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**place, "delta": part["text"], "logprobs": []}),
        ("response.output_text.done", {**place, "text": part["text"], "logprobs": []}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": completion}),
    ]
    for number, (kind, content) in enumerate(events):
        yield b"event: " + kind.encode() + b"\n" + _format_event({"type": kind, "sequence_number": number, **content})


def _format_event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


ENDPOINTS: dict[str, tuple[Callable[[str, str], Completion], Callable[[Completion], Iterator[bytes]]]] = {
    "/v1/chat/completions": (_make_chat, _stream_chat),
    "/v1/completions": (_make_text, _stream_text),
    "/v1/responses": (_make_response, _stream_response),
}
"""The endpoints whose inputs are judged."""
