"""Clocks that were wrong: what is last, what is marked, and what is never pruned."""

from __future__ import annotations

import os
import time
from typing import Any

import orjson
import pytest

from refold.runtime.storage import SessionHeader
from tests.refold.cli_stores import CliStore
from tests.runtime.storage.logs import event

SECOND, DAY, YEAR = 1000, 86_400_000, 31_557_600_000


def now() -> int:
    return time.time_ns() // 1_000_000


def write(store: CliStore, session: str, created: int, last: int) -> None:
    """A session with one event; a folder's clock was the same as its writer's."""
    made = event(0, "todo/write", todos=[])
    stamped = orjson.dumps({**orjson.loads(made), "time": last})
    store.write(session, stamped, header=SessionHeader(session, created))
    if store.file is None:
        os.utime(store.log(session), (last / 1000, last / 1000))


def row(store: CliStore, session: str) -> dict[str, Any]:
    found = orjson.loads(store.run("sessions", "--json").out)["sessions"]
    return next(one for one in found if one["session"] == session)


def order(store: CliStore) -> list[str]:
    return [one["session"] for one in orjson.loads(store.run("sessions", "--json").out)["sessions"]]


@pytest.fixture
def store(any_store: CliStore) -> CliStore:
    any_store.run("delete", *any_store.ids(), "--yes")
    return any_store


WRONG = {
    "in the future": lambda: (now() + 19 * YEAR, now() + 19 * YEAR),
    "before there were such logs": lambda: (5 * SECOND, 60 * SECOND),
    "before the session was made": lambda: (now() - DAY, now() - YEAR),
}


@pytest.mark.parametrize("doubt", WRONG)
def test_a_wrong_stamp_is_marked_never_pruned_and_never_last(store: CliStore, doubt: str) -> None:
    write(store, "wrong", *WRONG[doubt]())
    write(store, "right", now() - 3 * DAY, now() - 2 * DAY)
    assert order(store) == ["right", "wrong"]
    assert store.run("show", "last").out == store.run("show", "right").out
    assert (row(store, "wrong")["doubt"], row(store, "right")["doubt"]) == (doubt, None)
    table = store.run("sessions")
    assert [line.count(" UTC?") for line in table.lines] == [0, 0, 1]
    assert f"last used {doubt}" in table.out
    pruned = store.run("prune", "--older-than", "1d", "--yes")
    assert (pruned.code, pruned.lines[-1]) == (0, "right")
    assert "1 session cannot be dated" in pruned.err
    assert store.ids() == ["wrong"]


def test_a_sqlite_file_knows_what_was_written_last_whatever_the_clocks_said(
    store: CliStore,
) -> None:
    write(store, "first", now() - DAY, now() - DAY)
    write(store, "board", 5 * SECOND, 60 * SECOND)
    write(store, "ahead", now() + YEAR, now() + YEAR)
    counted = store.file is not None
    assert order(store) == (["ahead", "board", "first"] if counted else ["first", "ahead", "board"])
    with store.opened() as sessions:
        log = sessions.open("first")
        log.append([event(1, "todo/write", todos=[])])
        log.close()
    assert order(store)[0] == "first"


def test_a_clock_that_is_a_little_ahead_is_no_wrong_one(store: CliStore) -> None:
    write(store, "old", now() - DAY, now() - DAY)
    write(store, "ahead", now(), now() + 60 * SECOND)
    assert order(store)[0] == "ahead"
    assert row(store, "ahead")["doubt"] is None


@pytest.mark.parametrize(
    ("ahead", "doubt"),
    [(0, None), (4 * 60, None), (6 * 60, "in the future"), (10**9, "in the future")],
)
def test_what_is_ahead_by_more_than_minutes_is_in_the_future(
    store: CliStore, ahead: int, doubt: str | None
) -> None:
    write(store, "one", now(), now() + ahead * SECOND)
    assert row(store, "one")["doubt"] == doubt


def test_a_damaged_log_with_an_impossible_stamp_is_not_pruned_either(own_store: CliStore) -> None:
    data = bytearray(own_store.raw("tour"))
    data[40] ^= 1
    own_store.put("tour", bytes(data))
    os.utime(own_store.log("tour"), (60, 60))
    ran = own_store.run("prune", "--older-than", "1d", "--damaged", "--yes")
    assert (ran.code, "tour" in own_store.ids(), "cannot be dated" in ran.err) == (0, True, True)


@pytest.mark.parametrize("level", ["power", "process", "none", None])
def test_the_level_that_a_session_is_kept_at_is_shown(any_store: CliStore, level: Any) -> None:
    header = SessionHeader("one", now(), durability=level)
    any_store.write("one", event(0, "todo/write", todos=[]), header=header)
    shown = level or "power"
    assert row(any_store, "one")["durability"] == shown
    assert f", durability {shown}" in any_store.run("show", "one").lines[0]
