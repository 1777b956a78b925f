"""Seams: the places where a user's code takes part in a turn (design 3.4).

Each is a plain async callable given at `start_agent`; those of one kind run in order. A seam that
raises ends the turn with `error`, never the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import attrs

from actors.session_log import Claim, SessionLog
from actors.tools import Outcome
from runtime.header import LlmCallConfig, ToolSchema
from runtime.messages import Message


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


SessionPrefix: TypeAlias = Callable[[SessionLog], Awaitable[Sequence[Message]]]
PreStep: TypeAlias = Callable[[StepView], Awaitable[None]]
RequestSeam: TypeAlias = Callable[[LlmCallConfig], Awaitable[LlmCallConfig]]
PreTool: TypeAlias = Callable[[CallView], Awaitable[Deny | None]]
PostTool: TypeAlias = Callable[[CallView, Outcome], Awaitable[Outcome]]


@attrs.frozen
class Seams:
    """The seams of one agent, by kind.

    `session_prefix` composes the request-only opening messages once a loop instance; `pre_step`
    is the only place that may change the surface for the coming request; `request` may replace
    the frozen call config and nothing else; `pre_tool` allows (None) or denies; `post_tool` may
    replace an outcome, whose `context` becomes a durable context message.
    """

    session_prefix: tuple[SessionPrefix, ...] = ()
    pre_step: tuple[PreStep, ...] = ()
    request: tuple[RequestSeam, ...] = ()
    pre_tool: tuple[PreTool, ...] = ()
    post_tool: tuple[PostTool, ...] = ()
