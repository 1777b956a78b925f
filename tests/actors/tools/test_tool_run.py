"""Whatever a body does, its call has one outcome that a log can hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from types import MappingProxyType
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from refold.actors.tools import Outcome, run_tool, tool
from refold.runtime.envelope import decode_line, draft
from refold.runtime.events import ToolError, ToolResult
from refold.runtime.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock, text_of


class Color(Enum):
    RED = "red"


@attrs.frozen
class Hit:
    path: str
    color: Color = Color.RED


class Loud(str):
    __slots__ = ()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _refuse(_self: object, _field: object, _value: int) -> None:
    raise ValueError(Unprintable())


@attrs.frozen
class Picky:
    x: int = attrs.field(validator=_refuse)


def _call(body: Callable[..., Any], arguments: str = "", timeout: float = 60) -> Outcome:
    """The outcome of a body that never waits."""
    return trio.run(run_tool, tool(body, name="it", timeout=timeout), arguments)


def _returning(value: object) -> Outcome:
    return _call(lambda: value)


def _raising(error: BaseException) -> Outcome:
    def body() -> None:
        raise error

    return _call(body)


def _check_failure(outcome: Outcome, code: str) -> str:
    assert outcome.is_error
    assert outcome.error is not None
    assert outcome.error.code == code
    text = text_of(outcome.content)
    assert text.startswith("Error: ")
    return text


def _check_log_takes(outcome: Outcome) -> None:
    result = ToolResult(1, 1, "c", outcome.content, outcome.is_error, outcome.error)
    assert decode_line(draft(result).at(0, 0).encoded).data == result


async def test_an_async_body_gets_the_arguments_of_the_model() -> None:
    @tool
    async def add(a: int, b: int = 2) -> str:
        await trio.lowlevel.checkpoint()
        return str(a + b)

    assert await run_tool(add, '{"a":1}') == Outcome((TextBlock("3"),), is_error=False, error=None)


def test_arguments_that_do_not_fit_never_start_the_body() -> None:
    started = []

    def body(x: int) -> None:
        started.append(x)

    text = _check_failure(_call(body, '{"x":"a"}'), "BAD_ARGUMENTS")
    assert text == (
        "Error: the arguments do not fit: $.x must be of type integer, got string; "
        "correct this and call the tool again"
    )
    assert started == []


def test_long_or_broken_arguments_give_a_short_clean_error() -> None:
    outcome = _call(lambda: None, json.dumps({"\u00e9" * 9000: 1}))
    assert len(_check_failure(outcome, "BAD_ARGUMENTS")) == len("Error: ") + 2000
    _check_log_takes(_call(lambda: None, "\ud800"))


def test_a_class_that_fails_while_arguments_are_read_is_a_bad_argument() -> None:
    def body(x: Picky) -> None: ...

    text = _check_failure(_call(body, '{"x":{"x":1}}'), "BAD_ARGUMENTS")
    assert "no words" in text


def test_a_body_that_raises_is_shown_with_class_and_message() -> None:
    outcome = _raising(ValueError("no such city"))
    assert outcome == Outcome(
        (TextBlock("Error: ValueError: no such city"),),
        is_error=True,
        error=ToolError("ValueError", "TOOL_FAILED"),
    )


def test_the_message_of_an_error_is_cleaned_and_capped() -> None:
    assert text_of(_raising(OSError("a\ud800b")).content) == "Error: OSError: a\ufffdb"
    text = text_of(_raising(OSError("x" * 9000)).content)
    assert len(text) == len("Error: ") + 2000
    assert text.endswith("x…")


def test_an_error_without_words_is_shown_by_its_class() -> None:
    assert text_of(_raising(TimeoutError()).content) == "Error: TimeoutError"
    text = text_of(_raising(Unprintable()).content)
    assert text == "Error: Unprintable: (its message cannot be read)"


def test_a_group_is_shown_as_its_leaves() -> None:
    one = ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("k")])])
    assert text_of(_raising(one).content) == "Error: KeyError: 'k'"
    assert _raising(one).error == ToolError("KeyError", "TOOL_FAILED")
    two = ExceptionGroup("outer", [KeyError("k"), OSError("disk")])
    assert text_of(_raising(two).content) == "Error: KeyError: 'k'; OSError: disk"
    assert _raising(two).error == ToolError("ExceptionGroup", "TOOL_FAILED")


def test_a_keyboard_interrupt_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        _raising(KeyboardInterrupt())


async def test_a_body_that_never_returns_is_stopped_at_its_timeout(
    autojump_clock: MockClock,
) -> None:
    outcome = await run_tool(tool(trio_forever, timeout=7.5), "")
    assert trio.current_time() == pytest.approx(7.5)
    assert "did not finish within 7.5 s" in _check_failure(outcome, "TOOL_TIMEOUT")


async def trio_forever() -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("grouped", [True, False])
async def test_what_a_body_raises_while_it_is_stopped_is_told_with_the_timeout(
    autojump_clock: MockClock, grouped: bool
) -> None:
    async def fail_when_stopped() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("half written")

    async def nested() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail_when_stopped)

    outcome = await run_tool(tool(nested if grouped else fail_when_stopped, timeout=1), "")
    text = _check_failure(outcome, "TOOL_TIMEOUT")
    assert "(while it stopped: OSError: half written)" in text


async def test_a_timeout_of_the_body_itself_is_its_own_failure(autojump_clock: MockClock) -> None:
    async def body() -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    _check_failure(await run_tool(tool(body), ""), "TOOL_FAILED")


async def test_a_cancellation_from_outside_passes_through() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_tool(tool(trio_forever), "")
    assert scope.cancelled_caught


async def test_a_group_with_a_cancellation_passes_through_untouched(
    autojump_clock: MockClock,
) -> None:
    raised: list[BaseException] = []

    async def body() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            raised.append(BaseExceptionGroup("stop", [cancelled, ValueError("x")]))
            raise raised[0] from None

    seen: list[BaseException] = []
    with pytest.RaisesGroup(ValueError), trio.move_on_after(1):
        try:
            await run_tool(tool(body), "")
        except BaseException as error:
            seen.append(error)
            raise
    assert seen == raised


async def test_a_cancelled_caller_still_learns_what_a_plain_body_did() -> None:
    outcomes = []
    with trio.CancelScope() as scope:
        scope.cancel()
        outcomes.append(await run_tool(tool(lambda: "done", name="it"), ""))
    assert [text_of(outcome.content) for outcome in outcomes] == ["done"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("lone \ud800", "lone \ufffd"),
        (Loud("loud"), "loud"),
        (None, ""),
        (3, "3"),
        (2**70, str(2**70)),
        (-0.0, "-0.0"),
        (True, "true"),
        ([], "[]"),
        ((1, "é"), '[1,"é"]'),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ({"a": "\ud800"}, '{"a":"\ufffd"}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (Hit("p"), '{"path":"p","color":"red"}'),
        ([Hit("p")], '[{"path":"p","color":"red"}]'),
        (Color.RED, "red"),
    ],
)
def test_a_returned_value_becomes_text(value: object, text: str) -> None:
    outcome = _returning(value)
    assert outcome == Outcome((TextBlock(text),), is_error=False, error=None)
    assert type(text_of(outcome.content)) is str
    _check_log_takes(outcome)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (TextBlock("a"), (TextBlock("a"),)),
        ([TextBlock("a"), ReasoningBlock("b")], (TextBlock("a"), ReasoningBlock("b"))),
        (TextBlock("\ud800"), (TextBlock("\ufffd"),)),
    ],
)
def test_returned_blocks_are_shown_as_they_are(value: object, content: tuple[Block, ...]) -> None:
    assert _returning(value) == Outcome(content, is_error=False, error=None)
    _check_log_takes(_returning(value))


def _loop() -> list[object]:
    ring: list[object] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        {"a": b"bytes"},
        {1, 2},
        object(),
        float("nan"),
        _loop(),
        TextBlock(5),  # type: ignore[arg-type]  # a malformed block is the case
        ToolCallBlock("\ud800", "n", "{}"),
        [TextBlock("a"), b"b"],
    ],
)
def test_a_value_that_cannot_be_shown_says_what_to_return(value: object) -> None:
    outcome = _returning(value)
    text = _check_failure(outcome, "INVALID_TOOL_OUTPUT")
    assert "the tool ran" in text
    assert "it must return text, None, a number" in text
    _check_log_takes(outcome)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_that_is_returned_or_raised_can_be_logged(text: str) -> None:
    _check_log_takes(_returning(text))
    _check_log_takes(_returning({text: [text]}))
    _check_log_takes(_raising(ValueError(text)))
