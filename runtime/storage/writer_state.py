"""What the writer of an open log knows of it, whatever keeps the log."""

from __future__ import annotations

import attrs

from refold.runtime.errors import Broken
from refold.runtime.events import SessionOwner, SessionRecovered
from refold.runtime.storage.batches import Framed
from refold.runtime.storage.beside import Beside
from refold.runtime.storage.errors import LogClosed
from refold.runtime.storage.index import SavedIndex
from refold.runtime.storage.scan import Scan
from refold.runtime.storage.session_header import SessionHeader
from refold.runtime.storage.walk import LogEnd, Records


@attrs.frozen
class Opening:
    """What an opening found: where the log goes on, who had it, and what was cut.

    `index` is of the records that stand in it, of which the index file has `indexed`.
    """

    header: SessionHeader
    end: LogEnd = attrs.field(factory=LogEnd)
    recovered: SessionRecovered | None = None
    last_owner: SessionOwner | None = None
    index: SavedIndex | None = attrs.field(default=None, repr=False)
    indexed: int = 0

    @classmethod
    def of(cls, found: Scan, recovered: SessionRecovered | None) -> Opening:
        """Of a log of our own whose tail is repaired."""
        assert isinstance(found.records, Records), "a foreign log is not opened"
        last, index = found.last_owner(), SavedIndex.of(found.records, found.end, found.indexed)
        owner = None if last is None else last.owner
        return cls(found.header, found.end, recovered, owner, index, found.indexed)


class WriterState:
    """How far one open log is written and durable, and what ended it.

    `failure` is what `append` and `sync` raise from then on.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.written = self.durable = opening.end
        self.failure: Broken | None = None
        self.closed = False
        self._index, self._indexed = opening.index, opening.indexed

    @property
    def term(self) -> int:
        """The fencing number of this opening, one more than that of the last owner."""
        last = self.opening.last_owner
        return 1 if last is None else last.term + 1

    @property
    def durable_seq(self) -> int:
        return self.durable.next_seq - 1

    @property
    def acknowledged_seq(self) -> int:
        """The highest seq that somebody may have been told is safe, as the log's level has it."""
        end = self.durable if self.opening.header.level == "power" else self.written
        return end.next_seq - 1

    def check_usable(self) -> None:
        """Raise `LogClosed`, or what the log failed with."""
        if self.closed:
            raise LogClosed(self.opening.header.id)
        if self.failure is not None:
            raise self.failure

    def go_on(self, framed: Framed, first: bytes) -> None:
        """Note that lines were written, behind the header's line `first` if the log was new."""
        self.written = attrs.evolve(framed.end, offset=framed.end.offset + len(first))
        self._index = self._index or SavedIndex.of_new(first)
        self._index.extend(framed.lines, framed.kinds, self.written)

    def note(self, beside: Beside) -> None:
        """Write beside the log how far it is durable, and where its lines are."""
        self._indexed = beside.write(self.durable, self._index, self._indexed)
