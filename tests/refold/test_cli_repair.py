"""`refold repair`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import refold
from refold import Script
from refold.cli import repair as repair_command
from refold.runtime.events import SessionRecovered
from refold.runtime.storage import SessionHeader, frame_header
from refold.runtime.storage.framing import frame_batch
from tests.refold.cli_stores import HOSTILE, CliStore
from tests.refold.conftest import body
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event

USER = {"kind": "user"}


def planned(store: CliStore, session: str, code: int = 1) -> dict[str, Any]:
    """What a repair would do; nothing is changed."""
    before = store.raw(session)
    ran = store.run("repair", session, "--json")
    assert (ran.code, ran.err) == (code, "")
    assert store.raw(session) == before
    found: dict[str, Any] = orjson.loads(ran.out)
    assert found["repaired"] is False
    return found


def repaired(store: CliStore, session: str, code: int = 0) -> dict[str, Any]:
    ran = store.run("repair", session, "--yes", "--json")
    assert (ran.code, ran.err) == (code, "")
    found: dict[str, Any] = orjson.loads(ran.out)
    assert found["repaired"] is True
    nothing_left(store, session, code)
    return found


def nothing_left(store: CliStore, session: str, code: int = 0) -> None:
    """Repairing again finds nothing and changes nothing."""
    again = planned(store, session, code)
    assert again["steps"] == []
    assert store.run("repair", session, "--yes").code == code


def flip(store: CliStore, session: str, at: int) -> bytes:
    """Flip a bit of a stored log; returns what is stored then."""
    data = bytearray(store.raw(session))
    data[at] ^= 1
    store.put(session, bytes(data))
    return bytes(data)


def recovered_by_next_opening(store: CliStore, session: str) -> SessionRecovered | None:
    """What the next opening reports; it does not write that."""
    with store.opened() as sessions:
        log = sessions.open(session)
        log.close()
        return log.recovered


def events_of_next_opening(store: CliStore, session: str) -> tuple[int, str] | None:
    """What the next opening reports as dropped, and where that is kept."""
    found = recovered_by_next_opening(store, session)
    return None if found is None else (found.dropped_bytes, found.quarantine or "")


def test_a_good_log_needs_no_repair(any_store: CliStore) -> None:
    ran = any_store.run("repair", "tour")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[-1] == "there is nothing to repair in tour"
    assert planned(any_store, "tour", 0)["findings"] == []


def test_of_a_damaged_log_the_whole_batches_before_are_kept_and_nothing_is_lost(
    any_store: CliStore,
) -> None:
    whole, events = any_store.raw("tour"), any_store.events("tour")
    stored = flip(any_store, "tour", len(whole) // 2)
    plan = planned(any_store, "tour")
    assert "is damaged at byte" in plan["findings"][0]
    assert [step.split()[0] for step in plan["steps"]] == ["keep", "keep", "put"]
    found = repaired(any_store, "tour")
    assert found["steps"] == plan["steps"]
    assert Path(found["copy"]).read_bytes() == stored
    kept = any_store.raw("tour")
    assert whole.startswith(kept)
    left = any_store.events("tour")
    assert 0 < len(left) < len(events)
    assert left == events[: len(left)]
    report = events_of_next_opening(any_store, "tour")
    assert report == (len(stored) - len(kept), f"tour.torn-{len(kept)}-0")
    assert any_store.run("verify", "tour").code == 0


def test_it_asks_first_and_takes_no_for_an_answer(any_store: CliStore) -> None:
    stored = flip(any_store, "tour", len(any_store.raw("tour")) // 2)
    for said in ("n\n", "\n", ""):
        ran = any_store.run("repair", "tour", said=said)
        assert (ran.code, "Repair tour? [y/N]" in ran.err) == (1, True)
        assert ran.lines[-1] == "tour was left as it is"
        assert any_store.raw("tour") == stored
    ran = any_store.run("repair", "tour", said="y\n")
    assert ran.code == 0
    assert "A repair will" in ran.lines
    assert re.match("tour is repaired; what was stored is kept in ", ran.lines[-1])


def test_a_torn_tail_is_cut_and_kept_aside(any_store: CliStore) -> None:
    whole = any_store.raw("tour")
    any_store.put("tour", whole + b'{"crc":"0123')
    plan = planned(any_store, "tour")
    assert plan["steps"] == ["put the 12 bytes of its tail aside; the next opening reports them"]
    assert repaired(any_store, "tour")["copy"] is None
    assert any_store.raw("tour") == whole
    assert events_of_next_opening(any_store, "tour") == (12, f"tour.torn-{len(whole)}-0")


def test_a_lost_newline_is_put_back(any_store: CliStore) -> None:
    whole = any_store.raw("tour")
    any_store.put("tour", whole[:-1])
    assert planned(any_store, "tour")["steps"] == ["put the newline of its last line back"]
    repaired(any_store, "tour")
    assert any_store.raw("tour") == whole


def test_a_damaged_head_file_is_written_anew(any_store: CliStore) -> None:
    head = any_store.head("tour")
    whole = head.read_bytes()
    head.write_bytes(b"x" + whole[1:])
    assert planned(any_store, "tour")["steps"] == ["write its head file anew"]
    repaired(any_store, "tour")
    assert head.read_bytes() == whole


def test_a_log_that_ends_before_its_head_file_says_goes_on_from_there(any_store: CliStore) -> None:
    whole = any_store.raw("tour")
    short = b"".join(whole.splitlines(keepends=True)[:-3])
    any_store.put("tour", short)
    plan = planned(any_store, "tour")
    assert "was durable when it was last closed" in plan["findings"][0]
    lost = "note that 3 events that were in the log when it was last closed are lost"
    assert plan["steps"][-1] == f"{lost}; the next opening reports it"
    found = repaired(any_store, "tour")
    assert Path(found["copy"]).read_bytes() == any_store.raw("tour") == short
    report = recovered_by_next_opening(any_store, "tour")
    name = f"tour.torn-{len(short)}-0"
    assert report == SessionRecovered(0, 3, "lost-events", name)
    assert any_store.run("verify", "tour").code == 0


def test_of_a_log_that_was_cut_inside_a_line_all_that_is_lost_is_counted(
    any_store: CliStore,
) -> None:
    whole, events = any_store.raw("tour"), len(any_store.events("tour"))
    lines = whole.splitlines(keepends=True)
    short = b"".join(lines[: len(lines) - 3]) + lines[-3][:20]
    any_store.put("tour", short)
    steps = [step.split()[0] for step in repaired(any_store, "tour")["steps"]]
    assert steps == ["keep", "keep", "put", "note"]
    report = recovered_by_next_opening(any_store, "tour")
    assert report is not None
    assert (report.dropped_bytes, report.dropped_records) == (20, 3)
    assert len(any_store.events("tour")) == events - 3
    (first, second) = (report.quarantine or "").split(",")
    assert first != second


async def test_lost_events_are_reported_once_in_the_log(any_store: CliStore) -> None:
    whole = any_store.raw("tour")
    any_store.put("tour", b"".join(whole.splitlines(keepends=True)[:-1]))
    repaired(any_store, "tour")
    for _ in range(2):
        async with refold.open(any_store.address, providers=[Script([])]) as runtime:
            await (await runtime.resume("tour", model="script/x", tools=[])).close()
    reports = [event for event in any_store.events("tour") if event.type == "session/recovered"]
    assert [event.data for event in reports] == [
        SessionRecovered(0, 1, "lost-events", reports[0].data.quarantine)
    ]
    assert "recovered: 1 record lost at the log's end" in any_store.run("show", "tour").out
    assert planned(any_store, "tour", 0)["findings"] == []


def test_a_torn_tail_that_the_head_file_vouches_for_is_damage_and_kept_aside(
    any_store: CliStore,
) -> None:
    whole = any_store.raw("tour")
    stored = flip(any_store, "tour", len(whole) - 9)
    found = repaired(any_store, "tour")
    kept = any_store.raw("tour")
    assert Path(found["copy"]).read_bytes() == stored
    assert whole.startswith(kept)
    report = events_of_next_opening(any_store, "tour")
    assert report == (len(whole) - len(kept), f"tour.torn-{len(kept)}-0")


def test_bytes_that_no_event_reports_are_told_and_left_for_the_next_opening(
    any_store: CliStore,
) -> None:
    any_store.put("tour", any_store.raw("tour") + b"{")
    repaired(any_store, "tour")
    found = planned(any_store, "tour", 0)
    assert len(found["findings"]) == 1
    assert found["findings"][0].endswith(
        "holds dropped bytes that no event reports; the next opening does"
    )


def test_the_seed_of_a_damaged_fork_is_what_is_left_of_it(any_store: CliStore) -> None:
    fork = any_store.fork
    data = any_store.raw(fork)
    seed = orjson.loads(data.partition(b"\n")[0])["seedLength"]
    lines = data.splitlines(keepends=True)
    flip(any_store, fork, len(b"".join(lines[: seed - 2])) + 40)
    plan = planned(any_store, fork)
    assert any("say in its header that it was forked with" in step for step in plan["steps"])
    repaired(any_store, fork)
    header = orjson.loads(any_store.raw(fork).partition(b"\n")[0])
    assert header["parentSession"] == "changed"
    assert 0 < header["seedLength"] < seed
    assert header["seedLength"] == len(any_store.events(fork))


def test_a_log_whose_first_event_is_damaged_begins_anew(any_store: CliStore) -> None:
    first = len(any_store.raw("tour").partition(b"\n")[0])
    flip(any_store, "tour", first + 60)
    assert "keep 0 events: the first is damaged already" in planned(any_store, "tour")["steps"]
    repaired(any_store, "tour")
    assert any_store.events("tour") == []
    with any_store.opened() as sessions:
        log = sessions.open("tour")
        log.append([event(0)])
        log.close()
    assert len(any_store.events("tour")) == 1


def test_a_header_that_cannot_be_read_is_written_anew(any_store: CliStore) -> None:
    events, lines = any_store.events("tour"), body(any_store.raw("tour"))
    stored = flip(any_store, "tour", 40)
    plan = planned(any_store, "tour")
    assert [step.split()[0] for step in plan["steps"]] == ["keep", "write", "keep", "forget"]
    assert "its name, its folder, and what it may be a fork of are lost" in plan["steps"][1]
    found = repaired(any_store, "tour")
    assert Path(found["copy"]).read_bytes() == stored
    assert body(any_store.raw("tour")) == lines
    with any_store.opened() as sessions:
        header = sessions.read("tour").header
    assert header == SessionHeader("tour", events[0].time, durability="power")
    assert any_store.run("verify", "tour").code == 0


def test_behind_a_header_that_cannot_be_read_damage_is_cut_as_ever(any_store: CliStore) -> None:
    events = any_store.events("tour")
    flip(any_store, "tour", len(any_store.raw("tour")) // 2)
    stored = flip(any_store, "tour", 40)
    found = repaired(any_store, "tour")
    assert [step.split()[0] for step in found["steps"]] == ["keep", "write", "keep", "put"]
    kept = any_store.events("tour")
    assert 0 < len(kept) < len(events)
    assert kept == events[: len(kept)]
    report = recovered_by_next_opening(any_store, "tour")
    assert report is not None
    assert report.dropped_bytes == len(body(stored)) - len(body(any_store.raw("tour")))


def test_events_that_are_lost_behind_such_a_header_are_reported_too(any_store: CliStore) -> None:
    whole = any_store.raw("tour")
    any_store.put("tour", b"".join(whole.splitlines(keepends=True)[:-3]))
    flip(any_store, "tour", 40)
    repaired(any_store, "tour")
    report = recovered_by_next_opening(any_store, "tour")
    assert report is not None
    assert (report.dropped_records, report.reason) == (3, "lost-events")


def test_a_fork_without_its_header_is_a_session_of_its_own(any_store: CliStore) -> None:
    events = any_store.events(any_store.fork)
    flip(any_store, any_store.fork, 40)
    repaired(any_store, any_store.fork)
    assert any_store.events(any_store.fork) == events
    assert any_store.run("check", any_store.fork).code == 0
    assert any_store.run("verify", any_store.fork).code == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_header_with_no_event_that_fits_behind_it_is_beyond_repair(
    any_store: CliStore, form: list[str]
) -> None:
    first = len(any_store.raw("tour").partition(b"\n")[0])
    flip(any_store, "tour", first + 60)
    stored = flip(any_store, "tour", 40)
    ran = any_store.run("repair", "tour", "--yes", *form)
    assert (ran.code, one_sentence(ran.err)) == (4, True)
    assert "it cannot be repaired: no event behind its header fits its checksum" in ran.err
    assert "let `refold repair`" not in ran.err
    assert any_store.raw("tour") == stored
    if form:
        found = orjson.loads(ran.out)
        assert (found["repaired"], len(found["beyondRepair"])) == (False, 1)


def test_a_log_that_was_cut_inside_its_header_is_beyond_repair(any_store: CliStore) -> None:
    any_store.put("tour", any_store.raw("tour")[:30])
    ran = any_store.run("repair", "tour", "--yes")
    assert (ran.code, one_sentence(ran.err)) == (4, True)
    assert "nothing is left of it but the beginning of its header" in ran.err
    assert any_store.run("delete", "tour", "--yes").code == 0


def test_an_owned_session_is_refused_and_left_as_it_is(any_store: CliStore) -> None:
    with any_store.opened() as sessions:
        log = sessions.open("tour")
        any_store.head("tour").write_bytes(b"x")
        ran = any_store.run("repair", "tour", "--yes")
        assert (ran.code, one_sentence(ran.err)) == (3, True)
        assert "is open for writing" in ran.err
        log.close()
    assert any_store.run("repair", "tour", "--yes").code == 0


def test_a_log_that_changes_while_it_asks_is_left_as_it_is(
    any_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(any_store, "tour", len(any_store.raw("tour")) // 2)

    def think(_question: str, *, yes: bool) -> bool:
        flip(any_store, "tour", len(any_store.raw("tour")) // 3)
        return True

    monkeypatch.setattr(repair_command, "agreed", think)
    ran = any_store.run("repair", "tour")
    assert (ran.code, one_sentence(ran.err)) == (1, True)
    assert "changed while its repair was being decided" in ran.err


def unbalanced(store: CliStore, session: str) -> int:
    """A log whose second turn holds a call without a result; the seq of the first turn's end."""
    call = {"type": "tool-call", "id": "c", "name": "read", "arguments": "{}"}
    done, trigger = {"kind": "completed"}, {"kind": "message", "source": USER}
    message = event(5, "assistant/message", turn=2, step=1, content=[call])
    store.write(
        session,
        event(0, "turn/start", turn=1, trigger=trigger),
        event(1, "step/start", turn=1, step=1),
        event(2, "step/end", turn=1, step=1),
        event(3, "turn/end", turn=1, reason=done),
    )
    with store.opened() as sessions:
        log = sessions.open(session)
        log.append(
            [
                event(4, "turn/start", turn=2, trigger=trigger),
                message[:-1] + b',"surfaceOp":"append"}',
                event(6, "turn/end", turn=2, reason=done),
            ]
        )
        log.close()
    return 3


