"""Supervisors: they own children, restart them, and stop them in reverse order.

A cancelled nursery cancels all its children at once. Here each child runs shielded in a scope of
its own that only its supervisor cancels, so that a log writer is still there when the actors
above it write their last events. One-for-one is what a supervisor does; one-for-all and
rest-for-one are made by nesting: an actor that opens a supervisor restarts with all below it.

Children run protected from KeyboardInterrupt: it would break them off between any two
instructions. A Ctrl-C goes to Trio's main task instead, and comes here as an orderly stop.

A crash goes one of two ways:

    actor raises --+-- may restart: the mail in hand fails, the queue waits, a pause, again
                   `-- for good: the mailbox ends and every ask with it, the nursery is cancelled,
                       and the crash is raised from the supervisor's block

Stopping takes one child after the other, the last started first:

    close its mailbox --> wait while it drains, up to its `shutdown` --> cancel its scope, wait

That is the order of dependence. Who was started later may ask who was started earlier, so the log
writer is up before everybody and goes after everybody. The deadline is each child's own.

A start that fails is no crash. Whoever called `start` gets the error, at once and as itself:
nobody else knows of that child yet, and another try would fail in the same way.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.mailbox import Mailbox, Message, Ref, waiting_chain
from refold.actors.kernel.nursery import open_flat_nursery
from refold.actors.kernel.restarts import Spec, restarting

_log = logging.getLogger("refold")

M = TypeVar("M", bound=Message[Any])

State: TypeAlias = Literal["starting", "running", "restarting", "stopping", "ended"]


class Actor(Protocol[M]):
    """An async function that serves a mailbox, once it has said that it has started."""

    def __call__(
        self, mailbox: Mailbox[M], /, *, task_status: trio.TaskStatus[None]
    ) -> Awaitable[None]: ...


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
    """A child and how far it has come; it is the `task_status` that its actor is given, too."""

    spec: Spec
    mailbox: Mailbox[Any]
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    settled: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    state: State = "starting"
    has_started: bool = False
    failed_start: Exception | None = None
    restarts: int = 0

    def started(self, value: None = None) -> None:  # noqa: ARG002 - nothing is told
        self.state, self.has_started = "running", True
        self.settled.set()

    def crashed(self, crash: Exception) -> None:
        _log.warning("%s failed and is restarted: %s", self.mailbox.actor, crash)
        self.restarts += 1
        self.state = "restarting"
        self.mailbox.crashed(crash)

    def end(self, crash: Exception | None) -> None:
        self.state = "ended"
        self.mailbox.end(crash)
        self.ended.set()
        self.settled.set()

    async def stop(self) -> None:
        """Close the mailbox and wait; whoever takes longer than its time is cancelled and named."""
        if self.ended.is_set():
            return
        self.state = "stopping"
        self.mailbox.close()
        with trio.move_on_after(self.spec.shutdown):
            await self.ended.wait()
            return
        late = f"{self.mailbox.actor} did not stop in {self.spec.shutdown:g} s"
        _log.warning("%s and is cancelled", late)
        self.scope.cancel(reason=late)
        await self.ended.wait()

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

    def __init__(self, name: str, nursery: trio.Nursery, jitter: Callable[[], float]) -> None:
        self.name = name
        self._nursery, self._jitter = nursery, jitter
        self._children: list[_Child] = []
        self._stopping = False

    async def start(self, actor: Actor[M], *, spec: Spec) -> Ref[M]:
        """Start `actor(mailbox, task_status=...)` and wait until it says started.

        Raises what the actor raised before that; `ActorStopped` once stopping has begun. Whoever
        stops waiting has the child cancelled.
        """
        if self._stopping:
            raise ActorStopped(self.name)
        mailbox: Mailbox[M] = Mailbox(f"{self.name}/{spec.name}", spec.mailbox)
        child = _Child(spec, mailbox)
        self._children.append(child)
        # Not `nursery.start`: where its caller is torn out of the wait, it goes on waiting for a
        # child that is shielded and whom nobody knows, for ever.
        self._nursery.start_soon(self._keep, child, actor)
        try:
            await child.settled.wait()
        except BaseException:
            child.scope.cancel(reason=f"nobody waits for {mailbox.actor} to start")
            raise
        if child.failed_start is not None:
            raise child.failed_start
        if not child.has_started:
            raise ActorStopped(mailbox.actor)
        return Ref(mailbox)

    @enable_ki_protection
    async def _keep(self, child: _Child, actor: Actor[M]) -> None:
        crash: Exception | None = None

        async def run() -> None:
            waiting_chain.set(())
            child.state = "restarting" if child.has_started else "starting"
            await actor(child.mailbox, task_status=child)

        try:
            with child.scope:
                await restarting(
                    child.spec, run, lambda: child.has_started, self._jitter, child.crashed
                )
        except Exception as error:
            crash = error
            if child.has_started:
                raise  # escalation: it ends the nursery, and with it the supervisor's block
            child.failed_start = error  # a failed start is its starter's
        finally:
            child.end(crash)

    async def stop(self) -> None:
        """Stop every child, last started first; takes at most their shutdown times together."""
        self._stopping = True
        with trio.CancelScope(shield=True):
            for child in reversed(self._children):
                await child.stop()

    def cancel(self, reason: str) -> None:
        """Cancel every child at once, in no order: for whoever has no time left."""
        self._stopping = True
        for child in self._children:
            child.scope.cancel(reason=reason)

    def snapshot(self) -> tuple[ActorSnapshot, ...]:
        """Every child, in start order."""
        return tuple(child.snapshot() for child in self._children)


@asynccontextmanager
async def open_supervisor(
    name: str, *, jitter: Callable[[], float] = random.random
) -> AsyncIterator[Supervisor]:
    """A supervisor whose children are stopped in order when the block is left, however it is left.

    A child that fails for good cancels the block and is raised from it. One error is raised as
    itself, several as a group. `jitter` spreads restarts.
    """
    async with open_flat_nursery() as nursery:
        supervisor = Supervisor(name, nursery, jitter)
        try:
            yield supervisor
        finally:
            await supervisor.stop()
