"""A recorded session as the model of a test: the same requests get the same answers, and no others.

A program that is changed and asks what it asked before sends, byte for byte, the bodies that the
log has seals for. So a recording of a session, of a real model too, is a test of everything that
shapes a request; the first one that differs is named with the place where it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import orjson

from refold.actors.request.script import Answer, Call, End, Fail, Hang, Piece, Say, Script, Think
from refold.runtime.divergence import rebuild_step
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import Refused
from refold.runtime.events import AssistantMessage
from refold.runtime.json_diff import first_difference
from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.step_names import StepSpan, list_steps
from refold.runtime.storage.framing import Record


@attrs.define(eq=False)
class Diverged(Refused):
    """A request that is not the recorded one; `step` names that one, as `refold show` does."""

    step: str
    difference: str

    def __str__(self) -> str:
        return (
            f"this request is not the recorded one of step {self.step}: {self.difference}; mend "
            "what changed it, or record the session anew"
        )


def replay(records: Sequence[Record]) -> Script:
    """A strict model of a recorded session, given as `refold.logs` reads it.

    For example `replay(open_sessions("sessions").read("booking").records)`, among the `providers`
    of `refold.open`. It stands in for the provider that was recorded, under its name, and answers
    each request with what that one had answered: text, thoughts, calls with their ids. Delays and
    token counts are not replayed; an answer that was cut goes silent where it was, until the turn
    is cancelled. A request that differs ends its turn in an error that says where; so does one
    more than was recorded. Raises `ValueError` for a session in which no model, or more than one
    provider, was asked.
    """
    events = [decode_line(record.encoded) for record in records]
    steps = [step for step in list_steps(events) if step.seal is not None]
    providers = {rebuild_step(events, step).request.header.config.provider for step in steps}
    if len(providers) != 1:
        raise ValueError(f"a recording is of one provider; this session asked {len(providers)}")
    waiting = iter(steps)

    def answer(body: Any) -> Answer:
        step = next(waiting, None)
        if step is None:
            raise Diverged("none", f"the recording ends after {len(steps)} requests")
        recorded = orjson.loads(rebuild_step(events, step).encode().body)
        difference = first_difference(recorded, body)
        if difference is not None:
            raise Diverged(step.name, str(difference))
        return list(_said(events, step))

    return Script(answer, name=providers.pop())


def _said(events: Sequence[Event], step: StepSpan) -> Iterator[Piece]:
    """What the model answered in a step."""
    found = (event.data for event in events[step.boundary : step.end])
    message = next((data for data in found if isinstance(data, AssistantMessage)), None)
    if message is None:
        yield Fail("ABORTED", f"the recorded request of step {step.name} had no answer")
        return
    for block in message.content:
        match block:
            case TextBlock(text):
                yield Say(text)
            case ReasoningBlock(text):
                yield Think(text)
            case ToolCallBlock(id_, name, arguments):
                yield Call(name, arguments, id_)
    if message.interrupted:
        yield Hang()
    if message.provenance is not None and message.provenance.replay_state is not None:
        calls = any(isinstance(block, ToolCallBlock) for block in message.content)
        yield End("tool-calls" if calls else "stop", message.provenance.replay_state)