def test_for_calls_without_results_the_fork_before_them_is_printed_and_works(
    any_store: CliStore,
) -> None:
    at = unbalanced(any_store, "odd")
    ran = any_store.run("repair", "odd")
    assert ran.code == 1
    assert f"fork the session at seq {at}, the last turn/end without any" in ran.out
    command = ran.lines[-1].strip()
    assert command == f"refold fork odd --at {at}"
    assert planned(any_store, "odd")["fork"] == command
    forked = any_store.run(*shlex.split(command)[1:])
    assert forked.code == 0
    assert planned(any_store, forked.out.strip(), 0)["steps"] == []


def test_the_fork_that_is_printed_names_the_store_that_was_named(
    any_store: CliStore, tmp_path: Path
) -> None:
    unbalanced(any_store, "odd")
    elsewhere = CliStore(tmp_path / "elsewhere")
    ran = elsewhere.run("repair", "odd", "--store", any_store.address)
    command = ran.lines[-1].strip()
    assert command == f"refold fork odd --at 3 --store {shlex.quote(any_store.address)}"
    assert elsewhere.run(*shlex.split(command)[1:]).code == 0


def test_calls_without_results_in_a_torn_log_are_told_after_its_repair(
    any_store: CliStore,
) -> None:
    unbalanced(any_store, "odd")
    any_store.put("odd", any_store.raw("odd") + b"{")
    found = repaired(any_store, "odd", 1)
    assert (found["fork"], len(found["beyondRepair"])) == ("refold fork odd --at 3", 2)


