"""A store of JSONL files: one folder, one log a session."""

from __future__ import annotations

from refold.runtime.storage.jsonl.file_log import JsonlLog
from refold.runtime.storage.jsonl.folder import JsonlFolder
from refold.runtime.storage.jsonl.memory import MemoryFolder, MemoryPort

__all__ = ["JsonlFolder", "JsonlLog", "MemoryFolder", "MemoryPort"]
