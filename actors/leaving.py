"""The end of a runtime: where it ends in peace its turns may finish first, then sessions close.

Closing survives a Ctrl-C at every instant as opening does (see `actors.runtime`): the main task,
which a Ctrl-C tears out of any wait, only waits for a task that closes, and says when it loses its
patience. A Ctrl-C, a cancellation and an error are nobody's peace: nothing is drained then.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.session_tree import SessionLife
from refold.runtime.errors import Broken, Refused

CLOSE_SECONDS = 90.0
"""How long all sessions together may take to close: longer than any one wait in a session."""

INTERRUPTED_SECONDS = 2.5
"""How long they may take after a Ctrl-C: whoever pressed it waits."""

HURRY_SECONDS = 1.5
"""How long they may take after a further one."""

TOOL_SECONDS = 1.0
"""How long tools may take to clean up after a Ctrl-C."""

STORE_SECONDS = 30.0
"""How long a store may take to close; a disk that hangs must not keep the program."""

_log = logging.getLogger("refold")


@attrs.define(eq=False)
class NotClosed(Broken):
    """Sessions that were not closed in time; what was acknowledged stands."""

    sessions: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"not closed in time: {', '.join(map(repr, self.sessions))}; their logs end as after a "
            "kill, and the next `resume` repairs them"
        )


@attrs.define(eq=False)
class Draining(Refused):
    """New input, or another session, while the runtime lets its turns finish and takes no more."""

    def __str__(self) -> str:
        return (
            "this runtime is about to close and takes nothing new; say it again to the program "
            "that goes on with its sessions"
        )


async def drained(openings: Sequence[SessionLife], seconds: float) -> tuple[str, ...]:
    """Wait until no session has a turn in hand; those that have one after `seconds`.

    None may start another turn by then.
    """
    running = {life.session: life.opened.loop for life in openings if life.opened is not None}
    with trio.move_on_after(seconds):
        for loop in running.values():
            await loop.turn_over()
    late = tuple(session for session, loop in running.items() if loop.in_a_turn)
    for session in late:
        _log.warning(
            "a turn of session %s did not finish within %g s and ends as disposed; resume it with "
            "continue_=True to have it answered",
            session,
            seconds,
        )
    return late


async def drain_at_sigterm(
    drain: Callable[[], Awaitable[object]], end: Callable[[], object]
) -> None:
    """At the first SIGTERM drain and then end; a second one ends at once.

    Does nothing outside of the main thread, which alone is told of signals, and where the program
    has a handler of its own. The handler is taken back when this is cancelled.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        await anext(signals)
        async with trio.open_nursery() as nursery:

            @enable_ki_protection
            async def second() -> None:
                await anext(signals)
                nursery.cancel_scope.cancel(reason="a second SIGTERM")

            nursery.start_soon(second)
            await drain()
            nursery.cancel_scope.cancel(reason="drained")
        end()


class Closing:
    """A closing under way: how long it goes on in order, who was late, and its end."""

    def __init__(self, openings: Sequence[SessionLife], *, interrupted: bool) -> None:
        deadline = trio.current_time() + CLOSE_SECONDS
        self._openings = openings
        self._in_order = trio.CancelScope(deadline=deadline)
        self._store = trio.CancelScope(deadline=deadline + STORE_SECONDS)
        self._over = trio.Event()
        self.late: tuple[str, ...] = ()
        if interrupted:
            self._hurry(INTERRUPTED_SECONDS, tools=TOOL_SECONDS)

    def _hurry(self, seconds: float, *, tools: float) -> None:
        for opening in self._openings:
            opening.patience.shorten(tools)
        soon = trio.current_time() + seconds
        self._in_order.deadline = min(self._in_order.deadline, soon)
        self._store.deadline = min(self._store.deadline, soon + TOOL_SECONDS)

    @enable_ki_protection
    async def run(self, close_store: Callable[[], Awaitable[object]]) -> None:
        """End every session, side by side, and then the store; for a task of its own."""
        try:
            with trio.CancelScope(shield=True):
                await self._close_sessions()
                with self._store:
                    await close_store()
        finally:
            self._over.set()

    async def _close_sessions(self) -> None:
        for opening in self._openings:
            opening.end_soon()
        with self._in_order:
            for opening in self._openings:
                await opening.stopped.wait()
        late = [opening for opening in self._openings if not opening.ended]
        self.late = tuple(opening.session for opening in late)
        for opening in late:
            _log.warning("session %s is not closed in time and is cancelled", opening.session)
            opening.hurry()
        for opening in late:
            await opening.stopped.wait()

    async def wait(self) -> None:
        """Wait for the end, whatever strikes meanwhile; raises the KeyboardInterrupt then."""
        interrupt: KeyboardInterrupt | None = None
        while not self._over.is_set():
            try:
                with trio.CancelScope(shield=True):  # it has deadlines of its own
                    await self._over.wait()
            except KeyboardInterrupt as again:
                interrupt = interrupt or again
                self._hurry(HURRY_SECONDS, tools=TOOL_SECONDS / 2)
        if interrupt is not None:
            raise interrupt
