"""The durable mark: a small file beside a log that says how far the log was durable.

It is written when a log becomes idle, and it is advisory. It closes the two gaps that no single log
can close: a cut exactly between two records, and damage to the last acknowledged batch. It can only
make the loader stricter; a missing or damaged one is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs
import orjson

from refold.runtime.storage.errors import LogCorrupt, StoreRefused
from refold.runtime.storage.files import exists, open_plain, read_all, reported, write_file
from refold.runtime.storage.framing import is_whole, seal
from refold.runtime.storage.port import Port
from refold.runtime.storage.scan import Scan
from refold.runtime.storage.session_header import file_name, from_file_name, is_session_id
from refold.runtime.storage.walk import LogEnd

MARK = ".head"
"""What the name of such a file ends with, after its session's id."""


@attrs.frozen
class DurableMark:
    """The last durable record: its seq, where its line ends, and its checksum."""

    seq: int
    end: int
    chain: int

    @classmethod
    def of(cls, end: LogEnd) -> DurableMark:
        """The mark of a log that is durable up to there, and holds a record."""
        return cls(end.next_seq - 1, end.offset, end.chain)

    def check(self, found: Scan | None, path: str) -> None:
        """Raise `LogCorrupt` if the log is not what this saw, or ends before it.

        `found` is None for a file that ends inside its header line.
        """
        end = f"the log's end, though seq {self.seq} was durable when it was last closed"
        if found is None:
            raise LogCorrupt(path, 0, 1, None, end, advice=_NOTHING_LEFT)
        count = len(found.records)
        if self.seq >= count:
            raise LogCorrupt(path, found.end.offset, count + 2, count, end, found)
        record = found.records[self.seq]
        if (record.offset + record.length, record.chain) != (self.end, self.chain):
            what = "another record than when the log was last closed"
            raise LogCorrupt(path, record.offset, self.seq + 2, self.seq, what, found)


_NOTHING_LEFT = (
    "restore the file from a copy, or remove it with `refold delete`: nothing is left to repair"
)


def write_mark(port: Port, path: Path, mark: DurableMark) -> None:
    """Replace the file; call it only once the log itself is durable up to there."""
    fields = orjson.dumps(attrs.asdict(mark))
    write_file(port, path, seal(b"," + fields[1:])[0], sync=False)


def read_mark(port: Port, path: Path) -> DurableMark | None:
    """The file's word, or None if there is none that can be trusted."""
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
    return DurableMark(fields["seq"], fields["end"], fields["chain"])


def vanished(port: Port, folder: Path, names: Callable[[], Iterable[str]]) -> list[str]:
    """The ids, sorted, that have a mark in `folder` and are not among `names`.

    One that cannot be trusted does not count; it may be another program's.
    """
    with reported(folder):
        found = port.listdir(folder) if exists(port, folder) else []
        marked = {from_file_name(name.removesuffix(MARK)) for name in found if name.endswith(MARK)}
        # Asked for after the marks, or a session that was just made would seem gone.
        gone = sorted(name for name in marked.difference(names()) if is_session_id(name))
        # A deletion removes the mark first: one that was under way has done so by now.
        return [
            name
            for name in gone
            if read_mark(port, folder / f"{file_name(name)}{MARK}") is not None
        ]
