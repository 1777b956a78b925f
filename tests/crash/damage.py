"""Logs that were closed in good order and then damaged in one place, and what reading says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import attrs

from refold.faults import FOLDER
from refold.runtime.errors import RefoldError
from refold.runtime.storage import JsonlFolder, MemoryPort, NotFound, Record
from tests.crash.checking import log_of
from tests.crash.recordings import SESSION, record


@attrs.define
class Closed:
    """The log of a closed session in a store of its own, with its head file or without."""

    data: bytes = attrs.field(repr=False)
    port: MemoryPort
    has_head: bool
    records: list[Record] = attrs.field(init=False, repr=False)
    durable_seq: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        found = self.store.read(SESSION)
        assert found.torn is None
        self.records, self.durable_seq = list(found.records), found.end.dur

    @property
    def store(self) -> JsonlFolder:
        return JsonlFolder(FOLDER, self.port)

    @property
    def lines(self) -> list[bytes]:
        return self.data.split(b"\n")[:-1]

    def problem(self) -> str | None:
        """What is wrong with how the damaged log is read; None if it is refused, or reported torn.

        Torn may be only what the log itself does not call durable; beside a head file, no record.
        """
        try:
            found = self.store.read(SESSION)
        except NotFound as error:
            return f"it is said to be none: {error}"
        except RefoldError:
            return None
        kept = list(found.records)
        if kept != self.records[: len(kept)]:
            return f"a wrong record is accepted: {len(kept)} of {len(self.records)} are read"
        if found.torn is None or (self.has_head and len(kept) < len(self.records)):
            return f"it is not refused, and {len(kept)} of {len(self.records)} records are read"
        if len(kept) <= self.durable_seq:
            return f"{len(kept)} records are left, and seq {self.durable_seq} was durable"
        return None

    def damaged(self, data: bytes) -> str | None:
        """As `problem`, with other bytes in the place of the log's."""
        put(self.port, log_of(SESSION), data)
        return self.problem()


def closed(scene: str, seed: int, *, head: bool) -> Closed:
    """The log that a scene leaves."""
    files = record(scene, seed).disk.image().files()
    port = MemoryPort()
    port.mkdir(FOLDER)
    names = [log_of(SESSION), *([FOLDER / f"{SESSION}.head"] if head else [])]
    for name in names:
        put(port, name, files[name])
    return Closed(files[log_of(SESSION)], port, head)


def put(port: MemoryPort, path: Path, data: bytes) -> None:
    fd = port.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    port.pwrite(fd, data, 0)
    port.close(fd)


def flipped(log: Closed, most: int | None = None) -> Iterator[tuple[int, str | None]]:
    """Every flip of one bit, or `most` of them spread over the log, and what is wrong then."""
    bits = 8 * len(log.data)
    fd = log.port.open(log_of(SESSION), os.O_RDWR)
    for bit in range(bits) if most is None else (n * bits // most for n in range(most)):
        at = bit // 8
        log.port.pwrite(fd, bytes([log.data[at] ^ 1 << bit % 8]), at)
        yield bit, log.problem()
        log.port.pwrite(fd, log.data[at : at + 1], at)


def rearranged(log: Closed, sibling: Closed) -> Iterator[tuple[str, bytes]]:
    """The log with lines swapped, left out, doubled, or taken from another log at the same seq."""
    lines = log.lines
    for a, b in combinations(range(len(lines)), 2):
        swapped = [*lines]
        swapped[a], swapped[b] = lines[b], lines[a]
        yield f"lines {a} and {b} swapped", joined(swapped)
    for place, line in enumerate(lines):
        yield f"line {place} left out", joined([*lines[:place], *lines[place + 1 :]])
        yield f"line {place} doubled", joined([*lines[:place], line, *lines[place:]])
    for place, (mine, other) in enumerate(zip(lines, sibling.lines, strict=False)):
        if mine != other and place:
            foreign = [*lines[:place], other, *lines[place + 1 :]]
            yield f"line {place} of another log", joined(foreign)


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
