"""Running one tool call: from argument text to the blocks that the model is shown.

Whatever a body does, short of a KeyboardInterrupt, has an outcome: every started call gets its
result, also one that does not stop when it is told to.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import attrs
import trio

from refold.actors.bodies import DidNotStop, Escaped, call_plainly, run_body
from refold.actors.tools.definition import Tool
from refold.actors.tools.output import Outcome, bounded, described, failure, message_of, shown


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
        return failure("BadArguments", "BAD_ARGUMENTS", message_of(error))
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
    return _timed_out(tool) if scope.cancelled_caught else bounded(shown(value), tool.max_output)


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


def _timed_out(tool: Tool, error: Exception | None = None) -> Outcome:
    stopped = "" if error is None else f" (while it stopped: {described(error)[1]})"
    return failure(
        "ToolTimeout",
        "TOOL_TIMEOUT",
        f"the tool did not finish within {tool.timeout:g} s and was stopped, part of its work may "
        f"be done; check that, then ask for less in one call{stopped}",
    )


def _did_not_stop(tool: Tool, left: DidNotStop, *, timed_out: bool) -> Outcome:
    why = f"did not finish within {tool.timeout:g} s" if timed_out else "was aborted while it ran"
    return failure(
        "ToolTimeout" if timed_out else "ToolAborted",
        "TOOL_TIMEOUT" if timed_out else "ABORTED",
        f"the tool {why}, was told to stop and did not stop within {left.seconds:.1f} s: it may "
        "still be running, and what it returns is discarded; check the state of whatever it "
        "touches before calling it again",
    )


def _failed(error: BaseException) -> Outcome:
    if isinstance(error, Escaped) and error.__cause__ is not None:
        error = error.__cause__
    name, message = described(error)
    return failure(name, "TOOL_FAILED", message)
