"""When sessions were used, and whether a clock can be believed.

A clock may have been wrong when a session was written: by decades on a board without a battery. So
no stamp decides alone. A SQLite file counts its lines, which gives the order of all writing. In a
folder there is nothing but the files' stamps; one that cannot be right comes after all others. What
cannot be dated is listed with its doubt and never pruned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from refold.runtime.storage import MaintainedStore

SLACK = 300_000
"""Milliseconds; a clock that is wrong by less was only being set."""

FIRST = 1_577_836_800_000
"""The beginning of 2020, epoch ms: no log of this format is older."""


def now_ms() -> int:
    """Epoch ms, as the system's clock has it."""
    return time.time_ns() // 1_000_000


def doubt(stamp: int, created: int | None = None) -> str:
    """Why a stamp cannot be when something was used, empty if it can; both epoch ms.

    `created` is when the session was made, where that is known.
    """
    if stamp > now_ms() + SLACK:
        return "in the future"
    if created is not None and stamp < created - SLACK:
        return "before the session was made"
    return "before there were such logs" if stamp < FIRST else ""


def newest_first(store: MaintainedStore, names: Iterable[str]) -> list[str]:
    """These sessions, the one written to last first; raises `Unavailable`."""

    def written(name: str) -> tuple[int, bool, int, str]:
        stamp = store.written_at(name)
        return store.write_number(name), not doubt(stamp // 1_000_000), stamp, name

    return sorted(names, key=written, reverse=True)
