"""Writing and syncing the logs of a SQLite file (design 5.3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from actors.stores.committer import Done, Failures, Work
from runtime.errors import Broken, RefoldError
from runtime.storage.errors import LogFailed
from runtime.storage.sqlite import Batches, Rounds, SqliteLog

_log = logging.getLogger("refold")


class RowWriting:
    """One transaction for all sessions of a round, which is also their sync. See `Writing`."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds

    def write(self, works: Sequence[Work[SqliteLog]], *, sync: bool) -> Done[SqliteLog]:
        failures = self._write([(work.log, work.batches) for work in works], durable=sync)
        return Done(_broken(failures), writes=1, syncs=int(sync))

    def sync(self, logs: Sequence[SqliteLog]) -> Done[SqliteLog]:
        owed = [(log, ()) for log in logs if log.durable_seq < log.next_seq - 1]
        if not owed:
            return Done({})
        return Done(_broken(self._write(owed, durable=True)), syncs=1)

    def _write(
        self, works: Sequence[tuple[SqliteLog, Batches]], *, durable: bool
    ) -> dict[SqliteLog, RefoldError]:
        try:
            return self._rounds.write(works, durable=durable)
        except Exception as surprise:  # noqa: BLE001 - whatever it is, the thread goes on
            _log.exception(
                "a transaction of %s met an unexpected error", self._rounds.database.name
            )
            reason = f"{type(surprise).__name__}: {surprise}"
            return {log: LogFailed(log.name, reason, log.durable_seq) for log, _ in works}

    def stop(self) -> None:
        """It has no threads of its own."""


def _broken(failures: dict[SqliteLog, RefoldError]) -> Failures[SqliteLog]:
    """A refused batch leaves a gap before the next, so it is that log's end, too."""
    return {log: _end(log, failure) for log, failure in failures.items()}


def _end(log: SqliteLog, failure: RefoldError) -> Broken:
    if isinstance(failure, Broken):
        return failure
    return LogFailed(log.name, str(failure), log.durable_seq)
