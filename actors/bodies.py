"""Running code of users: it ends nothing but itself, and whoever waits for it may leave it.

A body may hold on to its task: by a shield without a deadline, by a thread that it waits for, by
a handler that swallows its cancellation. Trio can neither end such a task nor leave a nursery
with it. So a body that is awaited has a task of its own, outside every nursery of refold, in a
system task of the Trio run. It is cancelled as if it ran where it is awaited, and has
`STOP_SECONDS` for its cleanup, less after a Ctrl-C. After that it is left behind: its waiter goes
on and says who did not stop, and what the body returns later is discarded.

A body that was left behind is to the program what a daemon thread is: it goes on while the
program does, and is broken off when Trio's main task is over, through its shield, as Trio breaks
off its main task at a KeyboardInterrupt. One that swallows its cancellation is broken off as soon
as it is left, or it would spin. Only a thread that it waits for cannot be broken off by anybody:
Trio's run ends when that thread does.
"""

from __future__ import annotations

import logging
import math
import signal
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, cast

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from refold.actors.kernel import AskCycle, sole_error, waiting

T = TypeVar("T")

STOP_SECONDS = 5.0
"""How long a cancelled body may take to clean up before it is left behind."""

_log = logging.getLogger("refold")


class Patience:
    """How long one session waits for what it can only leave; it may run out early.

    Its cancelled bodies, that is, and its disk once everything durable was made so.
    """

    def __init__(self) -> None:
        self.seconds = STOP_SECONDS
        self._scopes = set[trio.CancelScope]()

    def shorten(self, seconds: float) -> None:
        """From now on, and for whoever waits already, it is no more than `seconds`."""
        self.seconds = min(self.seconds, seconds)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, trio.current_time() + seconds)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """A shield that lasts as long as the patience does."""
        with trio.move_on_after(self.seconds, shield=True) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)


patience: ContextVar[Patience | None] = ContextVar("patience", default=None)
"""The patience of the session whose task this is."""


def patiently() -> AbstractContextManager[None]:
    """A shield for a last wait, as long as this session's patience lasts."""
    return (patience.get() or Patience()).wait()


class DidNotStop(Exception):
    """A body that goes on after its cancellation; `name` says which, `seconds` how long it had."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"{name} did not stop within {seconds:.1f} s; it may still be running")
        self.seconds = seconds


class Escaped(Exception):
    """What a body raised that is no `Exception`; a body can end its call and nothing else."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


class BrokenOff(BaseException):
    """Raised inside a body that was left behind, where it waits."""


def contained(error: BaseException) -> Exception:
    """What a body raised, as an error; a KeyboardInterrupt, which ends the program, is raised."""
    interrupt = _interrupt_in(error)
    if interrupt is not None:
        raise interrupt
    if isinstance(error, Exception):
        return error
    escaped = Escaped(error)
    escaped.__cause__ = error
    return escaped


@disable_ki_protection
def call_plainly(function: Callable[[], T]) -> T:
    """Call a plain function of a user here; raises what it raised, as `run_body` does.

    A Ctrl-C may end it between two instructions, since nothing else can.
    """
    try:
        return function()
    except BaseException as error:
        found = contained(error)
        if found is error:
            raise
        raise found  # noqa: B904 - it knows its cause


_body: ContextVar[_Body[Any] | None] = ContextVar("body", default=None)
"""The body in whose hand this task is."""


async def run_body(
    call: Callable[[], Awaitable[T]], name: str, late: Callable[[], None] = lambda: None
) -> T:
    """Await `call()` in a task of its own, in the context of this one, until it must stop.

    What it sets in its context stands here afterwards, as if it had been awaited. A cancellation
    of this wait reaches the body and leaves as the body lets it out. Raises `DidNotStop` where
    it does not let go, and calls `late` when it has ended after all; what the body raised; and
    `Escaped` for what is neither an `Exception` nor a KeyboardInterrupt.
    """
    body = _Body(call, name, late, trio.current_effective_deadline())
    trio.lowlevel.spawn_system_task(body.host, name=name, context=copy_context())
    return await body.result()


