"""One log that is open for writing (design 5.2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import attrs
import orjson

from runtime.envelope import LEGACY_TYPE, refuse_legacy
from runtime.errors import InvalidEvent
from runtime.events import SessionOwner, SessionRecovered
from runtime.storage.errors import LogClosed, LogFailed, SeqMismatch, StoreFull
from runtime.storage.files import CHUNK, NO_ROOM, read_all, remove, write_all
from runtime.storage.framing import (
    Record,
    frame_batch,
    frame_header,
    read_envelope,
    record_at,
)
from runtime.storage.head import Head, write_head
from runtime.storage.header import SessionHeader
from runtime.storage.layout import Layout
from runtime.storage.port import Port
from runtime.storage.walk import Index


@attrs.frozen
class Opening:
    """What an opening found: where the log goes on, who had it, and what was cut.

    `fd` is None for a new log, which has no file before its first batch.
    """

    header: SessionHeader
    fd: int | None = None
    end: int = 0
    next_seq: int = 0
    chain: int = 0
    recovered: SessionRecovered | None = None
    last_owner: SessionOwner | None = None
    index: Index = attrs.field(factory=lambda: Index(0), repr=False)


@attrs.frozen
class StoredRecords:
    """The records that stood in a log when it was opened, read from its file at each iteration.

    Reading raises `LogClosed` once the log is closed.
    """

    _port: Port
    _descriptor: Callable[[], int]
    _index: Index

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Record]:
        return self._read(None)

    def select(self, types: Collection[str]) -> Iterator[Record]:
        """The records of these types, in order; the others are passed over unbuilt."""
        return self._read(types)

    def _read(self, types: Collection[str] | None) -> Iterator[Record]:
        data, base, ends = b"", 0, self._index.ends
        for place in self._index.places(types):
            start, end = self._index.begin(place), ends[place]
            if end > base + len(data):
                stop = max(end, min(start + CHUNK, ends[-1]))
                data, base = read_all(self._port, self._descriptor(), start, stop), start
            yield record_at(data, start - base, end - 1 - base, base)


class JsonlLog:
    """The writer of one log; made by `JsonlFolder`.

    Not for two threads at once, but `sync` may run beside `append`. After any failure whose
    outcome cannot be known the log is poisoned: `append` and `sync` raise the same `LogFailed`
    until it is closed and opened again.
    """

    def __init__(
        self, port: Port, layout: Layout, opening: Opening, release: Callable[[], None]
    ) -> None:
        self.header = opening.header
        self.recovered = opening.recovered
        self.last_owner = opening.last_owner
        self.records = StoredRecords(port, self._descriptor, opening.index)
        self.port = port
        self._port = port
        self._layout = layout
        self._fd = opening.fd
        self._release = release
        self._written = Head(opening.next_seq - 1, opening.end, opening.chain)
        self._durable = self._written
        self._failed: LogFailed | None = None
        self._closed = False

    @property
    def next_seq(self) -> int:
        return self._written.seq + 1

    @property
    def durable_seq(self) -> int:
        """The highest seq that is known to be durable; -1 while none is."""
        return self._durable.seq

    def append(self, *batches: Sequence[bytes]) -> None:
        """Write batches of encoded events with one write; durable only after `sync`.

        Each batch is whole or absent after a crash, and here all or none are taken. The first
        batch of a new log makes its file. Raises `SeqMismatch`, `InvalidEvent`, `LegacyEvent`,
        `LogClosed` and `StoreFull` with the log as it was, or `LogFailed`.
        """
        self._check_usable()
        seq, chain, data = self.next_seq, self._written.chain, b""
        for events in batches:
            for encoded in events:
                check_event(encoded, seq)
                seq += 1
            lines, chain = frame_batch(events, chain, self.durable_seq)
            data += lines
        if not data:
            return
        first = frame_header(self.header) if self._fd is None else b""
        self._write(first + data)
        self._written = Head(seq - 1, self._written.end + len(first) + len(data), chain)

    def sync(self) -> int:
        """Make everything appended before the call durable; returns the highest durable seq.

        Raises `LogClosed`, or `LogFailed`: a failed sync is final and never tried again.
        """
        return self.sync_with(lambda port, fd: port.fdatasync(fd))

    def sync_with(self, sync: Callable[[Port, int], None]) -> int:
        """As `sync`, where `sync` makes the file of a descriptor durable or raises `OSError`."""
        self._check_usable()
        target = self._written
        if self._fd is None or target == self._durable:
            return self.durable_seq
        try:
            sync(self._port, self._fd)
            if self.durable_seq < 0:
                self._port.sync_directory(self._layout.folder)
            # What went into a file that is no longer the log's must not be acknowledged.
            if not self._is_named(self._fd):
                self._poison(OSError("another program changed or replaced the file"))
        except OSError as error:
            self._poison(error)
        self._durable = target
        return target.seq

    def write_head(self) -> None:
        """Note outside the log how far it is durable; for a log that becomes idle.

        Costs no sync. Advisory: a failure to write it is passed over.
        """
        if self._fd is not None and self._failed is None and self.durable_seq >= 0:
            try:
                write_head(self._port, self._layout.head(self.header.id), self._durable)
            except OSError:
                return

    def close(self) -> None:
        """Sync what is owed, write the head file, and release the lock last.

        Raises `LogFailed` if the sync fails; the lock is released even so. A second call does
        nothing.
        """
        if self._closed:
            return
        try:
            if self._failed is None:
                self.sync()
            self.write_head()
        finally:
            self._closed = True
            if self._fd is not None:
                with suppress(OSError):  # what was synced stands, whatever closing says
                    self._port.close(self._fd)
            self._release()

    def _descriptor(self) -> int:
        if self._closed:
            raise LogClosed(self.header.id)
        assert self._fd is not None, "a new log holds no records"
        return self._fd

    def _check_usable(self) -> None:
        if self._closed:
            raise LogClosed(self.header.id)
        if self._failed is not None:
            raise self._failed

    def _write(self, data: bytes) -> None:
        try:
            if self._fd is None:
                self._create()
            elif not self._is_ours(self._fd):
                self._poison(OSError("another program changed or replaced the file"))
            assert self._fd is not None
            write_all(self._port, self._fd, data, self._written.end)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._poison(error)
            self._take_back(error)

    def _create(self) -> None:
        if remove(self._port, self._layout.head(self.header.id)):
            self._port.sync_directory(self._layout.folder)  # it must not judge the new log
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._fd = self._port.open(self._layout.log(self.header.id), flags)

    def _is_ours(self, fd: int) -> bool:
        return self._is_named(fd) and self._port.fstat(fd).size == self._written.end

    def _is_named(self, fd: int) -> bool:
        named = self._port.lstat(self._layout.log(self.header.id))
        return named.identity == self._port.fstat(fd).identity

    def _take_back(self, error: OSError) -> NoReturn:
        """Leave the log as it was before a batch that had no room, or poison it."""
        path = self._layout.log(self.header.id)
        try:
            if self._fd is not None and self._written.end == 0:
                if self._is_named(self._fd):  # else another owner's log has the name
                    self._port.unlink(path)
                self._port.close(self._fd)
                self._fd = None
            elif self._fd is not None:
                self._port.ftruncate(self._fd, self._written.end)
                self._port.fdatasync(self._fd)
        except OSError as failure:
            self._poison(failure)
        raise StoreFull(str(path), _reason(error)) from error

    def _poison(self, error: OSError) -> NoReturn:
        path = self._layout.log(self.header.id)
        self._failed = LogFailed(str(path), _reason(error), self.durable_seq)
        raise self._failed from error


def check_event(encoded: bytes, seq: int) -> None:
    """Refuse encoded bytes that are not the event `seq` on one line, or that no store takes."""
    envelope = read_envelope(encoded)
    if envelope is None or b"\n" in encoded or not encoded.endswith(b"}"):
        raise InvalidEvent("?", "is not one line of JSON that starts with type, seq and time", seq)
    type_, got = envelope
    if got != seq:
        raise SeqMismatch(seq, got)
    if type_ in (LEGACY_TYPE, "request/header"):
        refuse_legacy(type_, _parse(encoded, type_, seq).get("data"), seq)


def _parse(encoded: bytes, type_: str, seq: int) -> dict[str, Any]:
    try:
        return dict(orjson.loads(encoded))
    except orjson.JSONDecodeError as error:
        raise InvalidEvent(type_, f"is not JSON ({error})", seq) from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
