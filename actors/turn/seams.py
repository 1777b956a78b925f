"""Seams: the places where a user's code takes part in a turn.

Each is a plain async callable given at `start_agent`; those of one kind run in order. A seam that
raises, or returns what its kind may not return, ends the turn with `error`, never the loop.

What a seam returns comes from outside, as what a tool returns does. `consult` takes it as a reader
of the log would find it: of the right shape all the way down, its texts clean.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Literal, Self, TypeAlias, cast

import attrs
import trio

from refold.actors.bodies import DidNotStop, run_body
from refold.actors.context import Context, context_parameters
from refold.actors.log.seam_log import SeamLog
from refold.actors.log.session_log import Claim
from refold.actors.tools import Outcome
from refold.actors.turn.given_seams import check_kinds, check_seams, name_of
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


async def consult(
    kind: str, seam: Callable[..., Awaitable[Any]], context: Context, *arguments: object
) -> Any:
    """Ask a contained seam of the kind `kind`, and return what it says.

    Raises `SeamMisused` for what it may not say, and what the seam raises.
    """
    said = await seam(context, *arguments)
    try:
        return _taken(kind, seam, said)
    except SeamMisused:
        _close_forgotten(said)
        raise


def _taken(kind: str, seam: Callable[..., Awaitable[Any]], said: Any) -> Any:
    classes, words = _MAY_RETURN[kind]
    if type(said) not in classes:
        raise SeamMisused(kind, name_of(seam), f"{_described(said)}; it may return {words}")
    try:
        if kind == "session_prefix":
            return tuple(map(_message, said))
        if kind == "request":
            return typed_json.read_back(said)[1]  # a model's name is not mended
        return said if isinstance(said, bool | None) else typed_json.cleaned(said)
    except (typed_json.Misfit, NotLosslessJson) as refused:
        problem = f"{_described(said)} that nobody could read in the log: {refused}"
        raise SeamMisused(kind, name_of(seam), problem) from None


def _close_forgotten(said: object) -> None:
    """Close coroutines that nobody will await, or Python warns of them at some other place."""
    parts = said if isinstance(said, list | tuple) else (said,)
    if attrs.has(type(said)) and not isinstance(said, type):
        parts = attrs.astuple(cast("attrs.AttrsInstance", said), recurse=False)
    for part in parts:
        if isinstance(part, CoroutineType):
            part.close()


def _message(said: object) -> Message:
    if type(said) is not Message:
        raise typed_json.Misfit(f"it holds {_described(said)} in place of a message")
    return typed_json.cleaned(said)


SHOWN = 40
"""How many characters an error shows of a text that a seam returned."""


def _described(said: object) -> str:
    match said:
        case type():
            return f"the class {said.__name__} in place of an instance"
        case bool() | int() | float() | None:
            return repr(said)
        case str():
            return f"the text {said if len(said) <= SHOWN else said[:SHOWN] + '…'!r}"
        case CoroutineType():
            return f"a coroutine that was not awaited ({said.__name__})"
        case GeneratorType():
            return "a generator"
        case AsyncGeneratorType():
            return "an async generator"
    return type(said).__name__


def _awaitable(
    kind: str, seam: Callable[..., Awaitable[Any]], ask: Callable[[], Awaitable[Any]]
) -> Awaitable[Any]:
    said: object = ask()
    if not inspect.isawaitable(said):
        problem = f"{_described(said)}, which cannot be awaited; make it an async function"
        raise SeamMisused(kind, name_of(seam), problem)
    return said


def contained_seams(seams: Seams, session_id: str) -> Seams:
    """The same seams, each of which runs as a body, named by its kind and session.

    They are called with the context first, and hand it on to a seam that wants one.
    """

    def contain(kind: str, seam: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        name = f"a seam of the kind {kind} of session {session_id}"
        wanted = context_parameters(seam)

        async def run(context: Any, *arguments: object) -> Any:
            ask = partial(seam, *arguments, **dict.fromkeys(wanted, context))
            try:
                return await run_body(partial(_awaitable, kind, seam, ask), name)
            except DidNotStop:
                await trio.lowlevel.checkpoint_if_cancelled()  # its turn was, or it would stop
                raise

        run.__qualname__ = name_of(seam)
        return run

    return Seams(
        **{
            field.name: tuple(contain(field.name, seam) for seam in getattr(seams, field.name))
            for field in attrs.fields(Seams)
        }
    )
