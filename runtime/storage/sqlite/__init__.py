"""A store of many sessions in one SQLite file."""

from __future__ import annotations

from refold.runtime.storage.sqlite.file import SqliteFile
from refold.runtime.storage.sqlite.row_log import SqliteLog

__all__ = ["SqliteFile", "SqliteLog"]
