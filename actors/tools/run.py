"""Running one tool call: from argument text to the blocks that the model is shown.

Whatever a body does, short of a KeyboardInterrupt, has an outcome: every started call gets its
result, also one that does not stop when it is told to.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio

from refold.actors.bodies import DidNotStop, Escaped, call_plainly, run_body
from refold.actors.context import Context
from refold.actors.tools.argument_shapes import BadArguments
from refold.actors.tools.definition import Tool
from refold.actors.tools.output import Outcome, bounded, described, failure, message_of, shown
from refold.runtime.messages import text_of

_log = logging.getLogger("refold")


@attrs.define
class Abandoned:
    """Counts bodies, threads and tasks, that went on after their call had ended and have ended now.

    Their results were discarded.
    """

    count: int = 0


@attrs.frozen
class CallPlace:
    """Which call a body runs for: in the words of the program's log, and as its `Context`.

    `context` is made in the task and under the deadline of the call.
    """

    session: str
    call_id: str
    context: Callable[[], Context]


async def run_tool(
    tool: Tool, arguments: str, abandoned: Abandoned | None = None, place: CallPlace | None = None
) -> Outcome:
    """Call `tool` with the raw argument text of a model; without a `place` none gets a context.

    A failure is an outcome with `is_error` and one of the codes BAD_ARGUMENTS, TOOL_FAILED,
    TOOL_TIMEOUT, ABORTED and INVALID_TOOL_OUTPUT; only a KeyboardInterrupt is raised. What code of
    users did wrong is logged as a warning, an exception with its traceback. A
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
        if not isinstance(error, BadArguments):
            _warn(tool, place, "could not read its arguments", error)
        return failure("BadArguments", "BAD_ARGUMENTS", message_of(error))
    value: object = None
    scope = trio.move_on_after(tool.timeout)
    # The scope takes its own Cancelled out of a group and lets the rest go on as an Exception, so
    # the handler has to stand around it.
    try:
        with scope:
            value = await _call(tool, keywords, abandoned or Abandoned(), place)
    except DidNotStop as left:
        return _did_not_stop(tool, left, timed_out=scope.cancel_called)
    except Exception as error:  # noqa: BLE001 - every error of a body is a result
        raised = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
        _warn(tool, place, "failed", raised)
        return _timed_out(tool, error) if scope.cancel_called else _failed(raised)
    if scope.cancelled_caught:
        return _timed_out(tool)
    outcome = shown(value)
    if outcome.is_error:
        _warn(tool, place, f"returned what no model can be shown: {text_of(outcome.content)}")
    return bounded(outcome, tool.max_output)


def _warn(
    tool: Tool, place: CallPlace | None, what: str, error: BaseException | None = None
) -> None:
    session, call_id = ("-", "-") if place is None else (place.session, place.call_id)
    words = "tool %r %s in call %s of session %s"
    _log.warning(words, tool.name, what, call_id, session, exc_info=error)


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


async def _call(
    tool: Tool, keywords: dict[str, Any], abandoned: Abandoned, place: CallPlace | None
) -> Any:
    if tool.contexts and place is not None:
        keywords = {**keywords, **dict.fromkeys(tool.contexts, place.context())}
    if tool.isolation == "thread":
        return await _call_in_thread(tool, keywords, abandoned)
    value = call_plainly(partial(tool.body, **keywords))
    if not inspect.isawaitable(value):
        return value

    async def body() -> Any:
        return await value

    def late() -> None:
        abandoned.count += 1

    session = "-" if place is None else place.session
    return await run_body(body, f"tool {tool.name!r} of session {session}", late)


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
    name, message = described(error)
    return failure(name, "TOOL_FAILED", message)
