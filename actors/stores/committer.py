"""The committer: one thread that writes and syncs for every session of a store (design 5.2).

Work is enqueued and cannot be cancelled after that. Each round takes all that has come: it is
written, then what somebody waits for is synced, then one wake-up of the Trio thread brings
everything that came of it. What was written and nobody waits for is synced within a second.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeAlias, TypeVar

import attrs
import trio

from runtime.errors import Broken
from runtime.storage.errors import LogFailed
from runtime.storage.sessions import Log

L = TypeVar("L", bound=Log)

Failures: TypeAlias = dict[L, Broken]

Delivery: TypeAlias = "tuple[Callable[[Outcome], None], Outcome]"

BACKGROUND_SECONDS = 1.0
"""How long written bytes may wait for a sync that nobody asked for."""

STOP_SECONDS = 30.0
"""How long the thread may take to end; a disk that hangs must not keep the program."""

_log = logging.getLogger("refold")


@attrs.frozen
class Outcome:
    """How far a log is written and durable after a round, or why it failed."""

    written_seq: int
    durable_seq: int
    failure: Broken | None = None
    closed: bool = False


@attrs.define(eq=False)
class Work(Generic[L]):
    """What one round is to do for one log; `deliver` is called on the Trio thread."""

    log: L
    deliver: Callable[[Outcome], None]
    batches: list[Sequence[bytes]] = attrs.field(factory=list)
    sync: bool = False
    close: bool = False

    def add(self, more: Work[L]) -> None:
        self.batches += more.batches
        self.sync = self.sync or more.sync
        self.close = self.close or more.close


@attrs.frozen
class Done(Generic[L]):
    """Which logs failed in a round, and how many writes and syncs it took."""

    failures: Failures[L]
    writes: int = 0
    syncs: int = 0


class Writing(Protocol[L]):
    """How a kind of store writes and syncs its logs; called on the committer's thread.

    A log that has failed fails alone, unless nobody can know what became of the others.
    """

    def write(self, works: Sequence[Work[L]], *, sync: bool) -> Done[L]:
        """Write the batches of each; with `sync`, make them durable if that comes with it."""
        ...

    def sync(self, logs: Sequence[L]) -> Done[L]:
        """Make what was written to these durable, where it is not."""
        ...

    def stop(self) -> None: ...


@attrs.define
class Statistics:
    """What a committer has done so far."""

    rounds: int = 0
    writes: int = 0
    syncs: int = 0
    background_syncs: int = 0


class Committer(Generic[L]):
    """Takes work from the Trio thread. `threaded=False` does it at once, for stores in memory:
    they do not wait, and a virtual clock must not jump while a thread works.
    """

    def __init__(self, writing: Writing[L], *, threaded: bool) -> None:
        self.statistics = Statistics()
        self._writing = writing
        self._threaded = threaded
        self._queue: queue.SimpleQueue[Work[L] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._dirty: dict[L, tuple[float, Work[L]]] = {}
        self._failed: Failures[L] = {}

    def submit(self, work: Work[L]) -> None:
        """Enqueue work; what comes of it reaches `work.deliver`, in the order of submission."""
        if not self._threaded:
            for deliver, outcome in self._round([work]):
                deliver(outcome)
            return
        if self._thread is None:
            self._token = trio.lowlevel.current_trio_token()
            self._thread = threading.Thread(target=self._run, name="refold-committer", daemon=True)
            self._thread.start()
        self._queue.put(work)

    async def stop(self) -> None:
        """Let the thread finish what is enqueued and end it; cancelled, it ends by itself."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            with trio.move_on_after(STOP_SECONDS):
                await trio.to_thread.run_sync(thread.join, abandon_on_cancel=True)
                return
            _log.error("the committer did not end within %g s; its disk may hang", STOP_SECONDS)

    def _run(self) -> None:
        going = True
        while going:
            taken = self._take()
            going = None not in taken
            outcomes = self._round([work for work in taken if work is not None])
            if outcomes:
                assert self._token is not None
                self._token.run_sync_soon(_deliver_all, outcomes)
        self._writing.stop()

    def _take(self) -> list[Work[L] | None]:
        """All that is enqueued, waiting for the first or for a background sync; None is the end."""
        taken: list[Work[L] | None] = []
        with suppress(queue.Empty):
            taken.append(self._queue.get(timeout=self._until_background()))
            while True:
                taken.append(self._queue.get_nowait())
        return taken

    def _until_background(self) -> float | None:
        if not self._dirty:
            return None
        oldest = min(since for since, _ in self._dirty.values())
        return max(0.0, oldest + BACKGROUND_SECONDS - time.monotonic())

    def _round(self, taken: list[Work[L]]) -> list[Delivery]:
        merged = _merge(taken)
        self.statistics.rounds += bool(merged)
        self._write([*merged.values()])
        wanted = [work for work in merged.values() if work.sync and work.log not in self._failed]
        background = self._due(merged)
        self._sync(wanted, background)
        return [self._finish(work) for work in [*merged.values(), *background]]

    def _write(self, works: list[Work[L]]) -> None:
        """Write each log's batches; one that failed once takes no more, or there would be a gap."""
        writing = [work for work in works if work.batches and work.log not in self._failed]
        if not writing:
            return
        sync = any(work.sync for work in works)
        logs = [work.log for work in writing]
        done = _contained(logs, lambda: self._writing.write(writing, sync=sync))
        self._failed |= done.failures
        self.statistics.writes += done.writes
        self.statistics.syncs += done.syncs
        for work in writing if self._threaded else ():
            if work.log not in done.failures:
                idle = Work(work.log, work.deliver)
                self._dirty.setdefault(work.log, (time.monotonic(), idle))

    def _due(self, merged: dict[L, Work[L]]) -> list[Work[L]]:
        """Logs whose bytes have waited long enough and that this round does not sync anyway."""
        late = time.monotonic() - BACKGROUND_SECONDS
        due = [log for log, (since, _) in self._dirty.items() if since <= late]
        return [self._dirty[log][1] for log in due if not (log in merged and merged[log].sync)]

    def _sync(self, wanted: list[Work[L]], background: list[Work[L]]) -> None:
        logs = [work.log for work in [*wanted, *background]]
        for log in logs:
            self._dirty.pop(log, None)
        if logs:
            done = _contained(logs, lambda: self._writing.sync(logs))
            self._failed |= done.failures
            asked = min(done.syncs, len(wanted))
            self.statistics.syncs += asked
            self.statistics.background_syncs += done.syncs - asked

    def _finish(self, work: Work[L]) -> Delivery:
        log, failure = work.log, self._failed.get(work.log)
        if work.close:
            self._dirty.pop(log, None)
            self._failed.pop(log, None)
            late = failure_of(log, log.close)
            failure = failure or late
        outcome = Outcome(log.next_seq - 1, log.durable_seq, failure, closed=work.close)
        return work.deliver, outcome


def _merge(taken: list[Work[L]]) -> dict[L, Work[L]]:
    merged: dict[L, Work[L]] = {}
    for work in taken:
        if work.log in merged:
            merged[work.log].add(work)
        else:
            merged[work.log] = work
    return merged


def _deliver_all(outcomes: list[Delivery]) -> None:
    for deliver, outcome in outcomes:
        deliver(outcome)


def _contained(logs: Sequence[L], work: Callable[[], Done[L]]) -> Done[L]:
    """What came of work for these logs. A surprise is their end and must not end the thread."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the next round goes on
        reason = f"{type(error).__name__}: {error}"
        return Done({log: LogFailed(log.header.id, reason, log.durable_seq) for log in logs})


def failure_of(log: Log, work: Callable[[], object]) -> Broken | None:
    """What the work failed with. A surprise is that log's end and must not end the thread."""
    try:
        work()
    except Broken as failure:
        return failure
    except Exception as error:  # noqa: BLE001 - whatever it is, other logs go on
        _log.exception("the log of session %s met an unexpected error", log.header.id)
        return LogFailed(log.header.id, f"{type(error).__name__}: {error}", log.durable_seq)
    return None
