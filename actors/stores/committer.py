"""The committer: one thread that writes and syncs for every session of a store, and its grants.

Work is enqueued and cannot be cancelled after that. Each round takes all that has come: it is
written, then what somebody waits for is synced, then one wake-up of the Trio thread brings
everything that came of it. What was written and nobody waits for is synced within a second.

There is no timer for gathering: while one round waits for the disk, the next one fills the queue.
So the busier a store is, the more sessions share a sync, and a lonely one waits for nobody.

A round syncs the logs that somebody waits for. Every other log is *dirty* from its oldest unsynced
byte on, and synced when that byte has waited a second, whatever comes after it: what a power cut
may take of events that nobody was promised is bounded in time and not by luck.

A failure is the end of a log and never of the thread. A log that has failed takes no further
batch, because that would leave a gap, and each later piece of work for it is answered with the
same failure. Whatever else a round raises, a bug included, becomes the failure of its logs and is
logged: a thread that died would leave everybody waiting, with nothing to say why.

A store in memory has no thread; its work is done at once. While a program waits for a thread a
virtual clock finds nothing to do and jumps (docs/design/stores.md, "The committer").
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

import attrs
import trio

from refold.actors.stores.contract import Progress
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import Broken
from refold.runtime.events import SessionRecovered
from refold.runtime.storage.errors import EmptyBatch, LogClosed, LogFailed, SeqMismatch
from refold.runtime.storage.local_store import Done, Failures, Log, Rounds, contained
from refold.runtime.storage.session_header import Durability, SessionHeader, stronger

Delivery: TypeAlias = "tuple[Callable[[Outcome], None], Outcome]"

SIDE_BY_SIDE = 8
"""How many files are synced at once."""

BACKGROUND_SECONDS = 1.0
"""How long written bytes may wait for a sync that nobody asked for."""

STOP_SECONDS = 30.0
"""How long the thread may take to end; a disk that hangs must not keep the program."""

SYNC_SECONDS = 30.0
"""A sync that takes longer counts as failed: nobody knows what its disk will do."""

SLICES = 3
"""The clock goes on while a process is stopped; its disk has the other slices then."""

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

    log: Log
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

    def __init__(self, rounds: Rounds, *, threaded: bool) -> None:
        self.statistics = Statistics()
        self._rounds = rounds
        self._threaded = threaded
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._dirty: dict[Log, tuple[float, Work]] = {}
        self._failed: dict[Log, Broken] = {}
        self._pool: ThreadPoolExecutor | None = None

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
            taken: list[Work | None] = []  # all that has come; None is the end
            with suppress(queue.Empty):
                taken.append(self._queue.get(timeout=self._until_background()))
                while True:
                    taken.append(self._queue.get_nowait())
            going = None not in taken
            outcomes = self._round([work for work in taken if work is not None])
            if outcomes:
                assert self._token is not None
                with suppress(trio.RunFinishedError):  # it did not wait for a disk that hung
                    self._token.run_sync_soon(_deliver_all, outcomes)
        self._rounds.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _until_background(self) -> float | None:
        if not self._dirty:
            return None
        oldest = min(since for since, _ in self._dirty.values())
        return max(0.0, oldest + BACKGROUND_SECONDS - time.monotonic())

    def _round(self, taken: list[Work]) -> list[Delivery]:
        """Write each log's batches, then sync; one that failed takes no more: it would gap."""
        merged: dict[Log, Work] = {}
        for work in taken:
            merged.setdefault(work.log, Work(work.log, work.deliver)).add(work)
        self.statistics.rounds += bool(merged)
        works = [*merged.values()]
        writing = [work for work in works if work.batches and work.log not in self._failed]
        if writing:
            durable = any(work.sync for work in works)
            batches = [(work.log, work.batches) for work in writing]
            logs = [work.log for work in writing]
            done = self._do(logs, lambda: self._rounds.write(batches, durable=durable))
            self.statistics.writes += done.writes
            self.statistics.syncs += done.syncs
        for work in writing if self._threaded else ():
            if work.log not in self._failed:
                idle = Work(work.log, work.deliver)
                self._dirty.setdefault(work.log, (time.monotonic(), idle))
        return self._settle(merged)

    def _settle(self, merged: dict[Log, Work]) -> list[Delivery]:
        """Sync what somebody waits for and what waited long enough, close, and say how far it is.

        What waited long enough is left out where this round syncs it anyway.
        """
        wanted = [work for work in merged.values() if work.sync and work.log not in self._failed]
        late = time.monotonic() - BACKGROUND_SECONDS
        due = [log for log, (since, _) in self._dirty.items() if since <= late]
        background = [
            self._dirty[log][1] for log in due if not (log in merged and merged[log].sync)
        ]
        logs = [work.log for work in [*wanted, *background]]
        for log in logs:
            self._dirty.pop(log, None)
        if logs:
            done = self._do(logs, lambda: self._rounds.sync(logs, self._side_by_side))
            asked = min(done.syncs, len(wanted))
            self.statistics.syncs += asked
            self.statistics.background_syncs += done.syncs - asked
        outcomes: list[Delivery] = []
        for work in [*merged.values(), *background]:
            log, failure = work.log, self._failed.get(work.log)
            if work.close:
                self._dirty.pop(log, None)
                self._failed.pop(log, None)
                late_failure = contained([log], log.close).get(log)
                failure = failure or late_failure
            outcome = Outcome(log.next_seq - 1, log.durable_seq, failure, closed=work.close)
            outcomes.append((work.deliver, outcome))
        return outcomes

    def _do(self, logs: Sequence[Log], work: Callable[[], Done]) -> Done:
        """What came of work for these logs; one that fails takes no more until it is closed."""
        done = [Done({})]
        self._failed |= contained(logs, lambda: done.append(work()))
        self._failed |= done[-1].failures
        return done[-1]

    def _side_by_side(self, syncs: Sequence[Callable[[], Failures]]) -> Iterable[Failures]:
        if len(syncs) == 1 or not self._threaded:
            return [sync() for sync in syncs]
        self._pool = self._pool or ThreadPoolExecutor(SIDE_BY_SIDE, "refold-sync")
        return self._pool.map(lambda sync: sync(), syncs)


