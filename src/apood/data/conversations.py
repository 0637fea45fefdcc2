"""The chat contract: which text of a conversation is judged, when a detector is built and when it is used.

`last-user` judges the last message of the user, `all-user` all messages of the user, and `whole` everything, each
message after its role. A message is its text, or its text parts. Other parts (images, sounds, files) of a judged
message cannot be judged, so the request is refused, unless they are to be ignored. The system prompt, names, calls of
tools with their arguments, and results of tools are judged in `whole` only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from apood.support.errors import InputError

__all__ = [
    "Chat", "ConversationError", "Message", "OtherParts", "UnjudgedError", "choose_text", "get_field", "read_messages",
    "read_responses_input",
]  # fmt: skip

Chat = Literal["last-user", "all-user", "whole"]
"""Which text of a conversation is judged: the user's last message, all messages of the user, or everything."""

OtherParts = Literal["refuse", "ignore"]
"""What to do with a judged message that has parts other than text."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_BESIDE = ("name", "reasoning", "reasoning_content", "refusal", "tool_calls", "function_call")  # of a message
_CALLS = ("function_call", "custom_tool_call", "reasoning")  # items of OpenAI's responses that hold texts
_IDENTITIES = frozenset({"id", "type", "index", "status", "call_id"})  # whose values no model reads
_CALL_NAMES = frozenset({"function", "custom", "name", "arguments", "input", "summary", "content", "text"})


class ConversationError(InputError):
    """A conversation has an unknown form."""


class UnjudgedError(ConversationError):
    """A conversation has a part that cannot be judged, or no text to judge."""


class Message(NamedTuple):
    """One message.

    Attributes:
        role: who wrote it: system, developer, user, assistant, tool.
        text: its text; the text parts of a message with several parts are joined by line breaks.
        beside: other texts, one per line: names, reasoning, calls of tools.
        has_others: whether it has parts other than text.
    """

    role: str
    text: str
    beside: str = ""
    has_others: bool = False


def get_field(item: Mapping[str, Any], name: str) -> Any:
    """Return a field, or None.

    Raise ConversationError if its name is in another case, which some servers take for the same.
    """
    if name not in item and any(key.casefold() == name for key in item):
        raise ConversationError(f"The name {name} must be in lower case.")
    return item.get(name)


def choose_text(messages: Sequence[Message], chat: Chat, other_parts: OtherParts = "refuse") -> str:
    """Return the text of a conversation to judge. Raise UnjudgedError if there is none, or a part is not text."""
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise UnjudgedError("There is no message of the role user, so there is nothing to judge.")
    judged = {"last-user": users[-1:], "all-user": users, "whole": list(messages)}[chat]
    if any(message.has_others for message in judged) and other_parts == "refuse":
        raise UnjudgedError(
            "A message has a part that is not text, and only texts can be judged: send texts, or ask the operator to "
            "ignore such parts."
        )
    if chat == "whole":
        return "\n\n".join(
            f"{message.role}: " + "\n".join(filter(None, (message.text, message.beside))) for message in judged
        )
    return "\n\n".join(message.text for message in judged)


def read_messages(content: Any) -> list[Message]:
    """Return the messages of a chat completion. Raise ConversationError if they have another form."""
    if not isinstance(content, list) or not content:
        raise ConversationError("messages must be a list of at least one message.")
    return [_read_message(item, f"messages[{index}]") for index, item in enumerate(content)]


def read_responses_input(body: Mapping[str, Any], chat: Chat) -> list[Message]:
    """Return the messages of a request for OpenAI's responses. Raise ConversationError if they have another form.

    A conversation that the server remembers cannot be seen here, so it is allowed only if the last message is enough.
    """
    if get_field(body, "prompt") is not None:
        raise UnjudgedError("prompt names a text that the server keeps, which cannot be judged.")
    kept = [name for name in ("previous_response_id", "conversation") if get_field(body, name) is not None]
    if kept and chat != "last-user":
        raise UnjudgedError(f"{kept[0]} names messages that the server keeps, which cannot be judged.")
    system = get_field(body, "instructions")
    if system is not None and not isinstance(system, str):
        raise ConversationError("instructions must be a string.")
    before = [] if system is None else [Message("system", system)]
    content = get_field(body, "input")
    if isinstance(content, str):
        return [*before, Message("user", content)]
    if not isinstance(content, list) or not content:
        raise ConversationError("input must be a string, or a list of at least one item.")
    return [*before, *(_read_item(item, f"input[{index}]", chat) for index, item in enumerate(content))]


def _read_item(item: Any, where: str, chat: Chat) -> Message:
    kind = (get_field(item, "type") or "message") if isinstance(item, dict) else None
    if kind == "message":
        return _read_message(item, where)
    if kind == "function_call_output":
        text, has_others = _read_content(get_field(item, "output"), where)
        return Message("tool", text, has_others=has_others)
    if kind == "item_reference" and chat != "last-user":
        raise UnjudgedError(f"{where} names an item that the server keeps, which cannot be judged.")
    if kind == "item_reference":
        return Message("assistant", "")
    if kind in _CALLS:
        encrypted = bool(get_field(item, "encrypted_content"))
        seen = {name: value for name, value in item.items() if name != "encrypted_content"}
        return Message("assistant", "", "\n".join(_find_strings(seen)), has_others=encrypted)
    if isinstance(kind, str):
        return Message("assistant", "", has_others=True)
    raise ConversationError(f"{where} must be an object with a type.")


def _read_message(item: Any, where: str) -> Message:
    if (
        not isinstance(item, dict) or get_field(item, "role") not in _ROLES
    ):  # a server might take another one for the user
        raise ConversationError(f"{where} must be an object with a role: {', '.join(_ROLES)}.")
    text, has_others = _read_content(get_field(item, "content"), where)
    beside = "\n".join(string for name in _BESIDE for string in _find_strings(get_field(item, name)))
    return Message(item["role"], text, beside, has_others)


def _find_strings(content: Any) -> Iterator[str]:
    """Yield all texts in a call of a tool: its name and its arguments, even if they are not strings."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for inner in content:
            yield from _find_strings(inner)
    elif isinstance(content, dict):
        for name, inner in content.items():
            if name not in _IDENTITIES:
                yield from () if name in _CALL_NAMES else (name,)
                yield from _find_strings(inner)


def _read_content(content: Any, where: str) -> tuple[str, bool]:
    if content is None or isinstance(content, str):
        return content or "", False
    if not isinstance(content, list):
        raise ConversationError(f"The content of {where} must be a string, a list of parts, or null.")
    texts, has_others = [], False
    for part in content:
        kind = get_field(part, "type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise ConversationError(f"A part of {where} must be an object with a type.")
        if kind not in _TEXT_PARTS:
            has_others = True
        elif not isinstance(text := get_field(part, _TEXT_PARTS[kind]), str):
            raise ConversationError(f"A text part of {where} has no text.")
        else:
            texts.append(text)
    return "\n".join(texts), has_others
