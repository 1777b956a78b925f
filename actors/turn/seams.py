"""Seams: the places where a user's code takes part in a turn.

Each is a plain async callable given at `start_agent`; those of one kind run in order. A seam that
raises, or returns what its kind may not return, ends the turn with `error`, never the loop.

What a seam returns comes from outside, as what a tool returns does. `consult` takes it as a reader
of the log would find it: of the right shape all the way down, its texts clean.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Literal, TypeAlias

import attrs
import trio

from refold.actors.arguments import is_async, wrong
from refold.actors.bodies import DidNotStop, run_body
from refold.actors.log.seam_log import SeamLog
from refold.actors.log.session_log import Claim
from refold.actors.tools import Outcome
from refold.runtime import typed_json
from refold.runtime.errors import NotLosslessJson, Refused
from refold.runtime.events import AssistantMessage
from refold.runtime.messages import Block, Message, Source
from refold.runtime.request_header import LlmCallConfig, ToolSchema

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

    log: SeamLog
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

    log: SeamLog
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


SessionStart: TypeAlias = Callable[[SeamLog, StartSource], Awaitable[None]]
PromptSubmit: TypeAlias = Callable[[PromptView], Awaitable[Submit | Reject | None]]
SessionPrefix: TypeAlias = Callable[[SeamLog], Awaitable[Sequence[Message]]]
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

    Raises `InvalidArgument` for anything but tuples (or lists) of async functions.
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

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Seams):
            given: object = getattr(self, field.name)
            if not isinstance(given, list | tuple):
                raise wrong(field.name, "a tuple of async functions, such as (mine,)", given)
            for seam in given:
                if not is_async(seam):
                    raise wrong(f"each seam in {field.name}", "an async function", seam)
            object.__setattr__(self, field.name, tuple(given))


@attrs.define(eq=False)
class SeamMisused(Refused):
    """What a seam returned, and its kind may not; `seam` is the function's name."""

    kind: str
    seam: str
    problem: str

    def __str__(self) -> str:
        return f"the {self.kind} seam {self.seam} returned {self.problem}"


_NONE = type(None)

_MAY_RETURN: Mapping[str, tuple[tuple[type, ...], str]] = {
    "session_start": ((_NONE,), "nothing"),
    "prompt_submit": ((Submit, Reject, _NONE), "Submit(...), Reject(reason) or None"),
    "session_prefix": ((list, tuple), "a list of messages"),
    "pre_step": ((_NONE,), "nothing"),
    "request": ((LlmCallConfig,), "the config that it was given, or another one"),
    "pre_tool": ((Deny, _NONE), "Deny(reason) or None"),
    "post_tool": ((Outcome,), "the outcome that it was given, or another one"),
    "turn_continuation": ((GoOn, Stop, _NONE), "GoOn(text), Stop() or None"),
    "turn_stop": ((bool, _NONE), "True or False"),
}


async def consult(kind: str, seam: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
    """Ask a seam of the kind `kind`, and return what it says.

    Raises `SeamMisused` for what it may not say, and what the seam raises.
    """
    said = await seam(*arguments)
    classes, words = _MAY_RETURN[kind]
    if type(said) not in classes:
        if inspect.iscoroutine(said):
            said.close()  # else Python warns of it, at some other place
        raise SeamMisused(kind, _name_of(seam), f"{_described(said)}; it may return {words}")
    try:
        if kind == "session_prefix":
            return tuple(map(_message, said))
        if kind == "request":
            return typed_json.read_back(said)[1]  # a model's name is not mended
        return said if isinstance(said, bool | None) else typed_json.cleaned(said)
    except (typed_json.Misfit, NotLosslessJson) as refused:
        problem = f"{_described(said)} that nobody could read in the log: {refused}"
        raise SeamMisused(kind, _name_of(seam), problem) from None


def _message(said: object) -> Message:
    if type(said) is not Message:
        raise typed_json.Misfit(f"it holds {_described(said)} in place of a message")
    return typed_json.cleaned(said)


def _described(said: object) -> str:
    if isinstance(said, type):
        return f"the class {said.__name__} in place of an instance"
    if inspect.iscoroutine(said):
        return f"a coroutine that was not awaited ({said.__name__})"
    return type(said).__name__


def _name_of(seam: object) -> str:
    name = getattr(seam, "__qualname__", None)
    return name if isinstance(name, str) else type(seam).__qualname__


def contained_seams(seams: Seams, session_id: str) -> Seams:
    """The same seams, each of which runs as a body, named by its kind and session."""

    def contain(kind: str, seam: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        name = f"a seam of the kind {kind} of session {session_id}"

        @wraps(seam)
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
