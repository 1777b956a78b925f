"""What stands beside a log: its durable mark, its index, and the bytes that repairs took from it.

The first two are advisory: one makes opening stricter, the other faster, and a log says everything
without them. So nothing that is wrong with them, or with writing them, keeps a log from its work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs

from refold.runtime.storage.durable_mark import MARK, DurableMark, read_mark, write_mark
from refold.runtime.storage.errors import NotFound
from refold.runtime.storage.files import exists, make_folder, remove_beside, reported
from refold.runtime.storage.index import SavedIndex, read_index, write_index
from refold.runtime.storage.port import Port
from refold.runtime.storage.quarantine import Quarantine
from refold.runtime.storage.scan import Scan
from refold.runtime.storage.session_header import file_name
from refold.runtime.storage.walk import LogEnd

INDEX = ".index"
"""What the name of an index file ends with, after its session's id."""


@attrs.frozen
class Sidecars:
    """What was found beside a log.

    `mark` is how far the log is vouched for, `mark_damaged` whether there is a mark that cannot be
    trusted; `quarantine` names the pieces of dropped bytes.
    """

    mark: DurableMark | None
    mark_damaged: bool
    quarantine: tuple[str, ...]


@attrs.frozen
class Beside:
    """The files beside the log of one session, in `folder`, which may not be there yet."""

    _port: Port
    folder: Path
    session: str

    @property
    def _mark(self) -> Path:
        return self.folder / f"{file_name(self.session)}{MARK}"

    @property
    def _index(self) -> Path:
        return self.folder / f"{file_name(self.session)}{INDEX}"

    def find(self, quarantine: Quarantine) -> Sidecars:
        """What is there; raises `Unavailable`."""
        with reported(self._mark):
            mark = read_mark(self._port, self._mark)
            damaged = mark is None and exists(self._port, self._mark)
            return Sidecars(mark, damaged, tuple(quarantine.names()))

    def judge(self, read: Callable[[SavedIndex | None], Scan], name: str) -> Scan:
        """What `read` makes of the log, with its index; raises as it does, and `LogCorrupt`
        where the log, which errors call `name`, holds less than its mark vouches for.
        """
        # The mark is read first: it must not be younger than the bytes that it judges.
        mark = read_mark(self._port, self._mark)
        found = None
        try:
            found = read(read_index(self._port, self._index))
        except NotFound:
            if mark is not None:
                mark.check(None, name)
            raise
        if mark is not None:
            mark.check(found, name)
        return found

    def drop_mark(self) -> None:
        """Remove the mark for good, before there is a log that it does not speak of.

        A power cut must not bring it back.
        """
        if remove_beside(self._port, self._mark):
            self._port.sync_directory(self.folder)

    def write(self, durable: LogEnd, index: SavedIndex | None = None, indexed: int = 0) -> int:
        """Note how far a log is durable and where its lines are, when it becomes idle.

        Of its lines the index file has `indexed`; returns how many it has now, for it is not
        written anew for a few. Costs no sync. A failure is passed over.
        """
        with suppress(OSError):
            if not exists(self._port, self.folder):
                make_folder(self._port, self.folder)
            write_mark(self._port, self._mark, DurableMark.of(durable))
            if index is not None and index.is_worth_saving(indexed):
                write_index(self._port, self._index, index)
                return len(index.where)
        return indexed
