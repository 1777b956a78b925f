"""One turn: from the input that sets it off to `turn/end`, whatever happens.

However a turn ends, its last events give every open call a result and close the step, shielded and
with a deadline: the next prompt finds a history that can be sent.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import attrs
import trio

from refold.actors.kernel import ActorCrashed, ActorStopped
from refold.actors.log.session_log import SessionLog
from refold.actors.request.invariants import InvariantViolation
from refold.actors.turn.claims import AllRejected
from refold.actors.turn.step import LoopInstance
from refold.runtime import typed_json
from refold.runtime.closing import NOT_STARTED, Why, closers
from refold.runtime.envelope import Draft, draft
from refold.runtime.errors import NotLosslessJson, Refused
from refold.runtime.events import EndReason, StepEnd, ToolError
from refold.runtime.json import clean_text, said_by
from refold.runtime.storage.errors import PASSING, Fenced, LogFailed
from refold.runtime.stream.failures import Failure, LlmFailure

_log = logging.getLogger("refold")

CLOSE_SECONDS = 45.0
"""How long a turn may take to write its last events: longer than a store waits for a sync."""

ABORTED = (
    "This call was aborted while it ran. Check the state of whatever it touches before making it "
    "again, unless it only reads."
)


class Cancel:
    """How the turn in hand is cancelled, and the end that it then has.

    After `max_seconds` it cancels itself, as `budget`.
    """

    def __init__(self, max_seconds: float | None) -> None:
        self.scope = trio.CancelScope()
        self.reason = EndReason("disposed")
        if max_seconds is not None:
            self.scope.deadline = trio.current_time() + max_seconds
            self.reason = EndReason("budget", limit="seconds")

    def __call__(self, reason: EndReason) -> None:
        """Cancel the turn; the first reason stands."""
        if not self.scope.cancel_called:
            self.reason = reason
            self.scope.cancel(reason=reason.reason or reason.kind)


@attrs.define
class TurnNotes:
    """What a turn keeps beside the log: `context` joins its open step after all results.

    `mine` are the entries that it is for; a recovery turn has None, since it takes no prompt.
    `violation` ends the session, `stopped` says that `turn_stop` owned the turn's end.
    """

    mine: frozenset[int] | None
    max_tokens: bool = False
    context: list[Draft] = attrs.field(factory=list)
    violation: InvariantViolation | None = None
    stopped: bool = False


async def run_turn(
    instance: LoopInstance, cancel: Cancel, mine: frozenset[int] | None
) -> TurnNotes:
    """Take steps of the open turn until the model is done, then append `turn/end`.

    `mine` are the entries that it is for, or None for a recovery turn.
    Model failures, seam errors, budgets and cancellation end the turn with a reason; the log is
    balanced and durable when this returns. Raises what ended the session. Cancelled from outside,
    it closes the turn as `disposed`.
    """
    progress = TurnNotes(mine)
    reason = EndReason("disposed")
    try:
        reason = await _attempt(instance, progress, cancel)
    except Exception as error:
        with suppress(Refused, Fenced, LogFailed, *PASSING, ActorCrashed):  # `error` says more
            await _close(instance, _error(instance, said_by(error), "SESSION_FAILED"), progress)
        raise
    except BaseException:
        await _close(instance, reason, progress)
        raise
    await _close(instance, reason, progress)
    return progress


async def _attempt(instance: LoopInstance, progress: TurnNotes, cancel: Cancel) -> EndReason:
    # The scope takes its own Cancelled out of a group and lets the rest go on as an Exception, so
    # the handlers have to stand around it.
    try:
        with cancel.scope:
            return await _steps(instance, progress)
    except AllRejected as rejected:
        return EndReason("rejected", reason=rejected.reason)
    except InvariantViolation as violation:
        progress.violation = violation
        return _error(instance, str(violation), "INVARIANT")
    except Exception as error:
        if _ends_the_session(instance.log, error):
            raise
        if not cancel.scope.cancel_called:
            return _failed(instance, error)
        _log.warning(
            "a cancelled turn of session %s failed", instance.log.session_id, exc_info=error
        )
    return cancel.reason


def _ends_the_session(log: SessionLog, error: Exception) -> bool:
    """Whether there is no log left to write a reason into; another session's end is none."""
    if isinstance(error, ActorCrashed | ActorStopped):
        return error.actor.startswith(f"{log.session_id}/")
    return isinstance(error, (Fenced, LogFailed, *PASSING))


def _failed(instance: LoopInstance, error: Exception) -> EndReason:
    if isinstance(error, LlmFailure) and type(error.failure) is Failure:
        with suppress(
            typed_json.Misfit, NotLosslessJson
        ):  # a seam can raise one that is made of anything
            failure = typed_json.cleaned(error.failure)
            return _error(instance, failure.message, failure.code)
    _log.error("a turn of session %s failed", instance.log.session_id, exc_info=error)
    return _error(instance, said_by(error), "UNKNOWN")


def _error(instance: LoopInstance, message: str, code: str) -> EndReason:
    step = instance.log.live.rules.standing.last_step
    return EndReason("error", step=step, message=clean_text(message), code=code)


async def _steps(instance: LoopInstance, progress: TurnNotes) -> EndReason:
    log, budgets = instance.log, instance.options.budgets
    tally = log.live.answers.current
    assert tally is not None, "a turn is open"
    mine = progress.mine
    while True:
        try:
            answer = await instance.step(tally.turn, progress.context, mine)
        except AllRejected:
            if not tally.answered:
                raise
            break  # what it went on for may not pass, and it has answered already
        mine = None
        progress.max_tokens = progress.max_tokens or answer.finish == "max-tokens"
        goes_on = await instance.goes_on(tally.turn, answer.message)
        progress.stopped = goes_on == "stopped"
        if goes_on != "yes":
            break
        spent = budgets.spent(tally)
        if spent is not None:
            return EndReason("budget", limit=spent)
        await log.append(*progress.context, draft(StepEnd(tally.turn, tally.step)))
        progress.context = []
    return EndReason("max-tokens" if progress.max_tokens else "completed")


async def _close(instance: LoopInstance, reason: EndReason, progress: TurnNotes) -> None:
    """Give every open call a result, end the step and the turn, durably.

    A turn that was cancelled gives up what it was for and had not taken yet.
    """
    log = instance.log
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        if reason.kind in ("aborted", "budget"):
            await instance.due.give_up(progress.mine or frozenset())
        drafts = closers(log.live.rules.standing, _aborted(reason), progress.context)
        await log.append(*drafts, flush=True)
        return
    raise LogFailed(log.session_id, f"no answer in {CLOSE_SECONDS:g} s", log.live.durable_seq)


def _aborted(reason: EndReason) -> Why:
    """A turn that is ended from here: what ran was told to stop."""
    return Why(
        reason,
        "aborted",
        (NOT_STARTED, ToolError("ToolAborted", "NOT_STARTED")),
        (ABORTED, ToolError("ToolAborted", "ABORTED")),
    )
