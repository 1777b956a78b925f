"""`refold delete` and `refold prune`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from refold.cli import prune
from refold.cli.shared import last_use, removal
from refold.runtime.storage import SessionHeader
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event

NOW = 1_760_000_000_000
DAY = 86_400_000


def as_json(store: CliStore, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    ran = store.run(*arguments, "--json")
    assert ran.code == code
    found: list[dict[str, Any]] = orjson.loads(ran.out)["sessions"]
    return found


def damage(store: CliStore, session: str, at: int = 40) -> None:
    data = bytearray(store.raw(session))
    data[at] ^= 1
    store.put(session, bytes(data))


def test_sessions_are_deleted_with_all_that_stands_beside_them(any_store: CliStore) -> None:
    before = any_store.ids()
    ran = any_store.run("delete", "tour", "cancel", "tour", "--yes")
    assert (ran.code, ran.lines, ran.err) == (
        0,
        ["tour", "cancelled"],
        "refold: deleted 2 sessions\n",
    )
    assert any_store.ids() == [name for name in before if name not in ("tour", "cancelled")]
    assert not any_store.head("tour").exists()
    assert any_store.run("show", "tour").code == 3
    assert any_store.run("verify", "--all").code == 0


def test_it_asks_first_and_takes_no_for_an_answer(any_store: CliStore) -> None:
    before = any_store.ids()
    for said in ("n\n", "\n", ""):
        ran = any_store.run("delete", "tour", "changed", said=said)
        assert (ran.code, ran.out) == (1, "")
        assert "Delete tour, changed for good? [y/N]" in ran.err
    assert as_json(any_store, "delete", "tour", code=1) == [
        {"session": "tour", "deleted": False, "error": None}
    ]
    assert any_store.ids() == before
    assert any_store.run("delete", "tour", said="y\n").code == 0
    assert "tour" not in any_store.ids()


def test_an_owned_session_is_refused_and_the_others_are_deleted(any_store: CliStore) -> None:
    with any_store.opened() as sessions:
        log = sessions.open("changed")
        ran = any_store.run("delete", "tour", "changed", "hostile", "--yes")
        assert (ran.code, ran.lines) == (1, ["tour", "hostile"])
        assert "'changed' is open for writing" in ran.err
        assert "deleted 2 sessions of 3" in ran.err
        (found,) = as_json(any_store, "delete", "changed", "--yes", code=1)
        assert "is open for writing" in found["error"]
        log.close()
    assert as_json(any_store, "delete", "changed", "--yes")[0]["deleted"] is True


def test_damaged_and_half_written_logs_can_be_deleted(any_store: CliStore) -> None:
    damage(any_store, "tour")
    assert any_store.run("delete", "tour", "--yes").code == 0
    if any_store.file is None:
        any_store.log("half").write_bytes(b'{"crc":"0')
        assert any_store.run("delete", "half", "--yes").code == 0
        assert not any_store.log("half").exists()


def test_an_unknown_session_stops_before_anything_is_deleted(any_store: CliStore) -> None:
    before = any_store.ids()
    assert any_store.run("delete", "tour", "nobody", "--yes").code == 3
    assert any_store.run("delete", "--yes").code == 2
    assert any_store.ids() == before


@pytest.fixture
def aged(any_store: CliStore, monkeypatch: pytest.MonkeyPatch) -> CliStore:
    """Sessions of which `old` was used 40 days ago, `new` 20 and its fork now; `bad` is damaged."""
    monkeypatch.setattr(last_use, "time", SimpleNamespace(time_ns=lambda: NOW * 1_000_000))
    assert any_store.run("delete", *any_store.ids(), "--yes").code == 0
    end = {"turn": 1, "reason": {"kind": "completed"}}
    for name, days in (("old", 40), ("new", 20), ("bad", 60)):
        at = NOW - days * DAY
        encoded = event(0, "turn/end", **end).replace(str(NOW).encode(), str(at).encode())
        header = SessionHeader(name, at - 100 * DAY)
        any_store.write(name, encoded, header=header)
    with any_store.opened() as sessions:
        sessions.fork("old", None, SessionHeader("fork", NOW - DAY))
    damage(any_store, "bad")
    if any_store.file is None:
        os.utime(any_store.log("bad"), ((NOW - 60 * DAY) // 1000, (NOW - 60 * DAY) // 1000))
    return any_store


def test_only_what_was_not_used_for_long_is_pruned(aged: CliStore) -> None:
    ran = aged.run("prune", "--older-than", "30d", "--yes")
    assert (ran.code, ran.lines[-1], ran.err) == (0, "old", "refold: deleted 1 session\n")
    assert aged.ids() == ["bad", "fork", "new"]
    ran = aged.run("prune", "--older-than", "30d", "--yes")
    assert (ran.code, ran.out, ran.err) == (0, "no session is that old\n", "")


def test_what_would_be_pruned_is_listed_and_asked_for(aged: CliStore) -> None:
    before = aged.ids()
    ran = aged.run("prune", "--older-than", "2w", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.lines] == ["session", "old", "new"]
    assert "2025-08-30 08:53:20 UTC" in ran.lines[1]
    ran = aged.run("prune", "--older-than", "2w", said="n\n")
    assert (ran.code, "Delete 2 sessions for good? [y/N]" in ran.err) == (1, True)
    asked = ["prune", "--older-than", "2w"]
    old, new = as_json(aged, *asked, code=1)
    assert (old["session"], new["session"]) == ("old", "new")
    assert (old["lastActivity"], old["state"]) == (NOW - 40 * DAY, "ok")
    assert as_json(aged, *asked, "--dry-run") == [old, new]
    assert as_json(aged, *asked, "--dry-run", "--yes") == [old, new]
    assert (old["deleted"], old["error"]) == (False, None)
    assert as_json(aged, "prune", "--older-than", "90d") == []
    assert aged.ids() == before
    assert aged.run("prune", "--older-than", "2w", said="y\n").code == 0
    assert aged.ids() == ["bad", "fork"]


def test_damaged_logs_are_left_alone_unless_they_are_meant(aged: CliStore) -> None:
    if aged.file is None:
        aged.log("half").write_bytes(b'{"crc":"0')
        os.utime(aged.log("half"), ((NOW - 90 * DAY) // 1000, (NOW - 90 * DAY) // 1000))
    arguments = ["prune", "--older-than", "50d", "--yes"]
    assert as_json(aged, *arguments) == []
    names = [found["session"] for found in as_json(aged, *arguments, "--damaged")]
    assert names == (["bad"] if aged.file else ["half", "bad"])
    assert aged.ids() == ["fork", "new", "old"]


def test_an_owned_session_is_not_pruned_and_the_others_are(aged: CliStore) -> None:
    with aged.opened() as sessions:
        log = sessions.open("old")
        ran = aged.run("prune", "--older-than", "2w", "--yes")
        assert (ran.code, ran.lines[-1]) == (1, "new")
        assert "'old' is open for writing" in ran.err
        log.close()
    assert aged.ids() == ["bad", "fork", "old"]


@pytest.mark.parametrize("form", [[], ["--json", "--yes"]])
def test_what_is_used_after_the_listing_is_left_alone(
    aged: CliStore, form: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = removal.remove

    def use_and_remove(*arguments: Any) -> Any:
        with aged.opened() as sessions:
            log = sessions.open("old")
            log.append([event(1, "todo/write", todos=[])])
            log.close()
        return original(*arguments)

    monkeypatch.setattr(prune, "remove", use_and_remove)
    ran = aged.run("prune", "--older-than", "2w", *form, said=None if form else "y\n")
    assert (ran.code, "session 'old' has changed since" in ran.err) == (1, True)
    if form:
        old, new = orjson.loads(ran.out)["sessions"]
        assert (old["deleted"], "has changed" in old["error"]) == (False, True)
        assert (new["session"], new["deleted"], new["error"]) == ("new", True, None)
        assert (new["lastActivity"], new["state"]) == (NOW - 20 * DAY, "ok")
    assert aged.ids() == ["bad", "fork", "old"]


@pytest.mark.parametrize("change", ["damage", "removal"])
def test_a_log_that_changes_after_the_listing_stops_nothing(
    aged: CliStore, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_it(*_: object, **__: object) -> bool:
        if change == "damage":
            damage(aged, "old")
        else:
            aged.run("delete", "old", "--yes")
        return True

    monkeypatch.setattr(prune, "agreed", change_it)
    ran = aged.run("prune", "--older-than", "2w")
    assert (ran.code, ran.lines[-1]) == (1, "new")
    left = ["old"] if change == "damage" else []
    assert aged.ids() == ["bad", "fork", *left]


def test_the_clock_of_the_system_counts(any_store: CliStore) -> None:
    assert as_json(any_store, "prune", "--older-than", "1h") == []
    later = time.time_ns() // 1_000_000
    found = as_json(any_store, "prune", "--older-than", "0m", "--dry-run")
    assert len(found) == len(any_store.ids())
    assert all(event.time <= later for event in any_store.events("tour"))


@pytest.mark.parametrize("age", ["", "30", "d", "-1d", "1.5d", "30 d", "\u0663d", "\x1b[2J", "1y"])
def test_what_is_no_age_is_a_usage_error(made_store: CliStore, age: str) -> None:
    ran = made_store.run("prune", "--older-than", age)
    assert (ran.code, "is no age such as" in ran.err) == (2, True)
    assert hidden(ran.err) == []
    assert made_store.run("prune").code == 2


def test_files_that_hold_no_session_are_refused_one_by_one(own_store: CliStore) -> None:
    own_store.log("folder").mkdir()
    Path(os.fsdecode(bytes(own_store.path) + b"/\xff\x1b[2J.jsonl")).write_bytes(b"")
    for form in ([], ["--json"]):
        ran = own_store.run("prune", "--older-than", "0m", "--damaged", "--yes", *form)
        assert ran.code == 1
        assert hidden(ran.out + ran.err) == []
    assert own_store.ids() == ["folder"]
    ran = own_store.run("delete", "folder", "--yes")
    assert (ran.code, one_sentence(ran.err.splitlines(keepends=True)[0])) == (1, True)
