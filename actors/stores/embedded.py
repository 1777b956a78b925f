"""The stores of one machine: a folder of JSONL files, or memory with the same framed bytes.

Each append is written at once on the Trio thread; a sync of a file runs in a worker thread, so
that a slow disk stops nobody else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import trio

from actors.stores.contract import Grant, Store
from runtime.envelope import Event, decode_line
from runtime.events import SessionRecovered
from runtime.storage.errors import SeqMismatch
from runtime.storage.header import SessionHeader
from runtime.storage.jsonl import JsonlFolder
from runtime.storage.log import JsonlLog
from runtime.storage.memory import MemoryFolder
from runtime.storage.reader import LogReader

T = TypeVar("T")

Runner = Callable[[Callable[[], Any]], Awaitable[Any]]


async def _inline(work: Callable[[], T]) -> T:
    """Memory does not wait, and must not: a virtual clock jumps while a thread works."""
    return work()


async def _in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


class EmbeddedGrant:
    """A grant on one log of an embedded store; see `Grant`."""

    def __init__(self, log: JsonlLog, run: Runner) -> None:
        self._log, self._run = log, run

    @property
    def header(self) -> SessionHeader:
        return self._log.header

    @property
    def term(self) -> int:
        last = self._log.last_owner
        return 1 if last is None else last.term + 1

    @property
    def recovered(self) -> SessionRecovered | None:
        return self._log.recovered

    def events(self) -> Iterator[Event]:
        return (decode_line(record.encoded) for record in self._log.records)

    async def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        if expected_seq != self._log.next_seq:
            raise SeqMismatch(self._log.next_seq, expected_seq)
        self._log.append(batch)

    async def sync(self) -> int:
        durable: int = await self._run(self._log.sync)
        return durable

    async def release(self, reason: str) -> None:  # noqa: ARG002 - `session/released` comes with terms
        await self._run(self._log.close)


class EmbeddedStore:
    """A store over a folder of this process; see `Store`."""

    def __init__(self, folder: JsonlFolder, run: Runner, reports: Path | None) -> None:
        self._folder, self._run, self._reports = folder, run, reports

    async def create(self, header: SessionHeader) -> Grant:
        return EmbeddedGrant(await self._run(lambda: self._folder.create(header)), self._run)

    async def acquire(self, session_id: str) -> Grant:
        return EmbeddedGrant(await self._run(lambda: self._folder.open(session_id)), self._run)

    async def fork(self, source: str, at: int | None, header: SessionHeader) -> SessionHeader:
        made: SessionHeader = await self._run(lambda: self._folder.fork(source, at, header))
        return made

    async def list(self) -> list[str]:
        ids: list[str] = await self._run(self._folder.list)
        return ids

    def reader(self, session_id: str) -> LogReader:
        return self._folder.reader(session_id)

    def report(self, session_id: str, name: str, content: bytes) -> str | None:
        if self._reports is None:
            return None
        path = self._reports / f"{session_id}.{name}"
        path.write_bytes(content)
        return str(path)


def open_store(where: str | Path) -> Store:
    """The store at `where`: a folder's path, or `memory:` for one that ends with the program."""
    if str(where) == "memory:":
        return EmbeddedStore(MemoryFolder(), _inline, None)
    folder = Path(where)
    return EmbeddedStore(JsonlFolder(folder), _in_thread, folder)
