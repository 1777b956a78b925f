"""Logs and failing ports for the tests of the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import orjson

from refold.runtime.storage import (
    JsonlFolder,
    MaintainedStore,
    MemoryFolder,
    MemoryPort,
    Port,
    SessionHeader,
    SqliteFile,
    frame_batch,
    frame_header,
    this_process,
)

HEADER = SessionHeader("demo", 1_760_000_000_000, durability="power")
FOLDER = Path("/sessions")
LOG = FOLDER / "demo.jsonl"


def event(seq: int, type_: str = "assistant/chunk", **data: object) -> bytes:
    """The encoded bytes of one event, as `Event.encoded` has them."""
    return b'{"type":"%b","seq":%d,"time":%d,"data":%b}' % (
        type_.encode(),
        seq,
        1_760_000_000_000 + seq,
        orjson.dumps(data),
    )


def owner_event(seq: int, *, pid: int | None = None) -> bytes:
    here = this_process()
    owner = {"host": here.host, "pid": here.pid if pid is None else pid, "boot": here.boot}
    return event(seq, "session/owner", term=1, owner=owner)


def batches(sizes: Sequence[int]) -> list[list[bytes]]:
    """Batches of so many events each, numbered from 0."""
    made: list[list[bytes]] = []
    seq = 0
    for size in sizes:
        made.append([event(seq + place, text=f"text {seq + place}") for place in range(size)])
        seq += size
    return made


def framed(made: Sequence[Sequence[bytes]], *, synced: bool = True) -> tuple[bytes, list[int]]:
    """The bytes of a log with these batches, and where the header and each batch end.

    `synced`: each batch was durable before the next was framed.
    """
    data, chain, dur, seq = frame_header(HEADER), 0, -1, 0
    ends = [len(data)]
    for batch in made:
        lines, chain = frame_batch(batch, chain, dur)
        data += lines
        ends.append(len(data))
        seq += len(batch)
        dur = seq - 1 if synced else dur
    return data, ends


def memory(data: bytes | None = None) -> tuple[JsonlFolder, MemoryPort]:
    """A store in memory, with one log of these bytes."""
    port = MemoryPort()
    port.mkdir(FOLDER)
    put(port, FOLDER / ".lock", b"")
    if data is not None:
        put(port, LOG, data)
    return JsonlFolder(FOLDER, port), port


def stores(folder: Path) -> dict[str, Callable[[], MaintainedStore]]:
    """Each kind of store, made anew; those that leave something behind do so in `folder`."""
    return {
        "disk": lambda: JsonlFolder(folder),
        "memory": MemoryFolder,
        "sqlite": lambda: SqliteFile(folder / "sessions.db"),
    }


def put(port: Port, path: Path, data: bytes) -> None:
    fd = port.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    port.pwrite(fd, data, 0)
    port.close(fd)


def get(port: Port, path: Path) -> bytes:
    fd = port.open(path, os.O_RDONLY)
    try:
        return port.pread(fd, port.fstat(fd).size, 0)
    finally:
        port.close(fd)


class PowerCut(BaseException):
    """The machine stops; nothing after it happens."""


class _Intercepted:
    def __init__(self, inner: Port, before: Callable[[str, tuple[Any, ...]], object]) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._inner, name)
        if not callable(operation):
            return operation

        def intercepted(*args: Any) -> Any:
            instead = self._before(name, args)
            return operation(*args) if instead is None else instead

        return intercepted


def intercepted(inner: Port, before: Callable[[str, tuple[Any, ...]], object]) -> Port:
    """A port that asks `before(operation, args)` first: it may raise, or answer instead."""
    return cast("Port", _Intercepted(inner, before))


CHANGES = frozenset({"pwrite", "copy_range", "fdatasync", "ftruncate", "sync_directory"}) | {
    "mkdir",
    "link",
    "unlink",
    "rename",
    "open",
}


def cut_at(inner: Port, step: int) -> Port:
    """A port on which the power fails just before change number `step`."""
    seen = 0

    def before(operation: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if operation in CHANGES:
            if seen == step:
                raise PowerCut
            seen += 1

    return intercepted(inner, before)
