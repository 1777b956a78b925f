"""The stores of one machine: a folder of files, a SQLite file, or memory with the same bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from refold.actors.bodies import patiently
from refold.actors.stores.committer import Committer, Outcome, Statistics, Work
from refold.actors.stores.contract import Grant, Progress
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import Broken
from refold.runtime.events import SessionRecovered
from refold.runtime.storage.errors import EmptyBatch, LogClosed, LogFailed, SeqMismatch
from refold.runtime.storage.kinds import open_kind
from refold.runtime.storage.local_store import LocalStore, Log
from refold.runtime.storage.port import OS, Port
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import Durability, SessionHeader, stronger

T = TypeVar("T")


class Runner(Protocol):
    """How a store does its work; `undo` takes back what came of it too late."""

    async def __call__(self, work: Callable[[], T], undo: Callable[[T], object] = ..., /) -> T: ...


SYNC_SECONDS = 30.0
"""A sync that takes longer counts as failed: nobody knows what its disk will do."""

SLICES = 3
"""The clock goes on while a process is stopped; its disk has the other slices then."""


def _keep(_value: object) -> None:
    """What is late may stand."""


def _close(log: Log) -> None:
    log.close()


async def _inline(work: Callable[[], T], _undo: Callable[[T], object] = _keep, /) -> T:
    """Memory does not wait, and must not: a virtual clock jumps while a thread works."""
    return work()


async def _in_thread(work: Callable[[], T], undo: Callable[[T], object] = _keep, /) -> T:
    """Work in a thread; a cancelled wait is over when what came of it is undone there.

    Patience with a disk has an end, though. A thread that hangs is left to itself, and undoes what
    it brings when nobody has it any more: a log would stay locked.
    """
    begun, left = threading.Event(), threading.Event()
    late, lock = list[T](), threading.Lock()
    ended, run_here = trio.Event(), trio.lowlevel.current_trio_token()

    def run() -> T:
        with lock:
            if left.is_set():
                raise CancelledError  # nobody is there to see it
            begun.set()
        try:
            value = work()
            with lock:
                if not left.is_set():
                    late.append(value)
                    return value
            undo(value)
            return value
        finally:
            with suppress(trio.RunFinishedError):
                run_here.run_sync_soon(ended.set)

    try:
        return await trio.to_thread.run_sync(run, abandon_on_cancel=True)
    except BaseException as error:  # also a KeyboardInterrupt, which tears the main task out of it
        with lock:
            left.set()
        for value in late:  # it was just done
            undo(value)
        if begun.is_set() and isinstance(error, trio.Cancelled):
            with patiently():
                await ended.wait()
        raise


class LocalGrant:
    """A grant on one log of a store on this machine; see `Grant`.

    Its acknowledgements survive what `durability` says, whatever the header is content with.
    """

    def __init__(self, log: Log, committer: Committer) -> None:
        self.durability: Durability = log.header.level
        self._log, self._committer = log, committer
        self._next_seq = log.next_seq
        self._progress = Progress(log.next_seq - 1, log.durable_seq)
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
        return self._progress.durable_seq

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
        await self._until(lambda: self._progress.durable_seq >= target or self._failure is not None)
        self._check()
        if self._progress.durable_seq < target:
            reason = f"a sync did not finish within {SYNC_SECONDS:g} s"
            self._failure = LogFailed(self.header.id, reason, self._progress.durable_seq)
            self._wake()
            raise self._failure
        return self._progress.durable_seq

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
        durable = outcome.durable_seq if self.durability == "power" else outcome.written_seq
        self._progress = Progress(outcome.written_seq, durable)
        self._failure = self._failure or outcome.failure
        self._closed = self._closed or outcome.closed
        if self._watcher is not None:
            self._watcher(self._progress)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class EmbeddedStore:
    """A store over the sessions of a `LocalStore`, which waits in threads; see `Store`.

    `reports` is the folder for reports, if there is one.
    """

    def __init__(self, sessions: LocalStore, reports: Path | None, *, threaded: bool) -> None:
        self.sessions, self._reports = sessions, reports
        self._run: Runner = _in_thread if threaded else _inline
        self._committer = Committer(sessions.rounds, threaded=threaded)

    @property
    def statistics(self) -> Statistics:
        """What the store's committer has done so far."""
        return self._committer.statistics

    async def create(self, header: SessionHeader) -> Grant:
        log = await self._run(lambda: self.sessions.create(header), _close)
        return LocalGrant(log, self._committer)

    async def acquire(self, session_id: str) -> Grant:
        log = await self._run(lambda: self.sessions.open(session_id), _close)
        return LocalGrant(log, self._committer)

    async def fork(self, source: str, at: int | None, header: SessionHeader) -> None:
        def remove(_forked: object) -> None:
            self.sessions.delete(header.id)

        await self._run(lambda: self.sessions.fork(source, at, header), remove)

    async def delete(self, session_id: str) -> None:
        await self._run(lambda: self.sessions.delete(session_id))

    async def list(self) -> list[str]:
        return await self._run(self.sessions.list)

    def reader(self, session_id: str) -> LogReader:
        return self.sessions.reader(session_id)

    def report(self, session_id: str, name: str, content: bytes) -> str | None:
        if self._reports is None:
            return None
        self._reports.mkdir(mode=0o700, exist_ok=True)
        return str(_write_new(self._reports, f"{session_id}.{name}", content))

    async def close(self) -> None:
        await self._committer.stop()
        await self._run(self.sessions.close)


def _write_new(folder: Path, name: str, content: bytes) -> Path:
    """Write a file that nobody else reads; what has the name already, a link too, stays as it is.

    Raises `OSError`, and leaves nothing half written then.
    """
    path, number = folder / name, 1
    while True:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except FileExistsError:
            number += 1
            path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    try:
        with os.fdopen(file, "wb") as writing:
            writing.write(content)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def open_store(where: str | Path, port: Port = OS) -> EmbeddedStore:
    """The store at `where`: a folder's path, `sqlite:///` and a file's path, or `memory:`.

    One in memory ends with the program; a `Path` is always that of a folder. Every operation on
    files goes through `port`, where faults can be put in; SQLite reads and writes by itself.
    Raises `NoSuchStore`.
    """
    sessions, kind = open_kind(where, port)
    return EmbeddedStore(
        sessions, sessions.reports if kind.on_disk else None, threaded=kind.on_disk
    )
