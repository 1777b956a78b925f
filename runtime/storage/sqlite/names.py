"""What stands beside a SQLite file, and under which name."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import attrs

from refold.runtime.storage.files import exists
from refold.runtime.storage.port import Port
from refold.runtime.storage.session_header import file_name


@attrs.frozen
class SqliteNames:
    """The names around the file at `path`."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def lock(self) -> Path:
        return self._beside(".lock")

    @property
    def wal(self) -> Path:
        return self._beside("-wal")

    @property
    def beside_folder(self) -> Path:
        """The folder of what stands beside each session: files that begin with its id and a dot.

        A durable mark there vouches from outside for what the file holds.
        """
        return self._beside("-beside")

    def beside(self, port: Port, session_id: str) -> list[Path]:
        """Every file of a session: what stands beside it, and what repairs by command kept."""
        found = _beginning(port, self.beside_folder, f"{file_name(session_id)}.")
        return found + _beginning(port, self.folder, self._copy(session_id, "").name)

    def session_lock(self, session_id: str) -> Path:
        """Where range locks are missing, each session has a lock file of its own."""
        return self._beside(f"-{file_name(session_id)}.lock")

    def draft(self, process: int | str) -> Path:
        """The name under which a process makes the file."""
        return self._beside(f".new-{process}")

    def damaged(self, port: Port, session_id: str) -> Path:
        """A free name for what a log was before it was repaired by command."""
        paths = (self._copy(session_id, number) for number in count())
        return next(path for path in paths if not exists(port, path))

    def is_used(self, port: Port, session_id: str | None) -> bool:
        """Whether there is anything that a lock guards."""
        del session_id  # one file holds them all
        return exists(port, self.path)

    def _copy(self, session_id: str, number: int | str) -> Path:
        return self._beside(f"-{file_name(session_id)}.damaged-{number}")

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _beginning(port: Port, folder: Path, begin: str) -> list[Path]:
    """The files in a folder, if it is there, whose names begin so."""
    names = port.listdir(folder) if exists(port, folder) else []
    return [folder / name for name in names if name.startswith(begin)]
