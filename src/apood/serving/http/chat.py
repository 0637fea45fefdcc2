"""The chat contract: which text of a conversation is judged.

`last-user` judges the last message of the user, `all-user` all messages of the user, and `whole` everything, each
message after its role. A message is its text, or its text parts. Other parts (images, sounds, files) of a judged
message cannot be judged, so the request is refused, unless they are to be ignored. Results of tools and the system
prompt are judged in `whole` only.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from apood.pipeline.facts import Chat
from apood.serving.http.errors import HttpError

__all__ = ["Message", "OtherParts", "choose_text", "read_messages", "read_responses_input"]

OtherParts = Literal["refuse", "ignore"]
"""What becomes of a judged message with parts that are no text."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_NO_TEXT = ("function_call", "reasoning", "item_reference")  # items of OpenAI's responses that are no message


class Message(NamedTuple):
    """One message.

    Attributes:
        role: who wrote it: system, developer, user, assistant, tool.
        text: its text; the text parts of a message with several parts are joined by line breaks.
        others: the types of its parts that are no text.
    """

    role: str
    text: str
    others: tuple[str, ...] = ()


def choose_text(messages: Sequence[Message], chat: Chat, other_parts: OtherParts = "refuse") -> str:
    """Return the text of a conversation that is judged. Raise HttpError if there is none, or if a part has no text."""
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise HttpError(400, "There is no message of the role user, so there is nothing to judge.", code="unjudged")
    judged = {"last-user": users[-1:], "all-user": users, "whole": list(messages)}[chat]
    others = sorted({kind for message in judged for kind in message.others})
    if others and other_parts == "refuse":
        raise HttpError(
            400,
            "A message has a part that is no text, and only texts can be judged: send texts, or ask the operator to "
            "ignore such parts.",
            code="unjudged",
        )
    if chat == "whole":
        return "\n\n".join(f"{message.role}: {message.text}" for message in judged)
    return "\n\n".join(message.text for message in judged)


def read_messages(content: Any) -> list[Message]:
    """Return the messages of a chat completion. Raise HttpError if they have another form."""
    if not isinstance(content, list) or not content:
        raise HttpError(400, "messages must be a list of at least one message.")
    return [_read_message(item, f"messages[{index}]") for index, item in enumerate(content)]


def read_responses_input(body: Mapping[str, Any], chat: Chat) -> list[Message]:
    """Return the messages of a request for OpenAI's responses. Raise HttpError if they have another form.

    A conversation that the server remembers cannot be seen here, so it is allowed only if the last message is enough.
    """
    if body.get("prompt") is not None:
        raise HttpError(400, "prompt names a text that the server keeps, which cannot be judged.", code="unjudged")
    kept = [name for name in ("previous_response_id", "conversation") if body.get(name) is not None]
    if kept and chat != "last-user":
        raise HttpError(
            400, f"{kept[0]} names messages that the server keeps, which cannot be judged.", code="unjudged"
        )
    system = body.get("instructions")
    if system is not None and not isinstance(system, str):
        raise HttpError(400, "instructions must be a string.")
    before = [] if system is None else [Message("system", system)]
    content = body.get("input")
    if isinstance(content, str):
        return [*before, Message("user", content)]
    if not isinstance(content, list) or not content:
        raise HttpError(400, "input must be a string, or a list of at least one item.")
    return [*before, *(_read_item(item, f"input[{index}]", chat) for index, item in enumerate(content))]


def _read_item(item: Any, where: str, chat: Chat) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        return _read_message(item, where)
    if kind == "function_call_output":
        text, others = _read_content(item.get("output"), where)
        return Message("tool", text, others)
    if kind == "item_reference" and chat != "last-user":
        raise HttpError(400, f"{where} names an item that the server keeps, which cannot be judged.", code="unjudged")
    if kind in _NO_TEXT:
        return Message("assistant", "")
    if isinstance(kind, str):
        return Message("assistant", "", ("item",))
    raise HttpError(400, f"{where} must be an object with a type.")


def _read_message(item: Any, where: str) -> Message:
    if not isinstance(item, dict) or item.get("role") not in _ROLES:  # a server might take another one for the user
        raise HttpError(400, f"{where} must be an object with a role: {', '.join(_ROLES)}.")
    text, others = _read_content(item.get("content"), where)
    return Message(item["role"], text, others)


def _read_content(content: Any, where: str) -> tuple[str, tuple[str, ...]]:
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, list):
        raise HttpError(400, f"The content of {where} must be a string, a list of parts, or null.")
    texts, others = [], []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise HttpError(400, f"A part of {where} must be an object with a type.")
        if kind not in _TEXT_PARTS:
            others.append(kind)
        elif not isinstance(text := part.get(_TEXT_PARTS[kind]), str):
            raise HttpError(400, f"A text part of {where} has no text.")
        else:
            texts.append(text)
    return "\n".join(texts), tuple(others)
