"""Which file of a store is called what; ids hold no dot, so no two names meet."""

from __future__ import annotations

from pathlib import Path

import attrs

SUFFIX = ".jsonl"


@attrs.frozen
class Layout:
    """The names in one store's folder."""

    folder: Path

    def log(self, session_id: str) -> Path:
        return self.folder / f"{session_id}{SUFFIX}"

    def head(self, session_id: str) -> Path:
        return self.folder / f"{session_id}.head"

    def fork(self, session_id: str) -> Path:
        """The name under which a fork is written before it is a session."""
        return self.folder / f"{session_id}.fork"

    def copy(self, session_id: str) -> Path:
        """The name under which a log is copied to a new inode."""
        return self.folder / f"{session_id}.copy"

    def torn(self, session_id: str, offset: int, number: int) -> Path:
        """A quarantine file: the bytes that once stood from `offset` on."""
        return self.folder / f"{session_id}.torn-{offset}-{number}"

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    def session_lock(self, session_id: str) -> Path:
        """Where range locks are missing, each session has a lock file of its own."""
        return self.folder / f"{session_id}.lock"
