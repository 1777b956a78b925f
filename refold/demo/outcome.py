"""What the tour found, as promises kept or not, and in a form for programs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs

from refold.demo.account import RequestRow
from refold.runtime.envelope import Event
from refold.runtime.events import EndReason

CLOSED = ("tool/result", "step/end", "turn/end")
"""What a kill inside the only tool call leaves to close."""


@attrs.frozen
class Outcome:
    """The facts of one tour. `closers` are the events that the second opening wrote by itself."""

    store: str
    session: str
    killed_pid: int
    exit_status: int
    closers: tuple[Event, ...]
    turns: tuple[EndReason, ...]
    requests: tuple[RequestRow, ...]
    engine: bool

    @property
    def checks(self) -> dict[str, bool]:
        """Each promise in a sentence, and whether it was kept."""
        rows = self.requests
        closed = tuple(e.type for e in self.closers if not e.type.startswith("session/"))
        found = {
            "SIGKILL ended the process": self.exit_status == -signal.SIGKILL,
            "the next opening closed the open turn": closed == CLOSED,
            "the agent went on": {turn.kind for turn in self.turns} == {"completed"},
            "both lives sent requests": {row.life for row in rows} == {1, 2},
            "every request is the fold of the log": not any(row.problem for row in rows),
            "every request begins with the whole one before": _all(rows, RequestRow.keeps_all_of),
        }
        if self.engine:
            found["the engine had every request cached but for its last token"] = _all(
                rows, RequestRow.is_cached_after
            )
        return found

    @property
    def good(self) -> bool:
        return all(self.checks.values())

    def as_json(self) -> dict[str, Any]:
        """The summary that `--json` prints."""
        return {
            "good": self.good,
            "store": self.store,
            "session": self.session,
            "killed": {"pid": self.killed_pid, "exitStatus": self.exit_status},
            "closers": [{"seq": event.seq, "type": event.type} for event in self.closers],
            "requests": [_row_as_json(row) for row in self.requests],
            "checks": self.checks,
        }


def _all(rows: Sequence[RequestRow], holds: Callable[[RequestRow, RequestRow], bool]) -> bool:
    return len(rows) > 1 and all(holds(row, previous) for previous, row in pairwise(rows))


def _row_as_json(row: RequestRow) -> dict[str, Any]:
    usage = row.usage
    return {
        "step": row.name,
        "seq": row.seq,
        "life": row.life,
        "wireBytes": row.wire_bytes,
        "keptBytes": row.kept_bytes,
        "cachedTokens": None if usage is None else usage.cache_read_tokens,
        "newTokens": None if usage is None else usage.input_tokens,
        "outputTokens": None if usage is None else usage.output_tokens,
        "problem": row.problem or None,
    }
