"""One turn: from the input that sets it off to `turn/end`, whatever happens (design 3.4)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs
import trio

from actors.invariants import InvariantViolation
from actors.kernel import ActorCrashed, ActorStopped
from actors.session_log import SessionLog
from actors.step import LoopInstance
from runtime.envelope import Draft, Event, draft
from runtime.events import (
    AssistantMessage,
    CompactEnd,
    EndReason,
    StepEnd,
    ToolError,
    ToolResult,
    Trigger,
    TurnEnd,
    TurnStart,
)
from runtime.json import clean_text
from runtime.llm.chunks import Usage
from runtime.llm.failures import LlmFailure
from runtime.messages import TextBlock, text_of, tool_calls
from runtime.repair import NOT_STARTED
from runtime.storage.errors import LogFailed, StoreFull

_log = logging.getLogger("refold")

_LOG_IS_GONE = (LogFailed, StoreFull, ActorCrashed, ActorStopped)
"""What ends the session and not the turn: there is no log left to write a reason into."""

CLOSE_SECONDS = 10.0
"""How long a cancelled turn may take to write its last events."""

ABORTED = (
    "This call was aborted while it ran. Check the state of whatever it touches before making it "
    "again, unless it only reads."
)


@attrs.frozen
class Turn:
    """A finished turn: the model's last visible text, why it ended, what it used, where it ends."""

    turn: int
    text: str
    reason: EndReason
    usage: Usage
    end_seq: int


class Cancel:
    """How the turn in hand is cancelled, and the end that it then has."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.reason = EndReason("disposed")

    def __call__(self, reason: EndReason) -> None:
        """Cancel the turn; the first reason stands."""
        if not self.scope.cancel_called:
            self.reason = reason
            self.scope.cancel(reason=reason.reason or reason.kind)


@attrs.define
class _Progress:
    """What a turn has to show so far; `context` joins its open step after all results."""

    text: str = ""
    usage: Usage = attrs.field(factory=Usage)
    step: int = 0
    max_tokens: bool = False
    context: list[Draft] = attrs.field(factory=list)
    violation: InvariantViolation | None = None

    def see(self, event: Event) -> None:
        """Take note of what a model said, also of an answer that was cut."""
        message = event.data if event.type == "assistant/message" else None
        if isinstance(message, AssistantMessage):
            self.step = message.step
            self.text = text_of(message.content)
            self.usage = _sum(self.usage, message.usage or Usage())


async def open_turn(log: SessionLog, queued: Sequence[Draft], trigger: Trigger) -> int:
    """Append `queued` and `turn/start` as one batch; returns the number of the turn."""
    number = log.live.rules.structure.turn + 1
    await log.append(*queued, draft(TurnStart(number, trigger)))
    return number


async def run_turn(
    instance: LoopInstance, turn: int, cancel: Cancel
) -> tuple[Turn, InvariantViolation | None]:
    """Take steps of the open turn until the model is done, then append `turn/end`.

    Model failures, seam errors and cancellation end the turn with a reason; the log is balanced
    and durable when this returns. A violation is returned beside the turn: it ends the session.
    Raises what the log writer does. Cancelled from outside, it closes the turn as `disposed`.
    """
    log, progress = instance.log, _Progress()
    reason = EndReason("disposed")
    unobserve = log.observe(progress.see)
    try:
        reason = await _attempt(instance, turn, progress, cancel)
    except _LOG_IS_GONE:
        raise
    except BaseException:
        await _close(log, turn, reason, progress)
        raise
    finally:
        unobserve()
    end_seq = await _close(log, turn, reason, progress)
    return Turn(turn, progress.text, reason, progress.usage, end_seq), progress.violation


async def _attempt(
    instance: LoopInstance, turn: int, progress: _Progress, cancel: Cancel
) -> EndReason:
    # The scope takes its own Cancelled out of a group and lets the rest go on as an Exception, so
    # the handlers have to stand around it.
    try:
        with cancel.scope:
            return await _steps(instance, turn, progress)
    except InvariantViolation as violation:
        progress.violation = violation
        return _error(instance, str(violation), "INVARIANT")
    except _LOG_IS_GONE:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a seam raises ends the turn only
        if not cancel.scope.cancel_called:
            return _failed(instance, turn, error)
    return cancel.reason


def _failed(instance: LoopInstance, turn: int, error: Exception) -> EndReason:
    if isinstance(error, LlmFailure):
        return _error(instance, error.failure.message, error.failure.code)
    session = instance.log.session_id
    _log.error("turn %d of session %s failed", turn, session, exc_info=error)
    return _error(instance, _said(error), "UNKNOWN")


def _said(error: Exception) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - `__str__` is code of the seam too
        return name


def _error(instance: LoopInstance, message: str, code: str) -> EndReason:
    step = instance.log.live.rules.structure.last_step
    return EndReason("error", step=step, message=clean_text(message), code=code)


async def _steps(instance: LoopInstance, turn: int, progress: _Progress) -> EndReason:
    log = instance.log
    while True:
        answer = await instance.step(turn, progress.context, first=progress.step == 0)
        progress.max_tokens = progress.max_tokens or answer.finish == "max-tokens"
        waiting = any(e.target == "step" for e in log.live.rules.inbox.pending.values())
        if not (tool_calls(answer.message.content) or waiting):
            return EndReason("max-tokens" if progress.max_tokens else "completed")
        if progress.step >= instance.options.max_steps:
            return EndReason("budget", limit="steps")
        await log.append(*progress.context, draft(StepEnd(turn, progress.step)))
        progress.context = []


async def _close(log: SessionLog, turn: int, reason: EndReason, progress: _Progress) -> int:
    """Give every open call a result, end the step and the turn; returns the seq of `turn/end`."""
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        drafts = [*_closers(log, progress), draft(TurnEnd(turn, reason))]
        events = await log.append(*drafts, flush=True)
        return events[-1].seq
    raise LogFailed(log.session_id, f"no answer in {CLOSE_SECONDS:g} s", log.live.durable_seq)


def _closers(log: SessionLog, progress: _Progress) -> list[Draft]:
    rules = log.live.rules
    drafts = []
    if rules.bracket is not None:
        drafts.append(draft(CompactEnd(rules.bracket.turn, error="aborted")))
    step = rules.structure.step
    if step is None:
        return drafts
    for call_id in step.waiting:
        started = call_id in step.started
        code, text = ("ABORTED", ABORTED) if started else ("NOT_STARTED", NOT_STARTED)
        error = ToolError("ToolAborted", code)
        result = ToolResult(step.turn, step.number, call_id, (TextBlock(text),), True, error)
        drafts.append(draft(result))
    return [*drafts, *progress.context, draft(StepEnd(step.turn, step.number))]


def _sum(one: Usage, other: Usage) -> Usage:
    pairs = zip(attrs.astuple(one), attrs.astuple(other), strict=True)
    return Usage(*(None if a is None and b is None else (a or 0) + (b or 0) for a, b in pairs))
