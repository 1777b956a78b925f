"""A store that tells what it acknowledges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import attrs

from refold.actors.stores import EmbeddedStore, Grant, Progress, Store
from refold.faults.recording import RecordingDisk
from refold.runtime.envelope import Event
from refold.runtime.errors import Broken
from refold.runtime.events import SessionRecovered
from refold.runtime.storage import JsonlFolder, LogReader, Port, SessionHeader
from refold.runtime.storage.session_header import Durability

Acknowledge = Callable[[str, int, bytes], None]

FOLDER = Path("/sessions")
"""Where `recorded_store` keeps its sessions on the disk."""


def recorded_store(disk: RecordingDisk, port: Port | None = None) -> Store:
    """A store of JSONL logs in `FOLDER` on `disk`, which marks there what it acknowledges.

    It works at once and on the caller's thread, so that a run is the same each time. With `port`,
    which stands before the disk, it meets faults.
    """
    folder = JsonlFolder(FOLDER, disk if port is None else port)
    return Witnessed(EmbeddedStore(folder, None, threaded=False), disk.acknowledge)


@attrs.define(eq=False)
class Witnessed:
    """A store that calls `acknowledge(session, seq, encoded)` for each event that a sync made safe.

    `encoded` is the event's bytes without framing.
    """

    inner: Store
    acknowledge: Acknowledge

    async def create(self, header: SessionHeader) -> Grant:
        return _WitnessedGrant(await self.inner.create(header), self.acknowledge)

    async def acquire(self, session_id: str) -> Grant:
        return _WitnessedGrant(await self.inner.acquire(session_id), self.acknowledge)

    async def fork(self, source: str, at: int | None, header: SessionHeader) -> None:
        await self.inner.fork(source, at, header)
        reader = self.inner.reader(header.id)
        try:
            for record in reader.read_batches():
                self.acknowledge(header.id, record.seq, record.encoded)
        finally:
            reader.close()

    async def delete(self, session_id: str) -> None:
        await self.inner.delete(session_id)

    async def list(self) -> list[str]:
        return await self.inner.list()

    def reader(self, session_id: str) -> LogReader:
        return self.inner.reader(session_id)

    async def close(self) -> None:
        await self.inner.close()

    def report(self, session_id: str, name: str, content: bytes) -> str | None:
        return self.inner.report(session_id, name, content)


@attrs.define(eq=False)
class _WitnessedGrant:
    _inner: Grant
    _acknowledge: Acknowledge
    _sent: dict[int, bytes] = attrs.field(factory=dict)

    @property
    def header(self) -> SessionHeader:
        return self._inner.header

    @property
    def durability(self) -> Durability:
        return self._inner.durability

    def strengthen(self, durability: Durability) -> None:
        self._inner.strengthen(durability)

    @property
    def term(self) -> int:
        return self._inner.term

    @property
    def recovered(self) -> SessionRecovered | None:
        return self._inner.recovered

    def events(self, earlier: Collection[str]) -> Iterator[Event]:
        return self._inner.events(earlier)

    @property
    def durable_seq(self) -> int:
        return self._inner.durable_seq

    def watch(self, callback: Callable[[Progress], None]) -> None:
        def watched(progress: Progress) -> None:
            self._reached(progress.durable_seq)
            callback(progress)

        self._inner.watch(watched)

    async def failed(self) -> Broken:
        return await self._inner.failed()

    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        self._sent.update(enumerate(batch, expected_seq))
        self._inner.append(expected_seq, batch)

    async def sync(self) -> int:
        durable = await self._inner.sync()
        self._reached(durable)
        return durable

    async def release(self) -> None:
        await self._inner.release()

    def _reached(self, durable_seq: int) -> None:
        for seq in [seq for seq in self._sent if seq <= durable_seq]:
            self._acknowledge(self.header.id, seq, self._sent.pop(seq))
