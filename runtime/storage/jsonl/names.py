"""Which file of a store is called what; an id is written without dots, so no two names meet."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import attrs

from refold.runtime.storage.files import exists
from refold.runtime.storage.port import Port
from refold.runtime.storage.quarantine import TORN, piece_name
from refold.runtime.storage.session_header import file_name

SUFFIX = ".jsonl"

ASIDE = ".aside"


@attrs.frozen
class FolderNames:
    """The names of the files in one store's folder."""

    folder: Path

    def log(self, session_id: str) -> Path:
        return self.folder / f"{file_name(session_id)}{SUFFIX}"

    def fork(self, session_id: str) -> Path:
        """The name under which a fork is written before it is a session."""
        return self.folder / f"{file_name(session_id)}.fork"

    def copy(self, session_id: str) -> Path:
        """What the name begins with under which a log is copied before it takes another's place."""
        return self.folder / f"{file_name(session_id)}.copy"

    def aside(self, session_id: str) -> Path:
        """The name of a log while a takeover puts its copy in its place."""
        return self.folder / f"{file_name(session_id)}{ASIDE}"

    def twins(self, port: Port, session_id: str) -> list[Path]:
        """The other names that a log may have for a moment, and after a crash."""
        begin = (
            f"{file_name(session_id)}.fork",
            f"{file_name(session_id)}.copy-",
            f"{file_name(session_id)}{ASIDE}",
        )
        names = port.listdir(self.folder)
        return [self.folder / name for name in names if name.startswith(begin)]

    def torn(self, session_id: str, offset: int, number: int) -> Path:
        """A quarantine file: the bytes that once stood from `offset` on."""
        return self.folder / piece_name(session_id, offset, number)

    def torn_names(self, port: Port, session_id: str) -> list[str]:
        """What a session's quarantine files are called, sorted."""
        begin = f"{file_name(session_id)}{TORN}"
        names = [name for name in port.listdir(self.folder) if name.startswith(begin)]
        return sorted(name for name in names if ".new-" not in name)  # a draft that a kill left

    def damaged(self, port: Port, session_id: str) -> Path:
        """A free name for what a log was before it was repaired by command."""
        names = {*port.listdir(self.folder)}
        free = (
            name for n in count() if (name := f"{file_name(session_id)}.damaged-{n}") not in names
        )
        return self.folder / next(free)

    def beside(self, port: Port, session_id: str) -> list[Path]:
        """Everything of a session but its log and its lock, which is never unlinked."""
        begin, keep = (
            f"{file_name(session_id)}.",
            {self.log(session_id).name, f"{file_name(session_id)}.lock"},
        )
        names = [name for name in port.listdir(self.folder) if name.startswith(begin)]
        return [self.folder / name for name in names if name not in keep]

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    def session_lock(self, session_id: str) -> Path:
        """Where range locks are missing, each session has a lock file of its own."""
        return self.folder / f"{file_name(session_id)}.lock"

    def is_used(self, port: Port, session_id: str | None) -> bool:
        """Whether that session's log is there, or (None) any."""
        if session_id is not None:
            return exists(port, self.log(session_id))
        return any(name.endswith(SUFFIX) for name in port.listdir(self.folder))
