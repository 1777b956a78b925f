"""How a session is stored: framing, files, locks and recovery; synchronous (design chapter 5)."""

from __future__ import annotations

from runtime.storage.errors import (
    AlreadyExists,
    ForeignLog,
    LogClosed,
    LogCorrupt,
    LogFailed,
    NoForkPoint,
    NotFound,
    SeqMismatch,
    SessionBusy,
    StoreFull,
    StoreRefused,
    Unavailable,
)
from runtime.storage.framing import Record, frame_batch, frame_header
from runtime.storage.header import SessionHeader, check_session_id, parse_header
from runtime.storage.jsonl import JsonlFolder
from runtime.storage.log import JsonlLog
from runtime.storage.memory import MemoryFolder, MemoryPort
from runtime.storage.owners import this_process
from runtime.storage.port import OS, FileStatus, Port
from runtime.storage.reader import LogReader
from runtime.storage.tail import Scan, Torn, scan

__all__ = [
    "OS",
    "AlreadyExists",
    "FileStatus",
    "ForeignLog",
    "JsonlFolder",
    "JsonlLog",
    "LogClosed",
    "LogCorrupt",
    "LogFailed",
    "LogReader",
    "MemoryFolder",
    "MemoryPort",
    "NoForkPoint",
    "NotFound",
    "Port",
    "Record",
    "Scan",
    "SeqMismatch",
    "SessionBusy",
    "SessionHeader",
    "StoreFull",
    "StoreRefused",
    "Torn",
    "Unavailable",
    "check_session_id",
    "frame_batch",
    "frame_header",
    "parse_header",
    "scan",
    "this_process",
]
