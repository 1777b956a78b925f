"""Supervisors: they own children, restart them, and stop them in reverse order (design 3.1).

A cancelled nursery cancels all its children at once. Here each child runs shielded in a scope of
its own that only its supervisor cancels, so that a log writer is still there when the actors
above it write their last events. One-for-one is what a supervisor does; one-for-all and
rest-for-one are made by nesting: an actor that opens a supervisor restarts with all below it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import attrs
import trio

from actors.kernel.errors import ActorStopped
from actors.kernel.mailbox import Mailbox, Ref, waiting_chain
from actors.kernel.spec import Spec, restarting, sole_crash, sole_error

_log = logging.getLogger("refold")

State: TypeAlias = Literal["starting", "running", "restarting", "stopping", "ended"]
DeadLetter: TypeAlias = Callable[[str, Any], None]


@attrs.frozen
class ActorSnapshot:
    """One actor at one moment; `message_age` is in seconds, None while none is in hand."""

    name: str
    state: State
    restarts: int
    queued: int
    queued_peak: int
    waiting_senders: int
    message_age: float | None
    lost: int


@attrs.define(eq=False)
class _Child:
    spec: Spec
    mailbox: Mailbox[Any]
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    ended: trio.Event = attrs.field(factory=trio.Event)
    state: State = "starting"
    restarts: int = 0

    def snapshot(self) -> ActorSnapshot:
        queue, taken_at = self.mailbox.statistics(), self.mailbox.taken_at
        return ActorSnapshot(
            self.mailbox.actor,
            self.state,
            self.restarts,
            queue.current_buffer_used,
            queue.peak_buffer_used,
            queue.tasks_waiting_send,
            None if taken_at is None else trio.current_time() - taken_at,
            self.mailbox.lost,
        )


class Supervisor:
    """Starts children, restarts them as their specs say, and stops them."""

    def __init__(
        self, name: str, nursery: trio.Nursery, jitter: Callable[[], float], dead: DeadLetter
    ) -> None:
        self.name = name
        self._nursery, self._jitter, self._dead_letter = nursery, jitter, dead
        self._children: list[_Child] = []
        self._stopping = False
        self.body = trio.CancelScope()

    async def start(
        self, actor: Callable[..., Awaitable[None]], *arguments: object, spec: Spec
    ) -> Ref[Any]:
        """Start `actor(mailbox, *arguments, task_status=...)` and wait until it says started.

        Raises what the actor raised before that; `ActorStopped` once stopping has begun.
        """
        if self._stopping:
            raise ActorStopped(self.name)
        mailbox: Mailbox[Any] = Mailbox(f"{self.name}/{spec.name}", spec.mailbox, self._dead_letter)
        child = _Child(spec, mailbox)
        self._children.append(child)
        await self._nursery.start(self._keep, child, actor, arguments)
        return Ref(mailbox)

    async def _keep(
        self,
        child: _Child,
        actor: Callable[..., Awaitable[None]],
        arguments: tuple[object, ...],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        started = _Started(child, task_status)
        crash: Exception | None = None

        async def run() -> None:
            waiting_chain.set(())
            child.state = "restarting" if started.said else "starting"
            try:
                await actor(child.mailbox, *arguments, task_status=started)
            except Exception as error:
                if not started.said:
                    raise _NeverStarted(error) from error
                raise

        try:
            with child.scope:
                await restarting(child.spec, run, self._jitter, self._on_crash(child))
        except _NeverStarted as failed:
            raise sole_crash(failed.error) from failed.error.__cause__
        except Exception as error:
            crash = error
            raise  # escalation: it ends the nursery, and with it the supervisor's block
        finally:
            child.state = "ended"
            child.mailbox.end(crash)
            child.ended.set()
        if child.spec.significant:
            self.body.cancel(reason=f"{child.mailbox.actor} finished")

    def _on_crash(self, child: _Child) -> Callable[[Exception], None]:
        def crashed(crash: Exception) -> None:
            _log.warning("%s failed and is restarted: %s", child.mailbox.actor, crash)
            child.restarts += 1
            child.state = "restarting"
            child.mailbox.crashed(crash)

        return crashed

    async def stop(self) -> None:
        """Stop every child, last started first; takes at most their shutdown times together."""
        self._stopping = True
        with trio.CancelScope(shield=True):
            for child in reversed(self._children):
                await _stop(child)

    def snapshot(self) -> tuple[ActorSnapshot, ...]:
        """Every child, in start order."""
        return tuple(child.snapshot() for child in self._children)


class _NeverStarted(BaseException):
    """Carries a failed start past `restarting`, which would try again, to who asked for it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@attrs.define(eq=False)
class _Started:
    """Remembers whether an actor got as far as `started`: a failed start is its starter's."""

    _child: _Child
    _task_status: trio.TaskStatus[None]
    said: bool = False

    def started(self, value: None = None) -> None:
        self._child.state = "running"
        if not self.said:
            self.said = True
            self._task_status.started(value)


async def _stop(child: _Child) -> None:
    if not child.ended.is_set():
        child.state = "stopping"
    child.mailbox.close()
    with trio.move_on_after(child.spec.shutdown):
        await child.ended.wait()
    if not child.ended.is_set():
        child.scope.cancel(reason=f"{child.spec.name} did not stop in {child.spec.shutdown} s")
        await child.ended.wait()


def _log_dead_letter(actor: str, message: object) -> None:
    _log.info("%s stopped before it took %s", actor, type(message).__name__)


@asynccontextmanager
async def open_supervisor(
    name: str,
    *,
    jitter: Callable[[], float] = random.random,
    dead_letter: DeadLetter = _log_dead_letter,
) -> AsyncIterator[Supervisor]:
    """A supervisor whose children are stopped in order when the block is left, however it is left.

    A child that fails for good cancels the block and is raised from it; a significant child that
    finishes only ends it. One error is raised as itself, several as a group. `jitter` spreads
    restarts; `dead_letter` is given the actor and message of each tell that nobody took.
    """
    try:
        async with trio.open_nursery() as nursery:
            supervisor = Supervisor(name, nursery, jitter, dead_letter)
            try:
                with supervisor.body:
                    yield supervisor
            finally:
                await supervisor.stop()
    except BaseExceptionGroup as group:
        error = sole_error(group)
        if error is group:
            raise
        raise error from error.__cause__