def test_events_that_no_session_takes_are_left_out_by_a_fork(any_store: CliStore) -> None:
    cited = event(1, "user/message", content=[], source=USER)
    end = event(0, "turn/end", turn=1, reason={"kind": "completed"})
    any_store.write("odd", end, cited[:-1] + b',"sourceEventSeqs":[9],"surfaceOp":"append"}')
    found = planned(any_store, "odd")
    assert (found["steps"], found["fork"]) == ([], "refold fork odd --at 0")
    assert any("cites seq 9" in limit for limit in found["beyondRepair"])


def change_first_line(change: Callable[[dict[str, Any]], object]) -> bytes:
    header = {"type": "session", "version": 0, "id": "odd", "createdAt": 0}
    change(header)
    return orjson.dumps(header) + b"\n"


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        (change_first_line(lambda h: h.update(version=7)), 3, "newer refold"),
        (change_first_line(lambda h: None) + b'{"type":', 3, "import it first"),
        (change_first_line(lambda h: None) + b"no json\n", 4, "no checksums"),
        (
            change_first_line(lambda h: None)
            + b'{"type":"request/header-delta","seq":0,"time":0,"data":{}}\n',
            3,
            "header-delta",
        ),
    ],
)
def test_what_is_no_damage_of_ours_is_said_and_left(
    own_store: CliStore, lines: bytes, code: int, said: str
) -> None:
    own_store.log("odd").write_bytes(lines)
    ran = own_store.run("repair", "odd", "--yes")
    assert (ran.code, one_sentence(ran.err), said in ran.err) == (code, True, True)
    assert own_store.log("odd").read_bytes() == lines


def test_damage_in_the_middle_of_an_incomplete_history_says_nothing_of_the_next_opening(
    any_store: CliStore,
) -> None:
    flip(any_store, "tour", len(any_store.raw("tour")) // 2)
    for command in ("check", "repair"):
        assert "next opening closes" not in any_store.run(command, "tour").out


def test_nothing_that_a_terminal_would_obey_is_ever_printed(own_store: CliStore) -> None:
    odd = event(0, "user/message", content=[{"type": "text", "text": "x", HOSTILE: 1}], source=USER)
    line, _ = frame_batch([odd[:-1] + b',"surfaceOp":"append"}'], 0, -1)
    own_store.log("odd").write_bytes(frame_header(SessionHeader("odd", 0)) + line + b"{")
    for form in ([], ["--json"], ["--yes"]):
        ran = own_store.run("repair", "odd", *form)
        assert ran.code == 1
        assert hidden(ran.out + ran.err) == []
    assert body(own_store.raw("odd")) == line
