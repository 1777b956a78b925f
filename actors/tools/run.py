"""Running one tool call: from argument text to the blocks that the model is shown.

Whatever a body does, short of a KeyboardInterrupt, becomes an `Outcome` that a log can hold: every
started call gets its result, also one that does not stop when it is told to.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any

import attrs
import orjson
import trio

from refold.actors.bodies import DidNotStop, Escaped, call_plainly, run_body
from refold.actors.tools.definition import Tool
from refold.runtime import typed_json
from refold.runtime.events import ToolError
from refold.runtime.json import clean_text
from refold.runtime.messages import BLOCKS, Block, Message, TextBlock

MAX_ERROR = 2000
"""The most characters of an error's message that a model is shown."""


@attrs.frozen
class Outcome:
    """What a `tool/result` will say; `context` is shown to the model after all results."""

    content: tuple[Block, ...]
    is_error: bool
    error: ToolError | None
    context: tuple[Block, ...] = ()


@attrs.define
class Abandoned:
    """Counts bodies, threads and tasks, that went on after their call had ended and have ended now.

    Their results were discarded.
    """

    count: int = 0


async def run_tool(
    tool: Tool, arguments: str, abandoned: Abandoned | None = None, *, session: str = "-"
) -> Outcome:
    """Call `tool` with the raw argument text of a model; `session` is for the words of a warning.

    A failure is an outcome with `is_error` and one of the codes BAD_ARGUMENTS, TOOL_FAILED,
    TOOL_TIMEOUT, ABORTED and INVALID_TOOL_OUTPUT; only a KeyboardInterrupt is raised. A
    cancellation from outside reaches the body and leaves as the body lets it out, inside a group
    too; without an await in the body there is no checkpoint. A body that has not ended
    `STOP_SECONDS` after its timeout or cancellation is left behind, and the outcome says so, also
    to a caller that was cancelled: it meets its cancellation at its next checkpoint. A plain
    function is called on the Trio thread, where its timeout cannot end it, or in a thread of its
    own, which a timeout or a cancellation abandons. `abandoned` counts those that end later. Text
    over the tool's `max_output` loses its middle.
    """
    try:
        keywords = tool.read(arguments)
    except Exception as error:  # noqa: BLE001 - classes of users run while arguments are read
        return _failure("BadArguments", "BAD_ARGUMENTS", _message(error))
    value: object = None
    scope = trio.move_on_after(tool.timeout)
    # The scope takes its own Cancelled out of a group and lets the rest go on as an Exception, so
    # the handler has to stand around it.
    try:
        with scope:
            name = f"tool {tool.name!r} of session {session}"
            value = await _call(tool, keywords, abandoned or Abandoned(), name)
    except DidNotStop as left:
        return _did_not_stop(tool, left, timed_out=scope.cancel_called)
    except Exception as error:  # noqa: BLE001 - every error of a body is a result
        return _timed_out(tool, error) if scope.cancel_called else _failed(error)
    return _timed_out(tool) if scope.cancelled_caught else _bounded(_shown(value), tool.max_output)


_THREADS = 40
"""How many tool threads one run may have; abandoned ones count until they end."""

_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("tool threads")


def _threads() -> trio.CapacityLimiter:
    """The limit of this Trio run; apart from the default one, so that hung tools stop no store."""
    try:
        return _limiter.get()
    except LookupError:
        made = trio.CapacityLimiter(_THREADS)
        _limiter.set(made)
        return made


async def _call(tool: Tool, keywords: dict[str, Any], abandoned: Abandoned, name: str) -> Any:
    if tool.isolation == "thread":
        return await _call_in_thread(tool, keywords, abandoned)
    value = call_plainly(partial(tool.body, **keywords))
    if not inspect.isawaitable(value):
        return value

    async def body() -> Any:
        return await value

    def late() -> None:
        abandoned.count += 1

    return await run_body(body, name, late)


async def _call_in_thread(tool: Tool, keywords: dict[str, Any], abandoned: Abandoned) -> Any:
    left = False

    def body() -> Any:
        try:
            return call_plainly(partial(tool.body, **keywords))
        finally:
            abandoned.count += left

    try:
        return await trio.to_thread.run_sync(body, abandon_on_cancel=True, limiter=_threads())
    except trio.Cancelled:
        left = True
        raise


