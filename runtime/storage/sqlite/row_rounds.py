"""Writing many logs of one SQLite file at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold.runtime.errors import Broken, RefoldError
from refold.runtime.storage.errors import LogClosed, LogFailed
from refold.runtime.storage.local_store import Batches, Done, Failures, Log, SideBySide
from refold.runtime.storage.sqlite.database import Database

if TYPE_CHECKING:
    from refold.runtime.storage.sqlite.row_log import SqliteLog


class RowRounds:
    """One transaction for all sessions of a round, which is also their sync.

    See `Rounds`. `logs` are those that are open, each under itself.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.logs: dict[Log, SqliteLog] = {}

    def write(self, works: Sequence[tuple[Log, Batches]], *, durable: bool) -> Done:
        return Done(self._broken(works, durable=durable), writes=1, syncs=int(durable))

    def sync(self, logs: Sequence[Log], side_by_side: SideBySide) -> Done:
        del side_by_side  # it is one sync
        owed = [(log, ()) for log in logs if self.logs[log].is_owed]
        return Done(self._broken(owed, durable=True), syncs=1) if owed else Done({})

    def stop(self) -> None:
        """Rounds hold nothing but the file, which the store lets go of."""

    def _broken(self, works: Sequence[tuple[Log, Batches]], *, durable: bool) -> Failures:
        """As `commit`; a refused batch leaves a gap before the next, so it is its log's end too."""
        failures = self.commit(works, durable=durable)
        return {log: _end(log, failure) for log, failure in failures.items()}

    def commit(
        self, works: Sequence[tuple[Log, Batches]], *, durable: bool
    ) -> dict[Log, RefoldError]:
        """Append to each log; with `durable`, make everything written so far durable.

        Returns what failed. One log's refusal leaves the others; a failure of the transaction is
        everybody's.
        """
        failures: dict[Log, RefoldError] = {}
        own = [self.logs[log] for log, _ in works if log in self.logs]
        try:
            with self.database.transaction(durable=durable) as db:
                for log, batches in works:
                    try:
                        self._open(log).stage(db, batches)
                    except RefoldError as refused:
                        failures[log] = refused
                if durable and not any(log.has_staged for log in own):
                    db.execute("UPDATE syncs SET count = count + 1")  # an empty commit is no sync
                standing = [(log, log.standing) for log in tuple(self.logs.values())]
        except Broken as failure:
            whole = isinstance(failure, LogFailed)  # of the file, and so of every log in it
            told = tuple(self.logs.values()) if whole else own
            return failures | {log: log.forget(failure) for log in told}
        except BaseException as surprise:  # nobody knows how far it came
            reason = f"{type(surprise).__name__}: {surprise}"
            for log in own:
                log.forget(LogFailed(log.name, reason, log.durable_seq))
            raise
        for log in own:
            log.settle()
        for log, end in standing if durable else ():
            log.secure(end)
        return failures

    def _open(self, log: Log) -> SqliteLog:
        if log not in self.logs:
            raise LogClosed(log.header.id)
        return self.logs[log]


def _end(log: Log, failure: RefoldError) -> Broken:
    if isinstance(failure, Broken):
        return failure
    return LogFailed(log.name, str(failure), log.durable_seq)
