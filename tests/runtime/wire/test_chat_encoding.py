"""Requests as bytes: key order, each message on its own, quirks, and what is sent back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.errors import NotLosslessJson
from refold.runtime.json import Json
from refold.runtime.messages import (
    Block,
    Message,
    Provenance,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from refold.runtime.request import Request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, ToolSchema
from refold.runtime.wire.chat import CHAT
from refold.runtime.wire.chat import encode as chat
from refold.runtime.wire.format import ExtraRefused
from refold.runtime.wire.request_encoder import encode_request

CONFIG = LlmCallConfig("acme", model="m-1")
CALL = ToolCallBlock("c1", "read", '{"path": "a"}')
TOOL = ToolSchema("read", "Read a file.", Json(b'{"type":"object","properties":{"z":{},"a":{}}}'))


def config(**extra: Any) -> LlmCallConfig:
    return LlmCallConfig("acme", model="m-1", extra=Json.of(extra))


def user(*content: Block) -> Message:
    return Message("user", content)


def assistant(*content: Block, replay: Any = None, model: str = "m-1") -> Message:
    state = None if replay is None else Json.of(replay)
    return Message("assistant", content, Provenance("acme", model, state))


def encode(header: EpochHeader, messages: Sequence[Message]) -> bytes:
    return encode_request(Request(header, tuple(messages)), CHAT).body


def wire(message: Message, call_config: LlmCallConfig = CONFIG) -> Any:
    return orjson.loads(chat.encode_message(message, call_config))


def test_the_whole_body_byte_for_byte() -> None:
    full = LlmCallConfig(
        "acme",
        model="m-1",
        temperature=0.5,
        max_tokens=9,
        stop=("X",),
        extra=Json.of({"seed": 11, "id_slot": 0, "refold": {}}),
    )
    header = EpochHeader(full, "Be brief.", (TOOL,))

    body = encode(header, [user(TextBlock("hé"))])

    assert body.decode() == (
        '{"model":"m-1","seed":11,"id_slot":0,"temperature":0.5,"max_tokens":9,"stop":["X"],'
        '"stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function",'
        '"function":{"name":"read","description":"Read a file.","parameters":'
        '{"type":"object","properties":{"z":{},"a":{}}}}}],"messages":['
        '{"role":"system","content":"Be brief."},{"role":"user","content":"hé"}]}'
    )


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_head_separator_messages_and_tail_are_the_body(system: str, count: int) -> None:
    header = EpochHeader(CONFIG, system)
    messages = [user(TextBlock(str(n))) for n in range(count)]
    encoded = b",".join(chat.encode_message(m, CONFIG) for m in messages)
    separator = chat.first_separator(header) if messages else b""

    body = encode(header, messages)

    assert body == chat.encode_opening(header) + separator + encoded + chat.CLOSING
    assert len(orjson.loads(body)["messages"]) == count + bool(system)


def test_what_is_not_set_is_not_sent() -> None:
    body = orjson.loads(encode(EpochHeader(CONFIG), []))

    assert list(body) == ["model", "stream", "stream_options", "messages"]


@pytest.mark.parametrize(
    "key", ["model", "messages", "tools", "stream", "stream_options", "temperature", "max_tokens"]
)
def test_extra_cannot_set_what_has_a_field_of_its_own(key: str) -> None:
    with pytest.raises(ExtraRefused, match=key):
        chat.encode_opening(EpochHeader(config(**{key: 1})))


def test_extra_that_is_no_object_is_refused() -> None:
    bad = LlmCallConfig("acme", model="m-1", extra=Json.of([1]))

    with pytest.raises(ExtraRefused, match="object"):
        chat.encode_opening(EpochHeader(bad))


def test_a_quirk_renames_max_tokens() -> None:
    quirk = Json.of({"refold": {"maxTokensKey": "max_completion_tokens"}})
    header = EpochHeader(LlmCallConfig("acme", model="m-1", max_tokens=9, extra=quirk))

    body = orjson.loads(encode(header, []))

    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body
    assert "refold" not in body


def test_a_renamed_max_tokens_is_not_sent_twice() -> None:
    both = config(refold={"maxTokensKey": "max_completion_tokens"}, max_completion_tokens=3)

    with pytest.raises(ExtraRefused, match="max_completion_tokens"):
        chat.encode_opening(EpochHeader(both))


@pytest.mark.parametrize(
    "quirks", [{"other": 1}, {"maxTokensKey": "x"}, {"replayReasoning": 0}, "text"]
)
def test_unknown_quirks_are_refused(quirks: object) -> None:
    with pytest.raises(ExtraRefused, match="refold"):
        chat.encode_opening(EpochHeader(config(refold=quirks)))


def test_text_that_json_cannot_carry_is_refused() -> None:
    with pytest.raises(NotLosslessJson):
        chat.encode_message(user(TextBlock("\ud800")), CONFIG)


def test_blocks_of_a_user_are_lines_of_one_string() -> None:
    message = user(TextBlock("a"), ReasoningBlock("hidden"), TextBlock("b"))

    assert chat.encode_message(message, CONFIG) == b'{"role":"user","content":"a\\nb"}'


def test_a_tool_result_answers_its_call() -> None:
    result = ToolResultBlock("c1", (TextBlock("a"), TextBlock("b")), is_error=True)

    assert chat.encode_message(user(result), CONFIG) == (
        b'{"role":"tool","tool_call_id":"c1","content":"a\\nb"}'
    )


def test_an_empty_tool_result_stays_empty() -> None:
    assert wire(user(ToolResultBlock("c1", ())))["content"] == ""


def test_text_beside_a_tool_result_follows_in_the_same_message() -> None:
    message = user(ToolResultBlock("c1", (TextBlock("out"),)), TextBlock("note"))

    assert wire(message) == {"role": "tool", "tool_call_id": "c1", "content": "out\nnote"}


def test_a_second_tool_result_names_its_call() -> None:
    message = user(
        ToolResultBlock("c1", (TextBlock("1"),)), ToolResultBlock("c2", (TextBlock("2"),))
    )

    assert wire(message) == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "1\nResult of call c2:\n2",
    }


def test_blocks_without_a_place_become_text() -> None:
    asked = user(TextBlock("see"), CALL)
    answered = assistant(TextBlock("said"), ToolResultBlock("c1", (TextBlock("out"),)))

    assert wire(asked)["content"] == 'see\nCall c1 of read: {"path": "a"}'
    assert wire(answered)["content"] == "said\nResult of call c1:\nout"


def test_an_assistant_has_content_and_calls_with_raw_arguments() -> None:
    message = assistant(TextBlock("a"), TextBlock("b"), ReasoningBlock("hidden"), CALL)

    assert chat.encode_message(message, CONFIG).decode() == (
        '{"role":"assistant","content":"ab","tool_calls":[{"id":"c1","type":"function",'
        '"function":{"name":"read","arguments":"{\\"path\\": \\"a\\"}"}}]}'
    )


def test_an_assistant_without_text_has_empty_content() -> None:
    assert wire(assistant(CALL))["content"] == ""


SIGNED = {
    "reasoning_content": "thought",
    "tool_calls": {"c1": {"extra_content": {"google": {"thought_signature": "s="}}, "id": "no"}},
}


def test_the_maker_gets_back_what_it_wants() -> None:
    sent = wire(assistant(CALL, replay=SIGNED))

    assert sent["reasoning_content"] == "thought"
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s="}}
    assert sent["tool_calls"][0]["id"] == "c1"


@pytest.mark.parametrize(
    "other", [LlmCallConfig("acme", model="m-2"), LlmCallConfig("other", model="m-1")]
)
def test_nobody_else_gets_what_the_maker_wants(other: LlmCallConfig) -> None:
    message = assistant(CALL, replay=SIGNED)

    assert chat.encode_message(message, other) == chat.encode_message(assistant(CALL), other)


def test_a_quirk_keeps_reasoning_but_not_signatures_back() -> None:
    sent = wire(assistant(CALL, replay=SIGNED), config(refold={"replayReasoning": False}))

    assert "reasoning_content" not in sent
    assert "extra_content" in sent["tool_calls"][0]


@pytest.mark.parametrize(
    "foreign", [[1], "x", {"reasoning_content": 1}, {"tool_calls": []}, {"tool_calls": {"c1": 1}}]
)
def test_a_replay_state_of_another_wire_is_left_out(foreign: object) -> None:
    assert wire(assistant(CALL, replay=foreign)) == wire(assistant(CALL))


texts = st.text(st.characters(codec="utf-8"), max_size=8)
blocks = st.one_of(
    texts.map(TextBlock),
    texts.map(ReasoningBlock),
    st.builds(ToolCallBlock, texts, texts, texts),
    st.builds(ToolResultBlock, texts, st.tuples(texts.map(TextBlock))),
)
messages = st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(blocks).map(tuple))


@given(st.lists(messages, min_size=1, max_size=6), texts)
def test_a_request_is_a_prefix_of_the_next(history: list[Message], system: str) -> None:
    header = EpochHeader(CONFIG, system, (TOOL,))

    shorter = encode(header, history[:-1]).removesuffix(chat.CLOSING)

    assert encode(header, history).startswith(shorter)


@given(messages)
def test_a_message_is_one_wire_message_that_hides_nothing(message: Message) -> None:
    sent = wire(message)

    assert sent["role"] in ("user", "assistant", "tool")
    assert isinstance(sent["content"], str)
    for block in message.content:
        if isinstance(block, TextBlock):
            assert block.text in sent["content"]
        if isinstance(block, ToolResultBlock):
            assert block.content[0].text in sent["content"]  # type: ignore[union-attr] # text above
