"""What stands beside a SQLite file, and under which name."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import attrs

from runtime.storage.files import exists
from runtime.storage.port import Port


@attrs.frozen
class SqliteLayout:
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
    def heads(self) -> Path:
        """The folder of the head files, which vouch from outside for what the file holds."""
        return self._beside("-heads")

    def head(self, session_id: str) -> Path:
        return self.heads / f"{session_id}.head"

    def index(self, session_id: str) -> Path:
        return self.heads / f"{session_id}.index"

    def session_lock(self, session_id: str) -> Path:
        """Where range locks are missing, each session has a lock file of its own."""
        return self._beside(f"-{session_id}.lock")

    def draft(self, process: int | str) -> Path:
        """The name under which a process makes the file."""
        return self._beside(f".new-{process}")

    def damaged(self, port: Port, session_id: str) -> Path:
        """A free name for what a log was before it was repaired by command."""
        paths = (self._beside(f"-{session_id}.damaged-{number}") for number in count())
        return next(path for path in paths if not exists(port, path))

    def damaged_copies(self, port: Port, session_id: str) -> list[Path]:
        """What repairs by command kept of a log."""
        begin = self._beside(f"-{session_id}.damaged-").name
        names = port.listdir(self.folder)
        return [self.folder / name for name in names if name.startswith(begin)]

    def is_used(self, port: Port, session_id: str | None) -> bool:
        """Whether there is anything that a lock guards."""
        del session_id  # one file holds them all
        return exists(port, self.path)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)
