"""The two advisory files beside a log: one makes its opening stricter, the other faster."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import attrs

from runtime.storage.files import exists, make_folder
from runtime.storage.head import Head, write_head
from runtime.storage.index import SavedIndex, write_index
from runtime.storage.port import Port


@attrs.define
class Advisory:
    """Writes a log's head file, and its index file of `indexed` records once that is worth it."""

    _port: Port
    _head: Path
    _index: Path
    _indexed: int = 0

    def write(self, head: Head, index: SavedIndex | None) -> None:
        """Note how far the log is durable, and where its lines are; for a log that becomes idle.

        Costs no sync. A failure is passed over: the log says everything by itself.
        """
        with suppress(OSError):
            if not exists(self._port, self._head.parent):
                make_folder(self._port, self._head.parent)
            write_head(self._port, self._head, head)
            if index is not None and index.is_worth_saving(self._indexed):
                write_index(self._port, self._index, index)
                self._indexed = len(index.where)
