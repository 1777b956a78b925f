"""Session ids and the label of events; no Trio, so that every command may enter."""

from __future__ import annotations

import secrets
import time


def new_id() -> str:
    """A session id that sorts by day and second and does not repeat."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(4)


def now_ms() -> int:
    """Wall-clock epoch milliseconds: a label, never an order."""
    return time.time_ns() // 1_000_000
