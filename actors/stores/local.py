"""The stores of one machine: a folder of files, a SQLite file, or memory with the same bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from refold.actors.bodies import patiently
from refold.actors.stores.committer import Committer, LocalGrant, Statistics
from refold.actors.stores.contract import Grant
from refold.runtime.storage.kinds import open_kind
from refold.runtime.storage.local_store import LocalStore, Log
from refold.runtime.storage.port import OS, Port
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import SessionHeader, file_name

T = TypeVar("T")


class Runner(Protocol):
    """How a store does its work; `undo` takes back what came of it too late."""

    async def __call__(self, work: Callable[[], T], undo: Callable[[T], object] = ..., /) -> T: ...


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
        return str(_write_new(self._reports, f"{file_name(session_id)}.{name}", content))

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