def _bounded(outcome: Outcome, limit: int) -> Outcome:
    """Cut each text block to `limit` characters: its head, a notice, its tail."""
    content = tuple(
        TextBlock(_cut(block.text, limit)) if isinstance(block, TextBlock) else block
        for block in outcome.content
    )
    return attrs.evolve(outcome, content=content)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    notice = f"\n[... {len(text) - limit} of {len(text)} characters left out; ask for less ...]\n"
    return text[:head] + notice + text[len(text) - tail :]


def _failure(name: str, code: str, message: str) -> Outcome:
    if len(message) > MAX_ERROR:
        message = message[: MAX_ERROR - 1] + "…"
    text = clean_text(f"Error: {message}")
    return Outcome((TextBlock(text),), is_error=True, error=ToolError(clean_text(name), code))


def _timed_out(tool: Tool, error: Exception | None = None) -> Outcome:
    stopped = "" if error is None else f" (while it stopped: {_describe(error)[1]})"
    return _failure(
        "ToolTimeout",
        "TOOL_TIMEOUT",
        f"the tool did not finish within {tool.timeout:g} s and was stopped, part of its work may "
        f"be done; check that, then ask for less in one call{stopped}",
    )


def _did_not_stop(tool: Tool, left: DidNotStop, *, timed_out: bool) -> Outcome:
    why = f"did not finish within {tool.timeout:g} s" if timed_out else "was aborted while it ran"
    return _failure(
        "ToolTimeout" if timed_out else "ToolAborted",
        "TOOL_TIMEOUT" if timed_out else "ABORTED",
        f"the tool {why}, was told to stop and did not stop within {left.seconds:g} s: it may "
        "still be running, and what it returns is discarded; check the state of whatever it "
        "touches before calling it again",
    )


def _failed(error: BaseException) -> Outcome:
    if isinstance(error, Escaped) and error.__cause__ is not None:
        error = error.__cause__
    name, message = _describe(error)
    return _failure(name, "TOOL_FAILED", message)


def _describe(error: BaseException) -> tuple[str, str]:
    """The class and the text of an error; a group is its leaves."""
    leaves = list(_leaves(error))
    name = type(leaves[0] if len(leaves) == 1 else error).__name__
    return name, "; ".join(map(_describe_leaf, leaves))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _describe_leaf(error: BaseException) -> str:
    name, message = type(error).__name__, _message(error)
    return f"{name}: {message}" if message else name


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` is code of the body too
        return "(its message cannot be read)"


def _shown(value: object) -> Outcome:
    """The outcome of a body that returned `value`."""
    try:
        return Outcome(_content(value), is_error=False, error=None)
    except Exception as error:  # noqa: BLE001 - a value's own methods may raise anything
        _, reason = _describe(error)
        return _failure(
            "InvalidToolOutput",
            "INVALID_TOOL_OUTPUT",
            f"the tool ran, but what it returned ({type(value).__name__}) cannot be shown; it must "
            "return text, None, a number, a bool, an attrs instance, a list or dict of these, or "
            f"message blocks, and decode bytes itself [{reason}]",
        )


_BLOCKS = tuple(BLOCKS.values())


def _content(value: Any) -> tuple[Block, ...]:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return (TextBlock(""),)
    if isinstance(value, str):
        return (_text(value),)
    parts: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) and value else (value,)
    if all(isinstance(part, _BLOCKS) for part in parts):
        return _checked(tuple(map(_cleaned, parts)))
    return (_text(json.dumps(value, default=_plain, **_COMPACT)),)


_COMPACT: dict[str, Any] = {
    "ensure_ascii": False,
    "allow_nan": False,
    "separators": (",", ":"),
}


def _text(value: str) -> TextBlock:
    return TextBlock(clean_text(str.__str__(value)))  # a subclass of str is no JSON text


def _cleaned(block: Block) -> Block:
    if isinstance(block, TextBlock) and isinstance(block.text, str):
        return _text(block.text)
    return block


def _checked(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """`blocks`, read back from JSON: a log that took a malformed one could not be read again."""
    encoded = typed_json.canonical(Message("user", blocks))
    return typed_json.structure(orjson.loads(encoded), Message).content


def _plain(value: Any) -> object:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
