"""Seams: the places where a user's code takes part in a turn (design 3.4).

Each is a plain async callable given at `start_agent`; those of one kind run in order. A seam that
raises ends the turn with `error`, never the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import attrs
import trio

from actors.bodies import DidNotStop, run_body
from actors.session_log import Claim, SessionLog
from actors.tools import Outcome
from runtime.events import AssistantMessage
from runtime.header import LlmCallConfig, ToolSchema
from runtime.messages import Block, Message, Source

StartSource: TypeAlias = Literal["startup", "resume", "clear", "compact"]
"""Where a loop instance comes from; `clear` and `compact` are reserved and have no producer."""


@attrs.frozen
class PromptView:
    """What `prompt_submit` sees: a pending entry that is due; nothing is claimed yet."""

    turn: int
    queued_seq: int
    content: tuple[Block, ...]
    source: Source
    kind: Literal["prompt", "steer", "inject"]


@attrs.frozen
class Submit:
    """A `prompt_submit` verdict: let it in, rewritten and with extra context where given."""

    content: tuple[Block, ...] | None = None
    context: tuple[Block, ...] = ()


@attrs.frozen
class Reject:
    """A `prompt_submit` verdict: the prompt never reaches the model, and the log says why."""

    reason: str


@attrs.frozen
class StepView:
    """What `pre_step` sees: the step that is about to open, and the log it may append to."""

    log: SessionLog
    turn: int
    system: str
    tools: tuple[ToolSchema, ...]
    prefix: tuple[Message, ...]
    claims: tuple[Claim, ...]


@attrs.frozen
class CallView:
    """What the tool seams see of one call; `arguments` is the model's raw text."""

    turn: int
    step: int
    call_id: str
    name: str
    arguments: str


@attrs.frozen
class Deny:
    """A `pre_tool` verdict: the call gets an error result with this reason and never starts."""

    reason: str


@attrs.frozen
class TurnView:
    """What the seams at a step's end see; `going_on` is what happens if none of them objects."""

    log: SessionLog
    turn: int
    step: int
    message: AssistantMessage
    going_on: bool


@attrs.frozen
class GoOn:
    """A `turn_continuation` verdict: take another step, with this text as steering."""

    text: str


@attrs.frozen
class Stop:
    """A `turn_continuation` verdict: end the turn, unless steering has come meanwhile."""


SessionStart: TypeAlias = Callable[[SessionLog, StartSource], Awaitable[None]]
PromptSubmit: TypeAlias = Callable[[PromptView], Awaitable[Submit | Reject | None]]
SessionPrefix: TypeAlias = Callable[[SessionLog], Awaitable[Sequence[Message]]]
PreStep: TypeAlias = Callable[[StepView], Awaitable[None]]
RequestSeam: TypeAlias = Callable[[LlmCallConfig], Awaitable[LlmCallConfig]]
PreTool: TypeAlias = Callable[[CallView], Awaitable[Deny | None]]
PostTool: TypeAlias = Callable[[CallView, Outcome], Awaitable[Outcome]]
TurnContinuation: TypeAlias = Callable[[TurnView], Awaitable[GoOn | Stop | None]]
TurnStop: TypeAlias = Callable[[TurnView], Awaitable[bool]]


@attrs.frozen
class Seams:
    """The seams of one agent, by kind, in the order in which they have their say.

    `session_start` runs once a loop instance; `prompt_submit` judges each prompt that is due;
    `session_prefix` composes the request-only opening messages once a loop instance; `pre_step`
    is the only place that may change the surface for the coming request; `request` may replace
    the frozen call config and nothing else; `pre_tool` allows (None) or denies; `post_tool` may
    replace an outcome, whose `context` becomes a durable context message; `turn_continuation`
    may go on or stop; `turn_stop` is terminal, and the first that returns True wins.
    """

    session_start: tuple[SessionStart, ...] = ()
    prompt_submit: tuple[PromptSubmit, ...] = ()
    session_prefix: tuple[SessionPrefix, ...] = ()
    pre_step: tuple[PreStep, ...] = ()
    request: tuple[RequestSeam, ...] = ()
    pre_tool: tuple[PreTool, ...] = ()
    post_tool: tuple[PostTool, ...] = ()
    turn_continuation: tuple[TurnContinuation, ...] = ()
    turn_stop: tuple[TurnStop, ...] = ()


def contained_seams(seams: Seams, session_id: str) -> Seams:
    """The same seams, each of which runs as a body, named by its kind and session."""

    def contain(kind: str, seam: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        name = f"a seam of the kind {kind} of session {session_id}"

        async def run(*arguments: object) -> Any:
            try:
                return await run_body(partial(seam, *arguments), name)
            except DidNotStop:
                await trio.lowlevel.checkpoint_if_cancelled()  # its turn was, or it would stop
                raise

        return run

    return Seams(
        **{
            field.name: tuple(contain(field.name, seam) for seam in getattr(seams, field.name))
            for field in attrs.fields(Seams)
        }
    )
