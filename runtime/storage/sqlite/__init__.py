"""A store of many sessions in one SQLite file."""

from __future__ import annotations

from runtime.storage.sqlite.file import SqliteFile
from runtime.storage.sqlite.row_log import SqliteLog

__all__ = ["SqliteFile", "SqliteLog"]
