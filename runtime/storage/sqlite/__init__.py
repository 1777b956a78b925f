"""A store of many sessions in one SQLite file (design 5.3)."""

from __future__ import annotations

from runtime.storage.sqlite.file import SqliteFile
from runtime.storage.sqlite.log import Batches, Rounds, SqliteLog

__all__ = ["Batches", "Rounds", "SqliteFile", "SqliteLog"]
