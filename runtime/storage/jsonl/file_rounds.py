"""Writing and syncing many logs of a folder at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from refold.runtime.storage.jsonl.file_log import JsonlLog
from refold.runtime.storage.local_store import Batches, Done, Failures, Log, SideBySide, contained
from refold.runtime.storage.port import Port

WHOLE_FILE_SYSTEM = 16
"""From how many dirty files on one sync of the file system is cheaper."""


class FileRounds:
    """One write a file; then the syncs, side by side, or one for the whole file system.

    See `Rounds`. `logs` are those that are open, each under itself.
    """

    def __init__(self) -> None:
        self.logs: dict[Log, JsonlLog] = {}
        self._root: tuple[Port, int] | None = None

    def write(self, works: Sequence[tuple[Log, Batches]], *, durable: bool) -> Done:
        del durable  # files are synced one by one
        first = self.logs.get(works[0][0])
        if first is not None and first.port.has_syncfs:
            self._open_root(first)
        failures: Failures = {}
        for log, batches in works:
            failures |= contained([log], partial(log.append, *batches))
        return Done(failures, writes=len(works) - len(failures))

    def sync(self, logs: Sequence[Log], side_by_side: SideBySide) -> Done:
        own = [self.logs[log] for log in logs]
        if len(own) >= WHOLE_FILE_SYSTEM and own[0].port.has_syncfs:
            return Done(self._sync_file_system(own), syncs=1)
        failures: Failures = {}
        for failed in side_by_side([partial(contained, [log], log.sync) for log in own]):
            failures |= failed
        return Done(failures, syncs=len(own))

    def _sync_file_system(self, logs: Sequence[JsonlLog]) -> Failures:
        """One sync for all; when it fails nobody knows whose bytes are lost, so every log fails."""
        port, root = self._open_root(logs[0])
        outcome: list[OSError | None] = []

        def sync(_port: Port, _fd: int) -> None:
            if not outcome:
                outcome.append(_error_of(partial(port.syncfs, root)))
            if outcome[0] is not None:
                raise outcome[0]

        failures: Failures = {}
        for log in logs:
            failures |= contained([log], partial(log.sync_with, sync))
        return failures

    def _open_root(self, log: JsonlLog) -> tuple[Port, int]:
        """Open the descriptor that whole file systems are synced through, before any is written.

        A descriptor reports the errors since it was opened: an old one misses none of ours.
        """
        if self._root is None:
            self._root = log.port, log.open_lock_file()
        return self._root

    def stop(self) -> None:
        if self._root is not None:
            port, fd = self._root
            port.close(fd)
            self._root = None


def _error_of(work: Callable[[], object]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None
