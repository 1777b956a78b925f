"""`refold sessions`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from refold.cli.shared import progress
from refold.runtime.envelope import decode_line
from refold.runtime.storage import OS, JsonlFolder, LogCorrupt, SessionHeader, this_process
from tests.refold.cli_stores import HOSTILE, CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event, owner_event


def rows(store: CliStore) -> dict[str, dict[str, Any]]:
    """The rows of the list by session, in their order."""
    ran = store.run("sessions", "--json")
    assert (ran.code, ran.err) == (0, "")
    return {row["session"]: row for row in orjson.loads(ran.out)["sessions"]}


def write(
    store: CliStore, session: str, *events: bytes, header: SessionHeader | None = None
) -> Path:
    """A log of these events, each durable before the next, and no head file beside it."""
    log = JsonlFolder(store.path).create(header or SessionHeader(session, created_at=0))
    for encoded in events:
        log.append([encoded])
        log.sync()
    log.close()
    (store.path / f"{session}.head").unlink()
    return store.log(session)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def store(tmp_path: Path) -> CliStore:
    return CliStore(tmp_path / "sessions")


def test_the_newest_stands_first_with_what_it_cost(own_store: CliStore) -> None:
    found = rows(own_store)
    assert list(found) == ["tour", own_store.fork, "changed", "cancelled", "hostile"]
    tour = found["tour"]
    total = orjson.loads(own_store.run("usage", "tour", "--json").out)["total"]
    assert {key: tour[key] for key in ("in", "cached", "out")} == total
    assert (tour["turns"], tour["state"], tour["detail"]) == (2, "ok", "")
    assert tour["lastActivity"] == own_store.events("tour")[-1].time
    assert found[own_store.fork]["name"] == "what if"
    later = own_store.log("tour").stat().st_mtime + 60
    os.utime(own_store.log("hostile"), (later, later))
    assert next(iter(rows(own_store))) == "hostile"


def test_the_table_has_a_line_a_session(own_store: CliStore) -> None:
    ran = own_store.run("sessions")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.lines] == ["session", *rows(own_store)]
    assert ran.lines[1].endswith("  ok")
    assert " UTC " in ran.lines[1]


def test_an_empty_store_is_told_and_no_error(store: CliStore) -> None:
    ran = store.run("sessions")
    assert (ran.code, ran.out, one_sentence(ran.err)) == (0, "", True)
    assert rows(store) == {}


def test_tokens_are_counted_from_streams_that_broke_off(store: CliStore) -> None:
    usage = {
        "type": "usage",
        "usage": {"inputTokens": 30, "outputTokens": 4, "cacheReadTokens": 70},
    }
    write(
        store,
        "cut",
        event(0, "turn/start", turn=1, trigger={"kind": "message", "source": {"kind": "user"}}),
        event(1, "step/start", turn=1, step=1),
        event(2, "assistant/chunk", turn=1, step=1, chunk=usage),
    )
    row = rows(store)["cut"]
    assert (row["in"], row["cached"], row["out"]) == (100, 70, 4)
    assert (row["state"], row["detail"], row["turns"]) == ("open turn", "1", 1)
    assert row["lastActivity"] == 1_760_000_000_002
    assert "#######..." in store.run("sessions").out


@pytest.mark.parametrize(
    "last",
    [
        event(3, "assistant/chunk", turn=1, step=1, chunk={"type": "text-delta", "delta": "x"}),
        event(3, "step/end", turn=1, step=1),
        event(3, "todo/write", todos=[]),
    ],
    ids=["chunk", "counted", "other"],
)
def test_the_last_activity_is_the_last_event_s_whatever_it_is(
    any_store: CliStore, last: bytes
) -> None:
    trigger = {"kind": "message", "source": {"kind": "user"}}
    any_store.write(
        "cut",
        event(0, "turn/start", turn=1, trigger=trigger),
        event(1, "step/start", turn=1, step=1),
        event(2, "assistant/chunk", turn=1, step=1, chunk={"type": "text-delta", "delta": "y"}),
        last,
    )
    row = rows(any_store)["cut"]
    assert (row["state"], row["lastActivity"]) == ("open turn", 1_760_000_000_003)


OWNERS = {
    "here": {"host": this_process().host, "pid": os.getppid(), "boot": this_process().boot},
    "dead": {"host": this_process().host, "pid": 2**22 + 1, "boot": this_process().boot},
    "contained": {
        "host": this_process().host,
        "pid": 7,
        "boot": this_process().boot.partition("/")[0] + "/1",
    },
    "away": {"host": "elsewhere", "pid": 7, "boot": "b"},
}
"""Who a log names: a process that runs, one that does not, one in a container, one elsewhere."""


@pytest.mark.parametrize("owner", OWNERS)
def test_a_session_is_owned_while_its_lock_is_held_whoever_its_log_names(
    any_store: CliStore, owner: str
) -> None:
    any_store.write("one", event(0, "session/owner", term=1, owner=OWNERS[owner]))
    assert rows(any_store)["one"]["state"] == "ok"  # also where another program has that pid now
    with any_store.opened() as sessions:
        log = sessions.open("one")
        held = rows(any_store)["one"]
        assert held["state"] == "owned"
        named = owner != "dead"
        host, pid = OWNERS[owner]["host"], OWNERS[owner]["pid"]
        assert held["owner"] == ({"pid": pid, "host": host} if named else None)
        holder = f"{pid}@{host}" if named else "a process that has not named itself yet"
        assert held["detail"] == f"by {holder}"
        ran = any_store.run("delete", "one", "--yes")
        assert (ran.code, f"process {pid} on {host}" in ran.err) == (1, named)
        log.close()
    assert rows(any_store)["one"]["state"] == "ok"


def test_the_torn_tail_of_a_session_is_told_though_its_owner_s_pid_was_given_out_again(
    any_store: CliStore,
) -> None:
    owned = event(0, "session/owner", term=1, owner=OWNERS["here"])
    with any_store.opened() as sessions:
        log = sessions.create(SessionHeader("one", created_at=0))
        for encoded in (owned, event(1, "todo/write", todos=[])):  # the owner's batch is whole
            log.append([encoded])
        log.close()
    any_store.head("one").unlink()
    any_store.put("one", any_store.raw("one")[:-5])
    assert rows(any_store)["one"]["state"] == "torn"


def test_without_locks_that_can_be_asked_processes_are(
    store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(OS), "has_range_locks", False)
    for name, owner in OWNERS.items():
        write(store, name, event(0, "session/owner", term=1, owner=owner))
    released = event(1, "session/released", term=1, reason="closed")
    write(store, "released", owner_event(0, pid=os.getppid()), released)
    found = {name: row["state"] for name, row in rows(store).items()}
    assert found == {
        "here": "owned",
        "dead": "ok",
        "contained": "owned",
        "away": "owned",
        "released": "ok",
    }


def test_a_fork_is_not_owned_by_who_has_its_parent_open(store: CliStore) -> None:
    end = {"turn": 1, "reason": {"kind": "completed"}}
    write(store, "parent", owner_event(0, pid=os.getppid()), event(1, "turn/end", **end))
    JsonlFolder(store.path).fork("parent", None, SessionHeader("child", created_at=0))
    log = JsonlFolder(store.path).open("parent")
    found = rows(store)
    log.close()
    assert (found["parent"]["state"], found["child"]["state"]) == ("owned", "ok")


def test_a_new_fork_was_active_when_it_was_made(any_store: CliStore) -> None:
    end = event(0, "turn/end", turn=1, reason={"kind": "completed"})
    any_store.write("parent", end)
    with any_store.opened() as sessions:
        sessions.fork("parent", None, SessionHeader("child", created_at=2_000_000_000_000))
    found = rows(any_store)
    assert found["parent"]["lastActivity"] == 1_760_000_000_000
    assert found["child"]["lastActivity"] == 2_000_000_000_000


def test_fifty_sessions_are_listed_though_five_are_bad(own_store: CliStore) -> None:
    for number in range(45):
        own_store.rewrite("tour", f"good-{number:02}", lambda e: e.encoded)
    for name in ("changed", "cancelled", "hostile", own_store.fork):
        own_store.log(name).unlink()
    bad = ["tour", "renamed", "newer", "legacy", "surface"]
    flip(own_store.log("tour"), own_store.log("tour").read_bytes().index(b'"seq":5,') + 4)
    shutil.copy(own_store.log("good-00"), own_store.log("renamed"))
    own_store.log("newer").write_text('{"type":"session","version":7,"id":"newer","createdAt":0}\n')
    delta = b'{"type":"request/header-delta","seq":0,"time":0,"data":{}}\n'
    own_store.log("legacy").write_bytes(
        b'{"type":"session","version":0,"id":"legacy","createdAt":0}\n' + delta
    )
    message = event(0, "user/message", content=[], source={"kind": "user"})
    cited = message[:-1] + b',"sourceEventSeqs":[9],"surfaceOp":"append"}'
    write(own_store, "surface", cited)
    found = rows(own_store)
    assert len(found) == 50
    assert sorted(name for name, row in found.items() if row["state"] == "ok") == [
        f"good-{number:02}" for number in range(45)
    ]
    states = {**dict.fromkeys(bad, "damaged"), "newer": "newer format"}
    assert {name: found[name]["state"] for name in bad} == states
    tour = found["tour"]
    assert tour["seq"] == 5
    assert own_store.log("tour").read_bytes()[tour["offset"] :].startswith(b'{"crc"')
    assert "seq 5: found a line whose checksum does not fit" in tour["detail"]
    assert "rename the file back" in found["renamed"]["detail"]
    assert "newer refold" in found["newer"]["detail"]
    assert "header-delta at seq 0" in found["legacy"]["detail"]
    assert "seq 0 cites seq 9" in found["surface"]["detail"]
    ran = own_store.run("sessions")
    assert (ran.code, len(ran.lines)) == (0, 51)


def test_files_that_hold_no_session_are_named_and_never_stop_the_list(
    own_store: CliStore,
) -> None:
    write(own_store, "torn", event(0), event(1))
    with own_store.log("torn").open("ab") as log:
        log.write(b'{"crc":"0123')
    own_store.log("half").write_bytes(b'{"crc":"0')
    own_store.log("void").write_bytes(b"")
    own_store.log("link").symlink_to(own_store.log("tour"))
    own_store.log("folder").mkdir()
    os.mkfifo(own_store.log("pipe"))
    own_store.log("no id").write_bytes(b"")
    own_store.log("bytes").write_bytes(bytes(range(1, 256)))
    own_store.log("foreign").write_text('{"type":"session","id":"foreign","createdAt":0}\n')
    Path(os.fsdecode(bytes(own_store.path) + b"/\xff.jsonl")).write_bytes(b"")
    found = rows(own_store)
    states = {name: row["state"] for name, row in found.items() if row["state"] != "ok"}
    assert states == {
        "torn": "torn",
        "half": "half-written",
        "void": "half-written",
        "link": "unreadable",
        "folder": "unreadable",
        "pipe": "unreadable",
        "no id": "unreadable",
        "\ufffd": "unreadable",
        "bytes": "damaged",
        "foreign": "foreign",
    }
    assert found["torn"]["detail"] == "tail of 12 bytes (partial)"
    assert found["half"]["detail"] == "9 bytes and no event"
    assert "a symbolic link" in found["link"]["detail"]
    assert found["bytes"]["offset"] == 0
    assert own_store.run("sessions").code == 0


def test_a_lost_newline_is_no_tail_of_0_bytes(any_store: CliStore) -> None:
    any_store.put("tour", any_store.raw("tour")[:-1])
    found = rows(any_store)["tour"]
    assert (found["state"], found["detail"]) == ("torn", "tail: its last line lost its newline")
    assert "0 bytes" not in any_store.run("sessions").out


def test_a_damaged_log_shows_what_is_readable_of_it(own_store: CliStore) -> None:
    data = own_store.log("tour").read_bytes()
    flip(own_store.log("tour"), data.rindex(b'"step/start"'))
    with pytest.raises(LogCorrupt) as damage:
        JsonlFolder(own_store.path).read("tour")
    assert damage.value.readable is not None
    last = decode_line(damage.value.readable.records[-1].encoded)
    row = rows(own_store)["tour"]
    assert (row["state"], row["turns"], row["lastActivity"]) == ("damaged", 2, last.time)


def test_nothing_that_a_terminal_would_obey_is_ever_printed(own_store: CliStore) -> None:
    write(own_store, "named", event(0), header=SessionHeader("named", 0, name=f"{HOSTILE * 3}"))
    own_store.log("\x1b[2J\u202e").write_bytes(b"")
    for form in ([], ["--json"]):
        ran = own_store.run("sessions", *form)
        assert ran.code == 0
        assert "esc" in ran.out
        assert hidden(ran.out + ran.err) == []


def test_nothing_is_changed_by_looking(own_store: CliStore) -> None:
    before = {path.name: path.read_bytes() for path in own_store.path.iterdir()}
    own_store.run("sessions")
    assert {path.name: path.read_bytes() for path in own_store.path.iterdir()} == before


def test_long_work_shows_progress_on_a_terminal(
    own_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0)
    assert own_store.run("sessions").err == ""
    monkeypatch.setattr(progress, "is_terminal", lambda stream: stream is sys.stderr)
    ran = own_store.run("sessions")
    assert "\rreading tour, 1 of 5" in ran.err
    assert ran.err.endswith("\r")
    assert "reading" not in ran.out
