"""How a session is stored: framing, files, locks and recovery; synchronous."""

from __future__ import annotations

from refold.runtime.storage.errors import (
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
from refold.runtime.storage.framing import Record, frame_batch, frame_header
from refold.runtime.storage.jsonl import JsonlFolder, JsonlLog, MemoryFolder, MemoryPort
from refold.runtime.storage.kinds import NoSuchStore, open_sessions
from refold.runtime.storage.local_store import LocalStore, Log, MaintainedStore
from refold.runtime.storage.owners import this_process
from refold.runtime.storage.port import OS, FileStatus, Port
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.scan import Scan, Torn, scan
from refold.runtime.storage.session_header import SessionHeader, check_session_id, parse_header
from refold.runtime.storage.sqlite import SqliteFile

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
    "LocalStore",
    "Log",
    "LogClosed",
    "LogCorrupt",
    "LogFailed",
    "LogReader",
    "MaintainedStore",
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
