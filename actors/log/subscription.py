"""Following a log from any position.

It reads the log and not the writer's memory, so a slow reader holds nobody up and misses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from refold.actors.kernel.same_run import check_same_run
from refold.actors.log.live_log import LogProgress
from refold.runtime.envelope import Event, decode_line
from refold.runtime.storage.framing import Record
from refold.runtime.storage.reader import LogReader

READ_BYTES = 65536
"""About how much one read brings."""


class Subscription:
    """An async iterator over the events of a log, without gap or double.

    It reads the log through a descriptor of its own, so a slow reader costs no memory beyond what
    one read brought. With `durable` it gives only what survives a power cut, else whatever is
    written. It ends when the agent is closed or has failed, or its store refused an event for now,
    and everything was given. Cancelling a wait loses nothing; `close` or dropping it gives the
    descriptor back.
    """

    def __init__(
        self,
        feed: LogProgress,
        open_reader: Callable[[], LogReader],
        from_seq: int,
        *,
        durable: bool,
        run: trio.lowlevel.TrioToken,
    ) -> None:
        self._run = run
        self._feed, self._open_reader, self._from_seq = feed, open_reader, from_seq
        self._durable = durable
        self._reader: LogReader | None = None
        self._read: deque[Record] = deque()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        """The next event, once it is there."""
        check_same_run(self._run)
        while True:
            changed = self._feed.changed
            self._fill()
            if self._read and self._read[0].seq <= self._reached():
                return decode_line(self._read.popleft().encoded)
            if self._feed.ended is not None or self._feed.interruption is not None:
                self.close()
                raise StopAsyncIteration
            await changed.wait()

    def _reached(self) -> int:
        progress = self._feed.progress
        return progress.durable_seq if self._durable else progress.written_seq

    def _fill(self) -> None:
        if self._read or self._reached() < self._from_seq:
            return
        if self._reader is None:
            self._reader = self._open_reader()
        while not self._read and (records := self._reader.read_new(READ_BYTES)):
            self._read.extend(record for record in records if record.seq >= self._from_seq)

    def close(self) -> None:
        """Give the descriptor back; safe to call again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __del__(self) -> None:
        self.close()
