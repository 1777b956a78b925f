"""Supervisors: they own children, and stop them in reverse start order (design 3.1).

A cancelled nursery cancels all its children at once. Here each child runs shielded in a scope of
its own that only its supervisor cancels, so that a log writer is still there when the actors
above it write their last events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

from actors.kernel.errors import ActorStopped
from actors.kernel.mailbox import Mailbox, Ref

M = TypeVar("M")


@attrs.frozen
class Spec:
    """A child's name, the size of its mailbox, and how many seconds it may take to stop."""

    name: str
    mailbox: int = 16
    shutdown: float = 5.0


@attrs.define(eq=False)
class _Child:
    spec: Spec
    mailbox: Mailbox[Any]
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    ended: trio.Event = attrs.field(factory=trio.Event)


class Supervisor:
    """Starts children and stops them; a child that crashes ends the supervisor.

    `failed` is set with the first crash, for whoever decides what it means.
    """

    def __init__(self, name: str, nursery: trio.Nursery) -> None:
        self.name = name
        self.failure: Exception | None = None
        self.failed = trio.Event()
        self._nursery = nursery
        self._children: list[_Child] = []
        self._stopping = False

    async def start(
        self,
        actor: Callable[..., Awaitable[None]],
        *arguments: object,
        spec: Spec,
    ) -> Ref[Any]:
        """Start `actor(mailbox, *arguments, task_status=...)` and wait until it says started.

        Raises what the actor raised before that; `ActorStopped` once stopping has begun.
        """
        if self._stopping:
            raise ActorStopped(self.name)
        child = _Child(spec, Mailbox(f"{self.name}/{spec.name}", spec.mailbox))
        self._children.append(child)
        await self._nursery.start(self._run, child, actor, arguments)
        return Ref(child.mailbox)

    async def _run(
        self,
        child: _Child,
        actor: Callable[..., Awaitable[None]],
        arguments: tuple[object, ...],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        started = _Started(task_status)
        crash: Exception | None = None
        try:
            with child.scope:
                await actor(child.mailbox, *arguments, task_status=started)
        except Exception as error:
            if not started.said:
                raise
            crash = _sole_crash(error)
        finally:
            child.mailbox.end(crash)
            child.ended.set()
        if crash is not None and self.failure is None:
            self.failure = crash
            self.failed.set()

    async def stop(self) -> None:
        """Stop every child, last started first; takes at most their shutdown times together."""
        self._stopping = True
        with trio.CancelScope(shield=True):
            for child in reversed(self._children):
                await _stop(child)


@attrs.define(eq=False)
class _Started:
    """Remembers whether an actor got as far as `started`: a failed start is its starter's."""

    _task_status: trio.TaskStatus[None]
    said: bool = False

    def started(self, value: None = None) -> None:
        self.said = True
        self._task_status.started(value)


async def _stop(child: _Child) -> None:
    child.mailbox.close()
    with trio.move_on_after(child.spec.shutdown):
        await child.ended.wait()
    if not child.ended.is_set():
        child.scope.cancel(reason=f"{child.spec.name} did not stop in {child.spec.shutdown} s")
        await child.ended.wait()


def _sole_crash(error: Exception) -> Exception:
    found = sole_error(error) if isinstance(error, BaseExceptionGroup) else error
    return found if isinstance(found, Exception) else error


def sole_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error in a group that is not a cancellation, else the group itself."""
    _, errors = group.split(trio.Cancelled)
    found: BaseException | None = errors
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return group if found is None else found


@asynccontextmanager
async def open_supervisor(name: str) -> AsyncIterator[Supervisor]:
    """A supervisor whose children are stopped in order when the block is left, however it is left.

    One error in the block or a child is raised as itself, several as a group.
    """
    try:
        async with trio.open_nursery() as nursery:
            supervisor = Supervisor(name, nursery)
            try:
                yield supervisor
            finally:
                await supervisor.stop()
    except BaseExceptionGroup as group:
        error = sole_error(group)
        if error is group:
            raise
        raise error from error.__cause__