def refuse_waiting_for_itself(actor: str) -> None:
    """Raise `AskCycle` where waiting for the end of `actor`'s turn would be waiting for this task.

    It is so inside a body of its own that no cancellation can reach; another one is cancelled with
    its turn, and its wait with it.
    """
    body = _body.get()
    if body is None or body.actor != actor or body.done.is_set():
        return
    before, body.scope.deadline = body.scope.deadline, -math.inf  # to see how far it reaches
    reached = trio.current_effective_deadline() == -math.inf
    body.scope.deadline = before
    if not reached:
        raise AskCycle((actor, actor))


class _Body(Generic[T]):
    def __init__(
        self,
        call: Callable[[], Awaitable[T]],
        name: str,
        late: Callable[[], None],
        deadline: float,
    ) -> None:
        self.name = name
        self.scope = trio.CancelScope(deadline=deadline)
        self.done = trio.Event()
        chain = waiting()
        self.actor = chain[-1].actor if chain else None
        self._call, self._late = call, late
        self._left = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None

    async def result(self) -> T:
        """What the body came to; the wait may be cancelled, and then the body is."""
        was_cancelled = False
        try:
            await self.done.wait()
        except trio.Cancelled as cancelled:
            was_cancelled = True
            self.scope.cancel(reason=cancelled.reason)
            began = trio.current_time()
            with patiently():
                await self.done.wait()
            if not self.done.is_set():
                self._left = True
                left = DidNotStop(self.name, trio.current_time() - began)
                _log.warning("%s", left)
                raise left from None
        self._hand_over_context()
        if self._error is None:
            return cast("T", self._value)
        if (was_cancelled or self.scope.cancel_called) and _is_cancellation(self._error):
            raise self._error
        raise contained(self._error)

    def _hand_over_context(self) -> None:
        assert self._task is not None, "it is done"
        for variable, value in self._task.context.items():
            if variable is not _body and variable.get(None) is not value:
                variable.set(value)

    @enable_ki_protection
    async def host(self) -> None:
        """Keep the body's task. A system task must not fail, whatever a body leaves open."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run, name=self.name)
                try:
                    await self.done.wait()
                except trio.Cancelled:  # the main task is over
                    self._break_off()
                    raise
        except BaseException as error:  # noqa: BLE001 - there is nobody left to whom it could go
            _log.debug("%s left its task in disorder", self.name, exc_info=error)

    @enable_ki_protection
    async def _run(self) -> None:
        self._task = trio.lowlevel.current_task()
        _body.set(self)
        try:
            with self.scope:
                try:
                    self._value = await self._drive(_coroutine(self._call))
                except BaseException as error:  # noqa: BLE001 - it is told to who waits
                    self._error = error
        except BaseException as error:  # noqa: BLE001 - a scope that the body left open
            self._error = self._error or error  # a Ctrl-C may be why it did
        self.done.set()
        if self._left:
            self._late()
            if _interrupt_in(self._error) is not None:  # nobody waits to whom it could go
                signal.raise_signal(signal.SIGINT)

    @enable_ki_protection
    @types.coroutine
    def _drive(self, body: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run the body; once it was left behind, no cancellation reaches it that it could swallow.

        Trio sends what a wait came to as an `outcome`.
        """
        resume = partial(body.send, None)
        while True:
            try:
                wait = resume()
            except StopIteration as returned:
                return cast("T", returned.value)
            came = yield wait
            if self._left and _was_cancelled(came):
                resume = partial(body.throw, BrokenOff())
            else:
                resume = partial(body.send, came)

    def _break_off(self) -> None:
        """Raise `BrokenOff` where the body waits and wherever tasks that it started wait.

        Trio does the same to its main task at a KeyboardInterrupt; it has no public name for it.
        """
        self._left = True
        tasks = [] if self._task is None else [self._task]
        while tasks:
            task = tasks.pop()
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
            if task._abort_func is not None:  # noqa: SLF001 - see above
                task._attempt_abort(_raise_broken_off)  # noqa: SLF001 - see above


def _raise_broken_off() -> NoReturn:
    raise BrokenOff


def _interrupt_in(error: BaseException | None) -> BaseException | None:
    """The KeyboardInterrupt that a body was ended by, whatever else it failed with beside it."""
    if isinstance(error, BaseExceptionGroup):
        interrupts = error.subgroup(KeyboardInterrupt)
        return None if interrupts is None else sole_error(interrupts)
    return error if isinstance(error, KeyboardInterrupt) else None


def _was_cancelled(came: object) -> bool:
    return isinstance(getattr(came, "error", None), trio.Cancelled)


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


@disable_ki_protection
async def _coroutine(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
