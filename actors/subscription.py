"""Following a log from any position (design 3.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from actors.session_log import LiveLog
from runtime.envelope import Event, decode_line
from runtime.storage.framing import Record
from runtime.storage.reader import LogReader


class Subscription:
    """An async iterator over the durable events of a live log, without gap or double.

    It reads the log through a descriptor of its own, so a slow reader costs no memory beyond what
    one read brought. Cancelling a wait loses nothing; `close` or dropping it ends it.
    """

    def __init__(self, live: LiveLog, open_reader: Callable[[], LogReader], from_seq: int) -> None:
        self._live, self._open_reader, self._from_seq = live, open_reader, from_seq
        self._reader: LogReader | None = None
        self._read: deque[Record] = deque()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """The next event, once it is durable."""
        while True:
            changed = self._live.changed
            self._fill()
            if self._read and self._read[0].seq <= self._live.durable_seq:
                return decode_line(self._read.popleft().encoded)
            await changed.wait()

    def _fill(self) -> None:
        if self._read or self._live.durable_seq < self._from_seq:
            return
        if self._reader is None:
            self._reader = self._open_reader()
        records = self._reader.read_new()
        self._read.extend(record for record in records if record.seq >= self._from_seq)

    def close(self) -> None:
        """Give the descriptor back; safe to call again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __del__(self) -> None:
        self.close()
