"""The advisory head file: how far a log was durable when it was last idle (design 5.2).

It closes the two gaps that no single log can close: a cut exactly between two records, and damage
to the last acknowledged batch. It can only make the loader stricter; a missing or damaged one is
passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
import orjson

from runtime.storage.errors import LogCorrupt, StoreRefused
from runtime.storage.files import exists, open_plain, read_all, reported, write_file
from runtime.storage.framing import is_whole, seal
from runtime.storage.header import is_session_id
from runtime.storage.port import Port
from runtime.storage.tail import Scan

HEAD = ".head"
"""What the name of a head file ends with, after its session's id."""


@attrs.frozen
class Head:
    """The last durable record: its seq, where its line ends, and its checksum."""

    seq: int
    end: int
    chain: int


@attrs.frozen
class Beside:
    """What stands beside a log.

    `head` is what the head file vouches for, `head_damaged` whether there is one that cannot be
    trusted; `quarantine` names the pieces of dropped bytes.
    """

    head: Head | None
    head_damaged: bool
    quarantine: tuple[str, ...]


def write_head(port: Port, path: Path, head: Head) -> None:
    """Replace the head file; call it only once the log itself is durable up to there."""
    fields = orjson.dumps(attrs.asdict(head))
    write_file(port, path, seal(b"," + fields[1:])[0], sync=False)


def read_head(port: Port, path: Path) -> Head | None:
    """The head file's word, or None if there is none that can be trusted."""
    try:
        fd = open_plain(port, path, os.O_RDONLY)
    except (OSError, StoreRefused):
        return None
    try:
        line = read_all(port, fd, 0, 4096)
    finally:
        port.close(fd)
    if not line.endswith(b"\n") or not is_whole(line, 0, len(line) - 1, 0):
        return None
    fields = orjson.loads(line)
    return Head(fields["seq"], fields["end"], fields["chain"])


def vanished(port: Port, folder: Path, names: Callable[[], Iterable[str]]) -> list[str]:
    """The ids, sorted, that have a head file in `folder` and are not among `names`.

    One that cannot be trusted does not count; it may be another program's.
    """
    with reported(folder):
        found = port.listdir(folder) if exists(port, folder) else []
        heads = {name.removesuffix(HEAD) for name in found if name.endswith(HEAD)}
        # Asked for after the heads, or a session that was just made would seem gone.
        gone = sorted(name for name in heads.difference(names()) if is_session_id(name))
        # A deletion removes the head first: one that was under way has done so by now.
        return [name for name in gone if read_head(port, folder / f"{name}{HEAD}") is not None]


def head_of(found: Scan) -> Head | None:
    """Where a log ends; None for one that holds no record."""
    return Head(len(found.records) - 1, found.end, found.chain) if found.records else None


_NOTHING_LEFT = (
    "restore the file from a copy, or remove it with `refold delete`: nothing is left to repair"
)


def check_head(found: Scan | None, head: Head | None, path: str) -> None:
    """Raise `LogCorrupt` if the log is not what `head` saw, or ends before it.

    `found` is None for a file that ends inside its header line.
    """
    if head is None:
        return
    end = f"the log's end, though seq {head.seq} was durable when it was last closed"
    if found is None:
        raise LogCorrupt(path, 0, 1, None, end, advice=_NOTHING_LEFT)
    count = len(found.records)
    if head.seq >= count:
        raise LogCorrupt(path, found.end, count + 2, count, end, found)
    record = found.records[head.seq]
    if (record.offset + record.length, record.chain) != (head.end, head.chain):
        what = "another record than when the log was last closed"
        raise LogCorrupt(path, record.offset, head.seq + 2, head.seq, what, found)
