"""`refold check`."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from refold.cli.shared.findings import examine
from refold.cli.shared.logs import Place
from refold.runtime.storage import JsonlFolder, SessionHeader, this_process
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_cli_sessions import flip, write
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event, owner_event

USER = {"kind": "user"}


@pytest.fixture
def store(tmp_path: Path) -> CliStore:
    return CliStore(tmp_path / "sessions")


def report(store: CliStore, session: str, code: int) -> dict[str, Any]:
    ran = store.run("check", session, "--json")
    assert ran.code == code, ran.out
    (found,) = orjson.loads(ran.out)["sessions"]
    assert found["good"] is (code == 0)
    return dict(found)


def closed(store: CliStore, session: str = "closed") -> Path:
    """A small log that was closed, so that a head file stands beside it."""
    log = JsonlFolder(store.path).create(SessionHeader(session, created_at=0))
    log.append([event(0), event(1)])
    log.sync()
    log.append([event(2, "note", text="é")])
    log.close()
    return store.log(session)


def surface(seq: int, type_: str, **data: object) -> bytes:
    return event(seq, type_, **data)[:-1] + b',"surfaceOp":"append"}'


def test_good_logs_are_good(made_store: CliStore) -> None:
    ran = made_store.run("check", "--all")
    assert (ran.code, ran.err) == (0, "")
    verdicts = [line for line in ran.lines if not line.startswith("  ")]
    assert len(verdicts) == 5
    assert all(line.endswith(" events, good") for line in verdicts)


def missed(file: Path, place: Place, bits: range, code: int) -> list[int]:
    """The bits of a file whose flipping a check does not name with `code`."""
    whole, found = file.read_bytes(), []
    for bit in bits:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        report = examine(place)
        if not report.findings or report.exit_code != code:
            found.append(bit)
    file.write_bytes(whole)
    return found


def test_a_single_flipped_bit_anywhere_in_a_closed_log_is_named(store: CliStore) -> None:
    path = closed(store)
    place = Place(JsonlFolder(store.path), "closed")
    assert (examine(place).findings, examine(place).exit_code) == ([], 0)
    assert missed(path, place, range(path.stat().st_size * 8), 4) == []


def test_a_single_flipped_bit_in_a_head_file_is_named(store: CliStore) -> None:
    closed(store)
    head, place = store.path / "closed.head", Place(JsonlFolder(store.path), "closed")
    assert missed(head, place, range((head.stat().st_size - 1) * 8), 1) == []


def test_a_flipped_bit_in_the_newline_of_a_head_file_is_named(store: CliStore) -> None:
    closed(store)
    head, place = store.path / "closed.head", Place(JsonlFolder(store.path), "closed")
    bits = head.stat().st_size * 8
    assert missed(head, place, range(bits - 8, bits), 1) == []


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.95])
def test_the_command_says_where_a_bit_was_flipped(store: CliStore, place: float) -> None:
    path = closed(store)
    flip(path, int(len(path.read_bytes()) * place))
    found = report(store, "closed", 4)
    assert f"{path} is damaged at byte " in found["findings"][0]


def test_a_flipped_bit_in_an_open_tail_is_torn_and_below_the_durable_mark_damage(
    store: CliStore,
) -> None:
    path = write(store, "open", *(event(seq) for seq in range(4)))
    whole, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    last = len(whole) - len(lines[-1])
    flip(path, last + 40)
    assert "its tail is torn at byte" in report(store, "open", 1)["findings"][0]
    path.write_bytes(whole)
    flip(path, last - 40)
    assert f"expected seq {2}" in report(store, "open", 4)["findings"][0]


def test_a_torn_tail_is_told_and_left_alone(store: CliStore) -> None:
    path = closed(store)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"crc":"0123')
    found = report(store, "closed", 1)
    (finding,) = found["findings"]
    assert finding.startswith(f"its tail is torn at byte {len(whole)} (partial): 12 bytes are ")
    assert path.read_bytes() == whole + b'{"crc":"0123'
    path.write_bytes(whole[:-1])
    assert "lost its newline" in report(store, "closed", 1)["findings"][0]


def test_a_log_that_ends_before_its_head_file_says_is_damaged(store: CliStore) -> None:
    path = closed(store)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert "seq 2 was durable" in report(store, "closed", 4)["findings"][0]


def test_what_the_head_file_vouches_for_is_told(store: CliStore) -> None:
    write(store, "bare", event(0))
    assert report(store, "bare", 0)["notes"] == [
        "no head file: damage to the last batch would look like a torn tail"
    ]
    closed(store)
    assert report(store, "closed", 0)["notes"] == []
    log = JsonlFolder(store.path).open("closed")
    log.append([event(3)])
    log.sync()
    assert report(store, "closed", 0)["notes"] == [
        "its head file vouches for the events up to seq 2 of 3"
    ]
    log.close()


def test_files_of_dropped_bytes_are_listed_with_the_event_that_reports_them(
    store: CliStore,
) -> None:
    recovered = {"droppedBytes": 3, "droppedRecords": 1, "reason": "partial"}
    write(
        store,
        "cut",
        event(0),
        event(1, "session/recovered", **recovered, quarantine="cut.torn-9-0,cut.torn-9-1"),
    )
    write(store, "cut-2", event(0))
    for name in ("cut.torn-9-0", "cut.torn-9-1", "cut-2.torn-5-0"):
        (store.path / name).write_bytes(b"abc")
    assert report(store, "cut", 0)["notes"][:2] == [
        "cut.torn-9-0 holds the dropped bytes that seq 1 reports",
        "cut.torn-9-1 holds the dropped bytes that seq 1 reports",
    ]
    assert report(store, "cut-2", 1)["findings"] == [
        "cut-2.torn-5-0 holds dropped bytes that no event reports; the next opening does"
    ]


def test_broken_rules_are_reported_each_with_its_seq(store: CliStore) -> None:
    write(
        store,
        "odd",
        event(0, "step/start", turn=1, step=1),
        event(1, "turn/start", turn=4, trigger={"kind": "message", "source": USER}),
    )
    found = report(store, "odd", 1)
    assert [(broken["seq"], broken["rule"]) for broken in found["brokenRules"]] == [(0, 1), (1, 1)]
    assert len(found["findings"]) == 2


def test_calls_of_a_closed_step_without_results_are_found(store: CliStore) -> None:
    call = {"type": "tool-call", "id": "c", "name": "read", "arguments": "{}"}
    start = [
        event(0, "turn/start", turn=1, trigger={"kind": "message", "source": USER}),
        event(1, "step/start", turn=1, step=1),
        surface(2, "assistant/message", turn=1, step=1, content=[call]),
    ]
    write(store, "open", *start)
    found = report(store, "open", 0)
    assert (found["unanswered"], found["notes"][0]) == (
        [],
        "a turn is open; the next opening closes it (3 events)",
    )
    asked = event(3, "approval/asked", turn=1, step=1, callId="c")
    write(store, "waits", *start, asked)
    assert report(store, "waits", 0)["unanswered"] == []
    write(
        store,
        "unbalanced",
        *start,
        event(3, "step/end", turn=1, step=1),
        event(4, "turn/end", turn=1, reason={"kind": "completed"}),
    )
    found = report(store, "unbalanced", 1)
    assert found["unanswered"] == [2]
    assert any("start a new session" in finding for finding in found["findings"])
    assert found["forkAt"] is None


def test_an_open_turn_of_a_running_owner_is_not_for_the_next_opening(any_store: CliStore) -> None:
    turn = event(1, "turn/start", turn=1, trigger={"kind": "message", "source": USER})
    for name, pid in (("held", os.getppid()), ("left", 2**22 + 1)):
        any_store.write(name, owner_event(0, pid=pid), turn)
    with any_store.opened() as sessions:
        log = sessions.open("held")
        held, left = (any_store.run("check", name) for name in ("held", "left"))
        log.close()
    where = f"{os.getppid()}@{this_process().host}"
    assert (held.code, f"a turn is open; it is running in {where}" in held.out) == (0, True)
    assert "next opening" not in held.out
    assert "a turn is open; the next opening closes it (" in left.out


def test_findings_are_counted_as_such(any_store: CliStore) -> None:
    any_store.write("odd", event(0, "step/start", turn=1, step=1))
    assert any_store.run("check", "odd").lines[0] == "odd  1 event, 1 finding"
    any_store.write("odder", *(event(seq, "step/end", turn=1, step=1) for seq in range(2)))
    assert any_store.run("check", "odder").lines[0] == "odder  2 events, 2 findings"


def test_of_a_damaged_log_nothing_is_said_of_a_next_opening(store: CliStore) -> None:
    start = event(0, "turn/start", turn=1, trigger={"kind": "message", "source": USER})
    write(store, "odd", start, event(1), event(2))
    (store.path / "odd.head").write_bytes(b"x")
    (store.path / "odd.torn-5-0").write_bytes(b"x")
    said = " ".join(report(store, "odd", 1)["findings"] + report(store, "odd", 1)["notes"])
    assert said.count("the next ") == 3
    data = store.log("odd").read_bytes()
    flip(store.log("odd"), data.rindex(b'"seq":1,'))
    found = report(store, "odd", 4)
    assert len(found["findings"]) == 3
    assert "the next " not in " ".join(found["findings"] + found["notes"])


def test_calls_without_results_name_the_turn_end_to_fork_at(store: CliStore) -> None:
    done, trigger = {"kind": "completed"}, {"kind": "message", "source": USER}
    call = {"type": "tool-call", "id": "c", "name": "read", "arguments": "{}"}
    write(
        store,
        "odd",
        event(0, "turn/start", turn=1, trigger=trigger),
        event(1, "turn/end", turn=1, reason=done),
        event(2, "turn/start", turn=2, trigger=trigger),
        surface(3, "assistant/message", turn=2, step=1, content=[call]),
        event(4, "turn/end", turn=2, reason=done),
    )
    found = report(store, "odd", 1)
    assert (found["unanswered"], found["forkAt"]) == ([3], 1)
    assert any("fork the session at seq 1, the last turn/end" in f for f in found["findings"])


def test_events_that_no_session_takes_are_damage(store: CliStore) -> None:
    user = surface(0, "user/message", content=[], source=USER)
    write(store, "cites", user[:-1].replace(b',"surf', b',"sourceEventSeqs":[7],"surf') + b"}")
    assert "cites seq 7" in report(store, "cites", 4)["findings"][0]
    write(store, "shape", surface(0, "user/message", nonsense=1))
    assert "does not have the shape" in report(store, "shape", 4)["findings"][0]


def test_the_worst_of_several_logs_gives_the_code(store: CliStore) -> None:
    closed(store, "good")
    write(store, "odd", event(0, "step/start", turn=1, step=1))
    assert store.run("check", "good").code == 0
    assert store.run("check", "good", "odd").code == 1
    flip(closed(store, "bad"), 50)
    store.log("newer").write_text('{"type":"session","version":7,"id":"newer","createdAt":0}\n')
    assert store.run("check", "newer").code == 3
    ran = store.run("check", "--all")
    assert ran.code == 4
    assert [line.split()[0] for line in ran.lines if line[0] != " "] == [
        "bad",
        "good",
        "newer",
        "odd",
    ]


def test_a_foreign_log_is_reported_on(store: CliStore) -> None:
    store.path.mkdir()
    lines = [
        b'{"type":"session","id":"foreign","createdAt":0}',
        event(0, "step/end", turn=1, step=1),
    ]
    store.log("foreign").write_bytes(b"\n".join([*lines, b""]))
    found = report(store, "foreign", 1)
    assert (found["foreign"], found["brokenRules"][0]["rule"]) == (True, 1)
    assert found["notes"] == ["not written by refold: its lines have no checksums"]


def test_one_of_session_and_all_has_to_be_named(store: CliStore) -> None:
    assert store.run("check").code == 2
    assert store.run("check", "--all", "x").code == 2
    assert closed(store).exists()
    assert store.run("check", "--all").code == 0


def all_as_json(store: CliStore, code: int) -> dict[str, Any]:
    ran = store.run("check", "--all", "--json")
    assert ran.code == code
    return dict(orjson.loads(ran.out))


@pytest.mark.parametrize("address", ["sqlite", "folder"])
def test_a_store_that_is_not_there_is_no_good_store(tmp_path: Path, address: str) -> None:
    store = CliStore(tmp_path / "typo", file=tmp_path / "typo.db" if address == "sqlite" else None)
    ran = store.run("check", "--all")
    assert (ran.code, ran.out, one_sentence(ran.err)) == (3, "", True)
    assert f"there is no store at {store.address}; name another" in ran.err
    found = all_as_json(store, 3)
    assert (found["sessions"], found["vanished"]) == ([], [])
    assert "there is no store" in found["error"]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_a_file_that_is_no_store_is_told_also_as_data(
    made_store: CliStore, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "notes"
    path.write_text("of another program" * 100)
    ran = made_store.run("check", "--all", "--json", "--store", f"{scheme}{path}")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert str(path) in orjson.loads(ran.out)["error"]


def test_in_a_store_without_a_session_there_is_nothing_to_check(any_store: CliStore) -> None:
    assert all_as_json(any_store, 0)["error"] is None
    assert any_store.run("delete", *any_store.ids(), "--yes").code == 0
    ran = any_store.run("check", "--all")
    assert (ran.code, ran.out, one_sentence(ran.err)) == (1, "", True)
    assert "nothing to check" in ran.err
    assert "nothing to check" in all_as_json(any_store, 1)["error"]


def vanish(store: CliStore, session: str) -> None:
    """Take the log away and leave its head file, as somebody who removes files does."""
    if store.file is None:
        store.log(session).unlink()
        return
    with closing(sqlite3.connect(store.file)) as db, db:
        db.execute("DELETE FROM sessions WHERE id = ?", (session,))


def test_sessions_that_are_gone_are_named(any_store: CliStore) -> None:
    heads = any_store.head("tour").parent
    for name in ("damaged.head", "no session.head"):
        (heads / name).write_bytes(b"of another program")
    shutil.copy(any_store.head("tour"), heads / "a.b.head")
    assert all_as_json(any_store, 0)["vanished"] == []
    vanish(any_store, "tour")
    ran = any_store.run("check", "--all")
    assert (ran.code, ran.err) == (1, "")
    assert ran.lines[-1].startswith(f"tour  gone: its head file {any_store.head('tour')} is there")
    assert all_as_json(any_store, 1)["vanished"] == ["tour"]
    left = any_store.ids()
    for session in left:
        vanish(any_store, session)
    found = all_as_json(any_store, 1)
    assert (found["vanished"], found["error"]) == (sorted(["tour", *left]), None)


def test_nothing_that_a_terminal_would_obey_is_ever_printed(store: CliStore) -> None:
    odd = surface(0, "user/message", content=[{"type": "text", "text": "x", "\x1b[2J\u202e": 1}])
    write(store, "odd", odd)
    torn = os.fsencode(store.path / "odd.torn-1-\x1b[2J")
    Path(os.fsdecode(torn)).write_bytes(b"")
    for form in ([], ["--json"]):
        ran = store.run("check", "odd", *form)
        assert ran.code == 4
        assert hidden(ran.out + ran.err) == []
