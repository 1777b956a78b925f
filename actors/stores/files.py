"""Writing and syncing the logs of a folder of files (design 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from actors.stores.committer import Done, Failures, Work, failure_of
from runtime.errors import Broken
from runtime.storage.log import JsonlLog
from runtime.storage.port import Port

SIDE_BY_SIDE = 8
"""How many files are synced at once."""

WHOLE_FILE_SYSTEM = 16
"""From how many dirty files on one sync of the file system is cheaper."""


class FileWriting:
    """One write a file; then the syncs, side by side. See `Writing`.

    `threaded=False` is for stores in memory, whose syncs take no time.
    """

    def __init__(self, *, threaded: bool) -> None:
        self._threaded = threaded
        self._root: tuple[Port, int] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def write(self, works: Sequence[Work[JsonlLog]], *, sync: bool) -> Done[JsonlLog]:
        del sync  # files are synced one by one
        if works[0].log.port.has_syncfs:
            self._open_root(works[0].log)
        results = {w.log: failure_of(w.log, partial(w.log.append, *w.batches)) for w in works}
        failures = {log: failure for log, failure in results.items() if failure is not None}
        return Done(failures, writes=len(works) - len(failures))

    def sync(self, logs: Sequence[JsonlLog]) -> Done[JsonlLog]:
        if len(logs) >= WHOLE_FILE_SYSTEM and logs[0].port.has_syncfs:
            return Done(self._sync_file_system(logs), syncs=1)
        if len(logs) > 1 and self._threaded:
            self._pool = self._pool or ThreadPoolExecutor(SIDE_BY_SIDE, "refold-sync")
            results = [*self._pool.map(_sync_one, logs)]
        else:
            results = [_sync_one(log) for log in logs]
        failures = {log: failure for log, failure in zip(logs, results, strict=True) if failure}
        return Done(failures, syncs=len(logs))

    def _sync_file_system(self, logs: Sequence[JsonlLog]) -> Failures[JsonlLog]:
        """One sync for all; when it fails nobody knows whose bytes are lost, so every log fails."""
        port, root = self._open_root(logs[0])
        outcome: list[OSError | None] = []

        def sync(_port: Port, _fd: int) -> None:
            if not outcome:
                outcome.append(_error_of(lambda: port.syncfs(root)))
            if outcome[0] is not None:
                raise outcome[0]

        results = {log: failure_of(log, partial(log.sync_with, sync)) for log in logs}
        return {log: failure for log, failure in results.items() if failure is not None}

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
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def _sync_one(log: JsonlLog) -> Broken | None:
    return failure_of(log, log.sync)


def _error_of(work: Callable[[], object]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None