def _deliver_all(outcomes: list[Delivery]) -> None:
    for deliver, outcome in outcomes:
        deliver(outcome)


class LocalGrant:
    """A grant on one log of a store on this machine; see `Grant`.

    Its acknowledgements survive what `durability` says, whatever the header is content with.
    """

    def __init__(self, log: Log, committer: Committer) -> None:
        self.durability: Durability = log.header.level
        self._log, self._committer = log, committer
        self._next_seq = log.next_seq
        self._durable_seq = log.durable_seq
        self._watcher: Callable[[Progress], None] | None = None
        self._failure: Broken | None = None
        self._released = False
        self._closed = False
        self._changed = trio.Event()

    @property
    def header(self) -> SessionHeader:
        return self._log.header

    def strengthen(self, durability: Durability) -> None:
        self.durability = stronger(self.durability, durability)

    @property
    def term(self) -> int:
        return self._log.term

    @property
    def recovered(self) -> SessionRecovered | None:
        return self._log.recovered

    @property
    def durable_seq(self) -> int:
        return self._durable_seq

    def events(self, earlier: Collection[str]) -> Iterator[Event]:
        return (decode_line(record.encoded) for record in self._log.records.since_step(earlier))

    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        self._check()
        if self._released:
            raise LogClosed(self.header.id)
        if not batch:
            raise EmptyBatch(self.header.id)
        if expected_seq != self._next_seq:
            raise SeqMismatch(self._next_seq, expected_seq)
        self._next_seq += len(batch)
        self._committer.submit(Work(self._log, self._deliver, [batch]))
        self._check()

    async def sync(self) -> int:
        self._check()
        if self._released:
            raise LogClosed(self.header.id)
        target = self._next_seq - 1
        power = self.durability == "power"
        self._committer.submit(Work(self._log, self._deliver, sync=power))
        await self._until(lambda: self._durable_seq >= target or self._failure is not None)
        self._check()
        if self._durable_seq < target:
            reason = f"a sync did not finish within {SYNC_SECONDS:g} s"
            self._failure = LogFailed(self.header.id, reason, self._durable_seq)
            self._wake()
            raise self._failure
        return self._durable_seq

    def watch(self, callback: Callable[[Progress], None]) -> None:
        self._watcher = callback

    async def failed(self) -> Broken:
        while self._failure is None:
            await self._changed.wait()
        return self._failure

    async def release(self) -> None:
        self._released = True
        if not self._closed:
            self._committer.submit(Work(self._log, self._deliver, close=True))
            await self._until(lambda: self._closed)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait until it is reached or the time for a sync is over."""
        for _ in range(SLICES):  # a process that is stopped and goes on loses one of them
            with trio.move_on_after(SYNC_SECONDS / SLICES):
                while not reached():
                    await self._changed.wait()
                return

    def _deliver(self, outcome: Outcome) -> None:
        power = self.durability == "power"
        self._durable_seq = outcome.durable_seq if power else outcome.written_seq
        self._failure = self._failure or outcome.failure
        self._closed = self._closed or outcome.closed
        if self._watcher is not None:
            self._watcher(Progress(outcome.written_seq, self._durable_seq))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
