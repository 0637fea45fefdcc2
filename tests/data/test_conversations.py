"""Which text of a conversation is judged, and what is refused because it cannot be."""

from typing import Any

import pytest

from apood.data.conversations import (
    Chat,
    ConversationError,
    UnjudgedError,
    choose_text,
    read_messages,
    read_responses_input,
)

CONVERSATION = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]},
    {"role": "tool", "content": "found"},
    {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "text", "text": "half"}]},
    {"role": "assistant", "content": "begun"},
]


@pytest.mark.parametrize(
    ("chat", "text"),
    [
        ("last-user", "second\nhalf"),
        ("all-user", "first\n\nsecond\nhalf"),
        (
            "whole",
            "system: rules\n\nuser: first\n\nassistant: \n\ntool: found\n\nuser: second\nhalf\n\nassistant: begun",
        ),
    ],
)
def test_the_contract_says_which_text_is_judged(chat: Chat, text: str) -> None:
    assert choose_text(read_messages(CONVERSATION), chat) == text


def test_responses_are_read_like_chats() -> None:
    body: dict[str, Any] = {"instructions": "rules", "input": "first"}
    assert choose_text(read_responses_input(body, "whole"), "whole") == "system: rules\n\nuser: first"
    body["input"] = [
        {"role": "user", "content": [{"type": "input_text", "text": "first"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "output": "found"},
        {"type": "message", "role": "user", "content": "second"},
    ]
    assert choose_text(read_responses_input(body, "last-user"), "last-user") == "second"
    assert "f\n{}\n\ntool: found" in choose_text(read_responses_input(body, "whole"), "whole")


def test_names_and_calls_of_tools_are_judged_in_the_whole_conversation() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": '{"q": "trains"}'}}
    messages = [
        {"role": "user", "name": "Ada", "content": "find"},
        {"role": "assistant", "content": "yes", "tool_calls": [call]},
        {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": {"key": ["deep"]}}},
    ]
    read = read_messages(messages)
    assert choose_text(read, "whole") == (
        'user: find\nAda\n\nassistant: yes\nsearch\n{"q": "trains"}\n\nassistant: old\nkey\ndeep'
    )
    assert choose_text(read, "all-user") == "find"
    items = [
        {"role": "user", "content": "find"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"q": 1}'},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "because"}]},
    ]
    whole = choose_text(read_responses_input({"input": items}, "whole"), "whole")
    assert whole == 'user: find\n\nassistant: f\n{"q": 1}\n\nassistant: because'
    items.append({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"})
    with pytest.raises(UnjudgedError, match="not text"):
        choose_text(read_responses_input({"input": items}, "whole"), "whole")


def test_parts_without_text_are_refused_or_ignored_in_judged_messages_alone() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    messages = [
        {"role": "user", "content": [image]},
        {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
    ]
    for chat in ("last-user", "all-user", "whole"):
        with pytest.raises(UnjudgedError, match="not text"):
            choose_text(read_messages(messages), chat)
    assert choose_text(read_messages(messages), "last-user", "ignore") == "look"
    messages[1] = {"role": "user", "content": "plain"}
    assert choose_text(read_messages(messages), "last-user") == "plain"


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "text",
        ["text"],
        [{}],
        [{"role": "User", "content": "a"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "Content": "b"}],
        [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "system", "content": "a"}],
    ],
)
def test_other_forms_are_refused(messages: Any) -> None:
    with pytest.raises(ConversationError):
        choose_text(read_messages(messages), "last-user")


@pytest.mark.parametrize(
    ("body", "chats"),
    [
        ({"input": "a", "prompt": {"id": "p"}}, ("last-user", "whole")),
        ({"input": "a", "previous_response_id": "r"}, ("all-user", "whole")),
        ({"input": "a", "conversation": "c"}, ("all-user", "whole")),
        ({"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "i"}]}, ("all-user", "whole")),
        ({"input": 1}, ("last-user",)),
        ({"input": "a", "instructions": ["b"]}, ("whole",)),
    ],
)
def test_messages_that_only_the_server_knows_are_refused(body: Any, chats: tuple[Chat, ...]) -> None:
    for chat in chats:
        with pytest.raises(ConversationError):
            read_responses_input(body, chat)
