"""Reading the logs of sessions, also those that another process has open; nothing here writes.

`open_sessions` gives the store at an address without a runtime and without Trio. Its `read` is one
session whole, its `reader` follows one: each `read_new` gives the lines that came since the last,
only whole batches, and `decode_line` makes an event of a line. `verify_requests` rebuilds every
request of a session and compares it with the digests that were logged before it was sent.
"""

from __future__ import annotations

from refold.runtime.envelope import Event, decode_line
from refold.runtime.history import History
from refold.runtime.storage import (
    OS,
    JsonlFolder,
    LogReader,
    Record,
    Scan,
    SessionHeader,
    SqliteFile,
    open_sessions,
)
from refold.runtime.storage.local_store import MaintainedStore
from refold.runtime.verify import Verdict, verify_requests

__all__ = [
    "OS",
    "Event",
    "History",
    "JsonlFolder",
    "LogReader",
    "MaintainedStore",
    "Record",
    "Scan",
    "SessionHeader",
    "SqliteFile",
    "Verdict",
    "decode_line",
    "open_sessions",
    "verify_requests",
]
