"""How a session is stored: framing, files, locks and recovery; synchronous (design chapter 5)."""

from __future__ import annotations

from runtime.storage.errors import (
    AlreadyExists,
    EmptyBatch,
    Fenced,
    FileCorrupt,
    ForeignLog,
    LogClosed,
    LogCorrupt,
    LogFailed,
    NoForkPoint,
    NoStoreFile,
    NotFound,
    SeqMismatch,
    SessionBusy,
    StoreFull,
    StoreRefused,
    TooLarge,
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
from runtime.storage.sessions import Log, NoSuchStore, Sessions, open_sessions
from runtime.storage.sqlite import SqliteFile
from runtime.storage.tail import Scan, Torn, scan

__all__ = [
    "OS",
    "AlreadyExists",
    "EmptyBatch",
    "Fenced",
    "FileCorrupt",
    "FileStatus",
    "ForeignLog",
    "JsonlFolder",
    "JsonlLog",
    "Log",
    "LogClosed",
    "LogCorrupt",
    "LogFailed",
    "LogReader",
    "MemoryFolder",
    "MemoryPort",
    "NoForkPoint",
    "NoStoreFile",
    "NoSuchStore",
    "NotFound",
    "Port",
    "Record",
    "Scan",
    "SeqMismatch",
    "SessionBusy",
    "SessionHeader",
    "Sessions",
    "SqliteFile",
    "StoreFull",
    "StoreRefused",
    "TooLarge",
    "Torn",
    "Unavailable",
    "check_session_id",
    "frame_batch",
    "frame_header",
    "open_sessions",
    "parse_header",
    "scan",
    "this_process",
]
