"""Seams: the places where a user's code takes part in a turn.

Each is a plain async callable given at `start_agent`; those of one kind run in order. A seam that
raises, or returns what its kind may not return, ends the turn with `error`, never the loop.

Here is what they see and what they may say; `consult` asks them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Self, TypeAlias

import attrs

from refold.actors.context import Context
from refold.actors.log.seam_log import SeamLog
from refold.actors.log.session_log import Claim
from refold.actors.tools import Outcome
from refold.actors.turn.given_seams import check_kinds, check_seams
from refold.runtime.events import AssistantMessage
from refold.runtime.messages import Block, Message, Source
from refold.runtime.request_header import LlmCallConfig, ToolSchema

StartSource: TypeAlias = Literal["startup", "resume", "clear", "compact"]
"""Where a loop instance comes from; `clear` and `compact` are reserved and have no producer."""


@attrs.frozen
class PromptView:
    """What `prompt_submit` sees: a pending entry that is due; nothing is claimed yet."""

    session: str
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

    log: SeamLog
    session: str
    turn: int
    system: str
    tools: tuple[ToolSchema, ...]
    prefix: tuple[Message, ...]
    claims: tuple[Claim, ...]


@attrs.frozen
class CallView:
    """What the tool seams see of one call; `arguments` is the model's raw text."""

    session: str
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

    log: SeamLog
    session: str
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


SessionStart: TypeAlias = (
    Callable[[SeamLog, StartSource], Awaitable[None]]
    | Callable[[SeamLog, StartSource, Context], Awaitable[None]]
)
PromptSubmit: TypeAlias = (
    Callable[[PromptView], Awaitable[Submit | Reject | None]]
    | Callable[[PromptView, Context], Awaitable[Submit | Reject | None]]
)
SessionPrefix: TypeAlias = (
    Callable[[SeamLog], Awaitable[Sequence[Message]]]
    | Callable[[SeamLog, Context], Awaitable[Sequence[Message]]]
)
PreStep: TypeAlias = (
    Callable[[StepView], Awaitable[None]] | Callable[[StepView, Context], Awaitable[None]]
)
RequestSeam: TypeAlias = (
    Callable[[LlmCallConfig], Awaitable[LlmCallConfig]]
    | Callable[[LlmCallConfig, Context], Awaitable[LlmCallConfig]]
)
PreTool: TypeAlias = (
    Callable[[CallView], Awaitable[Deny | None]]
    | Callable[[CallView, Context], Awaitable[Deny | None]]
)
PostTool: TypeAlias = (
    Callable[[CallView, Outcome], Awaitable[Outcome]]
    | Callable[[CallView, Outcome, Context], Awaitable[Outcome]]
)
TurnContinuation: TypeAlias = (
    Callable[[TurnView], Awaitable[GoOn | Stop | None]]
    | Callable[[TurnView, Context], Awaitable[GoOn | Stop | None]]
)
TurnStop: TypeAlias = (
    Callable[[TurnView], Awaitable[bool | None]]
    | Callable[[TurnView, Context], Awaitable[bool | None]]
)


@attrs.frozen(kw_only=True)
class Seams:
    """The seams of one agent, by kind, in the order in which they have their say.

    A seam may have one more parameter, annotated `Context`.

    `session_start` runs once a loop instance; `prompt_submit` judges each prompt that is due;
    `session_prefix` composes the request-only opening messages once a loop instance; `pre_step`
    is the only place that may change the surface for the coming request; `request` may replace
    the frozen call config and nothing else; `pre_tool` allows (None) or denies; `post_tool` may
    replace an outcome, whose `context` becomes a durable context message; `turn_continuation`
    may go on or stop; `turn_stop` is terminal, and the first that returns True wins.

    Raises `InvalidArgument` for a kind that there is not, for anything but tuples (or lists) of
    async functions, and for a function that cannot be called with what its kind is given.
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

    def __new__(cls, *given: object, **seams: object) -> Self:  # `__init__` names no one's slip
        check_kinds(given, seams, [field.name for field in attrs.fields(cls)])
        return object.__new__(cls)

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Seams):
            checked = check_seams(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, checked)
