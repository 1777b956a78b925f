"""What a tool or seam may know of its call, and say beside its result.

Data, which a call is given whole, and async calls on its session: nothing that only the loop's own
task could give. Whose code it is asks for it with a parameter annotated `Context`.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs
import trio

from refold.actors.arguments import check_text, unwrapped
from refold.actors.bodies import call_plainly
from refold.actors.log.seam_log import SeamLog
from refold.runtime.envelope import Draft, Event
from refold.runtime.errors import InvalidArgument, Refused

_log = logging.getLogger("refold")


@attrs.frozen
class Progress:
    """What a tool or seam says of its work while it lasts; it is told to listeners, not logged.

    `step` is None before the turn's step is open, `call_id` None in a seam that looks at no call.
    """

    session: str
    turn: int
    step: int | None
    call_id: str | None
    text: str


@attrs.define(eq=False)
class NotHere(Refused):
    """A call of a `Context` by plain code, which cannot await it; `instead` says what to write."""

    instead: str

    def __str__(self) -> str:
        return f"a plain function cannot await what a refold.Context does; {self.instead}"


@attrs.frozen(eq=False)
class Context:
    """Where a tool or seam is called, and its way to the session.

    Given to each parameter that is annotated with it, in tools and in seams; no model sees that
    one. `session` is the session's id and `agent` the agent's name, None where it has none.
    `step` is None before the turn's step is open, `call_id` None in a seam that looks at no call.
    The call id is unique in its step, and stands in the log before a tool with effects starts: what
    a tool does elsewhere can be keyed by `session`, `turn`, `step` and `call_id`. `state` is what
    the agent was given as `state=`, as read-only JSON; `log` reads the session's log.
    """

    session: str
    agent: str | None
    turn: int
    step: int | None
    call_id: str | None
    state: Mapping[str, Any] = attrs.field(repr=False)
    log: SeamLog = attrs.field(repr=False)
    _listeners: list[Callable[[Progress], None]] = attrs.field(repr=False)
    _until: float = attrs.field(factory=trio.current_effective_deadline, repr=False)
    _clock: trio.abc.Clock = attrs.field(factory=trio.lowlevel.current_clock, repr=False)
    _caller: trio.lowlevel.Task = attrs.field(factory=trio.lowlevel.current_task, repr=False)

    @property
    def deadline(self) -> float | None:
        """The seconds left until this call is cancelled, at least 0; None without a limit.

        A tool's `timeout` and its turn's `max_seconds`, whichever is over first. May be read in any
        thread.
        """
        if math.isinf(self._until) and self._until > 0:
            return None
        return max(0.0, self._until - self._clock.current_time())

    def append(self, *drafts: Draft, flush: bool = False) -> Awaitable[tuple[Event, ...]]:
        """Commit all drafts or none, and return the events; with `flush`, once they are durable.

        As `SeamLog.append`, and with its errors. While a tool runs, its own call has no result yet,
        so that no message may follow: what the model is to read beside the result is appended as
        input that joins the next step, an `inbox/queued`. In a plain function it raises a
        `RefoldError` at the call; in a thread `trio.from_thread.run(context.append, draft)` does
        it.
        """
        self._check_awaitable("append")
        return self.log.append(*drafts, flush=flush)

    def progress(self, text: str) -> Awaitable[None]:
        """Tell `text` to whoever follows the agent with `on_progress`; nothing is logged.

        Raises `InvalidArgument` for what is no text. In a plain function it raises as `append`
        does. Cancelled, it may have been told.
        """
        self._check_awaitable("progress")
        check_text("what is told", text)
        return self._tell(Progress(self.session, self.turn, self.step, self.call_id, text))

    async def _tell(self, told: Progress) -> None:
        for listener in tuple(self._listeners):
            try:
                call_plainly(partial(listener, told))
            except Exception:  # noqa: BLE001 - a display's error concerns nobody else
                _log.exception("a listener of session %s failed", self.session)
        await trio.lowlevel.checkpoint()

    def _check_awaitable(self, name: str) -> None:
        """Raise `NotHere` in a thread, and in plain code that the calling task itself runs."""
        if not _in_trio():
            raise NotHere(f"in a thread write trio.from_thread.run(context.{name}, ...)")
        if trio.lowlevel.current_task() is self._caller:
            raise NotHere(
                'make it async, or give its tool isolation="thread" and write '
                f"trio.from_thread.run(context.{name}, ...)"
            )


def _in_trio() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


@attrs.frozen(eq=False)
class Setting:
    """What all contexts of one loop instance have in common; `name` gives the agent's as it is."""

    log: SeamLog
    name: Callable[[], str | None]
    state: Mapping[str, Any]
    listeners: list[Callable[[Progress], None]]

    def context(self, turn: int, step: int | None = None, call_id: str | None = None) -> Context:
        """That of one call, to be made in the task and under the deadline that it is made in."""
        log, listeners = self.log, self.listeners
        name, state = self.name(), self.state
        return Context(log.session_id, name, turn, step, call_id, state, log, listeners)


def context_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters of `function` that want a `Context`.

    Raises `InvalidArgument` where one seems to and its annotation cannot be evaluated.
    """
    try:
        annotated = inspect.signature(function).parameters.values()
        own = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # some callables do not tell
        return ()
    takes_any = any(one.kind is one.VAR_KEYWORD for one in own)
    taken = {one.name for one in (annotated if takes_any else own)}  # a wrapper may give its own
    names = getattr(unwrapped(function), "__globals__", {})
    return tuple(
        one.name
        for one in annotated
        if one.name in taken and is_context(_evaluated(one.name, one.annotation, names))
    )


def _evaluated(name: str, hint: Any, names: dict[str, Any]) -> Any:
    if not isinstance(hint, str):
        return hint
    try:
        return get_type_hints(SimpleNamespace(__annotations__={name: hint}), names)[name]
    except Exception:  # noqa: BLE001 - hints are code: evaluating them raises anything
        if re.search(rf"\b{Context.__name__}\b", hint):
            wanted = "import refold where the program runs, not for type checkers alone"
            raise InvalidArgument(
                name, f"is annotated {hint}, which cannot be evaluated; {wanted}"
            ) from None
    return None


def is_context(hint: Any) -> bool:
    """Whether an evaluated hint asks for a `Context`, in any spelling."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [arm for arm in arms if arm is not NoneType] == [Context]
