"""The steps of a log, and how people name them: `3.1`, or the seq of any event inside one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from refold.runtime import standing
from refold.runtime.envelope import Event
from refold.runtime.errors import NoSuchStep
from refold.runtime.events import RequestSealed
from refold.runtime.standing import STEP_ENDS, Standing


@attrs.frozen
class StepSpan:
    """One step's place in its log: the events from its boundary up to, not including, `end`."""

    turn: int
    step: int
    boundary: int
    end: int
    seal: RequestSealed | None = None

    @property
    def name(self) -> str:
        """`turn.step`, as people write it."""
        return f"{self.turn}.{self.step}"


def list_steps(events: Sequence[Event]) -> list[StepSpan]:
    """Every step of a log, in order; one that is still open ends where the log does."""
    found: list[StepSpan] = []
    at = Standing()
    for event in events:
        before, at = at, at.after(event)
        if before.step is not None and before.step is not at.step and event.type in STEP_ENDS:
            found.append(_step(before.step, event.seq + (event.type == "step/end")))
    return found if at.step is None else [*found, _step(at.step, len(events))]


def _step(step: standing.Step, end: int) -> StepSpan:
    return StepSpan(step.turn, step.number, step.start, end, step.seal)


def find_step(events: Sequence[Event], wanted: str) -> StepSpan:
    """The step that `wanted` names: `turn.step`, or the seq of an event from its start to its end.

    Raises `NoSuchStep`, which says what the log has.
    """
    steps = list_steps(events)
    for step in reversed(steps):
        if _is_named(step, wanted):
            return step
    raise NoSuchStep(wanted, _what_there_is(steps))


def _is_named(step: StepSpan, wanted: str) -> bool:
    if re.fullmatch(r"[0-9]{1,19}", wanted, re.ASCII):
        return step.boundary <= int(wanted) < step.end
    return step.name == wanted


def _what_there_is(steps: Sequence[StepSpan]) -> str:
    names = [step.name for step in steps]
    if len(names) > 8:
        names = [*names[:3], "...", *names[-3:]]
    places = f" (seqs {steps[0].boundary} to {steps[-1].end - 1})" if steps else ""
    return ", ".join(names) + places
