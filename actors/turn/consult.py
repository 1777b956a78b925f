"""Asking a seam: it runs as a body, and what it says is held to what its kind may.

What a seam returns comes from outside, as what a tool returns does. It is taken as a reader of the
log would find it: of the right shape all the way down, its texts clean. Anything else is an error
that names the seam, so that a guard which says what nobody understands lets nothing pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, cast

import attrs
import trio

from refold.actors.bodies import DidNotStop, run_body
from refold.actors.context import Context, context_parameters
from refold.actors.tools import Outcome
from refold.actors.turn.given_seams import name_of
from refold.actors.turn.seams import Deny, GoOn, Reject, Seams, Stop, Submit
from refold.runtime import typed_json
from refold.runtime.errors import NotLosslessJson, Refused
from refold.runtime.messages import Message
from refold.runtime.request_header import LlmCallConfig


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


TEXT_SHOWN = 40
"""How many characters an error shows of a text that a seam returned."""


def _described(said: object) -> str:
    match said:
        case type():
            return f"the class {said.__name__} in place of an instance"
        case bool() | int() | float() | None:
            return repr(said)
        case str():
            return f"the text {said if len(said) <= TEXT_SHOWN else said[:TEXT_SHOWN] + '…'!r}"
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
