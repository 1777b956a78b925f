"""The committer: one thread that writes and syncs for every session of a store (design 5.2).

Work is enqueued and cannot be cancelled after that. Each round takes all that has come: one write
a file, then the syncs that somebody waits for, side by side, then one wake-up of the Trio thread
with everything that came of it. What was written and nobody waits for is synced within a second.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

import attrs
import trio

from runtime.errors import Broken
from runtime.storage.errors import LogFailed
from runtime.storage.log import JsonlLog
from runtime.storage.port import Port

Delivery: TypeAlias = "tuple[Callable[[Outcome], None], Outcome]"

BACKGROUND_SECONDS = 1.0
"""How long written bytes may wait for a sync that nobody asked for."""

SIDE_BY_SIDE = 8
"""How many files are synced at once."""

WHOLE_FILE_SYSTEM = 16
"""From how many dirty files on one sync of the file system is cheaper."""


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
class Work:
    """What one round is to do for one log; `deliver` is called on the Trio thread."""

    log: JsonlLog
    deliver: Callable[[Outcome], None]
    batches: list[Sequence[bytes]] = attrs.field(factory=list)
    sync: bool = False
    close: bool = False

    def add(self, more: Work) -> None:
        self.batches += more.batches
        self.sync = self.sync or more.sync
        self.close = self.close or more.close


@attrs.define
class Statistics:
    """What a committer has done so far."""

    rounds: int = 0
    writes: int = 0
    syncs: int = 0
    background_syncs: int = 0


class Committer:
    """Takes work from the Trio thread. `threaded=False` does it at once, for stores in memory:
    they do not wait, and a virtual clock must not jump while a thread works.
    """

    def __init__(self, *, threaded: bool) -> None:
        self.statistics = Statistics()
        self._threaded = threaded
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._dirty: dict[JsonlLog, tuple[float, Work]] = {}
        self._failed: dict[JsonlLog, Broken] = {}

    def submit(self, work: Work) -> None:
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
        """Let the thread finish what is enqueued and end it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            with trio.move_on_after(STOP_SECONDS, shield=True):
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
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _take(self) -> list[Work | None]:
        """All that is enqueued, waiting for the first or for a background sync; None is the end."""
        taken: list[Work | None] = []
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

    def _round(self, taken: list[Work]) -> list[Delivery]:
        merged = _merge(taken)
        self.statistics.rounds += bool(merged)
        for work in merged.values():
            self._write(work)
        wanted = [work for work in merged.values() if work.sync and work.log not in self._failed]
        background = self._due(merged)
        self.statistics.syncs += len(wanted)
        self.statistics.background_syncs += len(background)
        self._failed |= self._sync([*wanted, *background])
        return [self._finish(work) for work in [*merged.values(), *background]]

    def _write(self, work: Work) -> None:
        """Write a log's batches; one that failed once takes no more, or there would be a gap."""
        if not work.batches or work.log in self._failed:
            return
        failure = _failure_of(work.log, lambda: work.log.append(*work.batches))
        if failure is not None:
            self._failed[work.log] = failure
            return
        self.statistics.writes += 1
        if self._threaded:
            self._dirty.setdefault(work.log, (time.monotonic(), Work(work.log, work.deliver)))

    def _due(self, merged: dict[JsonlLog, Work]) -> list[Work]:
        """Logs whose bytes have waited long enough and that this round does not sync anyway."""
        late = time.monotonic() - BACKGROUND_SECONDS
        due = [log for log, (since, _) in self._dirty.items() if since <= late]
        return [self._dirty[log][1] for log in due if not (log in merged and merged[log].sync)]

    def _sync(self, works: list[Work]) -> dict[JsonlLog, Broken]:
        logs = [work.log for work in works]
        for log in logs:
            self._dirty.pop(log, None)
        if len(logs) >= WHOLE_FILE_SYSTEM and logs[0].port.has_syncfs:
            return _sync_file_system(logs)
        if len(logs) > 1 and self._threaded:
            self._pool = self._pool or ThreadPoolExecutor(SIDE_BY_SIDE, "refold-sync")
            results = list(self._pool.map(_sync_one, logs))
        else:
            results = [_sync_one(log) for log in logs]
        return {log: failure for log, failure in zip(logs, results, strict=True) if failure}

    def _finish(self, work: Work) -> Delivery:
        log, failure = work.log, self._failed.get(work.log)
        if work.close:
            self._dirty.pop(log, None)
            self._failed.pop(log, None)
            late = _failure_of(log, log.close)
            failure = failure or late
        outcome = Outcome(log.next_seq - 1, log.durable_seq, failure, closed=work.close)
        return work.deliver, outcome


def _merge(taken: list[Work]) -> dict[JsonlLog, Work]:
    merged: dict[JsonlLog, Work] = {}
    for work in taken:
        if work.log in merged:
            merged[work.log].add(work)
        else:
            merged[work.log] = work
    return merged


def _deliver_all(outcomes: list[Delivery]) -> None:
    for deliver, outcome in outcomes:
        deliver(outcome)


def _sync_one(log: JsonlLog) -> Broken | None:
    return _failure_of(log, log.sync)


def _failure_of(log: JsonlLog, work: Callable[[], object]) -> Broken | None:
    """What the work failed with. A surprise is that log's end and must not end the thread."""
    try:
        work()
    except Broken as failure:
        return failure
    except Exception as error:  # noqa: BLE001 - whatever it is, other logs go on
        _log.exception("the log of session %s met an unexpected error", log.header.id)
        return LogFailed(log.header.id, f"{type(error).__name__}: {error}", log.durable_seq)
    return None


def _sync_file_system(logs: list[JsonlLog]) -> dict[JsonlLog, Broken]:
    """One sync for all; when it fails nobody knows whose bytes are lost, so every log fails."""
    first, *others = logs
    failures: dict[JsonlLog, Broken] = {}
    error: OSError | None = None
    try:
        first.sync_with(lambda port, fd: port.syncfs(fd))
    except LogFailed as failure:
        failures[first], error = failure, OSError(failure.reason)

    def same(_port: Port, _fd: int) -> None:
        if error is not None:
            raise error

    for log in others:
        try:
            log.sync_with(same)
        except Broken as failure:
            failures[log] = failure
    return failures
