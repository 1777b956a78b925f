"""Every error of a store is one sentence that names the facts and says what to do."""

from __future__ import annotations

import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.storage import (
    AlreadyExists,
    Fenced,
    FileCorrupt,
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
from refold.runtime.storage.errors import StoreBusy


@pytest.mark.parametrize(
    ("error", "facts", "advice"),
    [
        (NotFound("s", "p"), ["'s'", "p"], "list the store"),
        (NotFound("s", "p", 7), ["'s'", "p", "7 bytes"], "create it anew"),
        (AlreadyExists("s"), ["'s'"], "choose another id"),
        (
            SessionBusy("s", 12, "h", 99),
            ["'s'", "12", "h", "1970-01-01 00:00:00 UTC"],
            "close it there",
        ),
        (SessionBusy("s", None, None, None), ["'s'"], "close it there"),
        (
            SessionBusy("s", 12, "h", 99, here=True),
            ["this very process, 12 on h"],
            "close it there",
        ),
        (StoreRefused("p", "a symbolic link"), ["p", "symbolic link"], "local disk"),
        (StoreRefused("p", "odd", "do this"), ["p is odd"], "do this"),
        (ForeignLog("s"), ["'s'"], "import it first"),
        (SeqMismatch(3, 5), ["3", "5"], "number the batch"),
        (NoForkPoint("s", 9, 4), ["'s'", "9", "4"], "can be forked at a turn/end"),
        (NoForkPoint("s", None, None), ["'s'", "its end"], "no turn has ended"),
        (LogClosed("s"), ["'s'"], "open it again"),
        (LogCorrupt("p", 10, 3, 1, "x"), ["p", "byte 10", "line 3", "seq 1", "x"], "restore"),
        (LogCorrupt("p", 0, 1, None, "x"), ["a header"], "restore"),
        (StoreFull("p", "r"), ["p", "r"], "make room, then do it again"),
        (LogFailed("p", "r", 8), ["p", "r", "seq 8"], "open it again"),
        (LogFailed("p", "r", -1), ["p", "no event had been synced"], "`resume` goes on"),
        (Fenced("s", 3, 8), ["'s'", "term 3", "seq 8 stand"], "open it again"),
        (Fenced("s", 3, -1), ["'s'", "none had been acknowledged"], "open it again"),
        (StoreBusy("p", "r"), ["p", "r"], "then do it again"),
        (Unavailable("p", "r"), ["p", "r"], "permissions"),
        (Unavailable("p", "r", "do this"), ["p", "r"], "do this"),
        (FileCorrupt("p", "r"), ["p", "r"], "`refold export ID --readable --to sqlite:///NEW`"),
    ],
)
def test_an_error_names_the_facts_and_says_what_to_do(
    error: RefoldError, facts: list[str], advice: str
) -> None:
    text = str(error)
    assert advice in text
    assert all(fact in text for fact in facts)
    assert "\n" not in text
