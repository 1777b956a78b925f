"""What a damaged log, or one of a newer format, still tells."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import orjson
import pytest

import refold
from refold import Say, Script
from refold.runtime.storage import LogCorrupt
from refold.runtime.storage.framing import seal
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence


def line_of(data: bytes, seq: int) -> tuple[int, int]:
    """Where the line of a seq starts and where it ends, newline included."""
    at = data.index(b'"seq":%d,"time":' % seq)
    return data.rindex(b"\n", 0, at) + 1, data.index(b"\n", at) + 1


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def without(data: bytes, seq: int) -> bytes:
    start, end = line_of(data, seq)
    return data[:start] + data[end:]


def edited(data: bytes, seq: int) -> bytes:
    start, end = line_of(data, seq)
    return data[:start] + data[start:end].replace(b'"time":1', b'"time":2', 1) + data[end:]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], set[int]]] = {
    "a byte of a line": (lambda data: flipped(data, line_of(data, 9)[0] + 60), {9}),
    "a line's checksum": (lambda data: flipped(data, line_of(data, 9)[0] + 10), {9}),
    "a line's first byte": (lambda data: flipped(data, line_of(data, 9)[0]), {9}),
    "a line that was edited": (lambda data: edited(data, 9), {9}),
    "a line that is gone": (lambda data: without(data, 9), {9, 10}),
    "a line's newline": (lambda data: flipped(data, line_of(data, 9)[1] - 1), {9, 10}),
    "zeros over three lines": (
        lambda data: (
            data[: line_of(data, 9)[0]]
            + bytes(line_of(data, 11)[1] - line_of(data, 9)[0] - 1)
            + data[line_of(data, 11)[1] - 1 :]
        ),
        {9, 10, 11, 12},
    ),
    "two places": (
        lambda data: flipped(flipped(data, line_of(data, 9)[0] + 60), line_of(data, 20)[0] + 60),
        {9, 20},
    ),
    "its last line but one": (lambda data: flipped(data, data.rindex(b"\n", 0, -1) - 9), {-2}),
}


@pytest.mark.parametrize(("change", "lost"), DAMAGE.values(), ids=DAMAGE)
def test_what_can_be_believed_behind_the_damage_is_shown_and_what_is_missing_is_marked(
    any_store: CliStore, change: Callable[[bytes], bytes], lost: set[int]
) -> None:
    events = any_store.events("tour")
    gone = {seq % len(events) for seq in lost}
    any_store.put("tour", change(any_store.raw("tour")))
    with any_store.opened() as sessions, pytest.raises(LogCorrupt):
        sessions.read("tour")
    ran = any_store.run("show", "tour", "--json")
    assert ran.code == 4
    assert [orjson.loads(line) for line in ran.lines] == [
        orjson.loads(event.encoded) for event in events if event.seq not in gone
    ]
    assert "cannot be read" in ran.err
    ledger = any_store.run("show", "tour", "--events", "--from", "8")
    seqs = [int(found[1]) for line in ledger.lines if (found := re.match(r" *([0-9]+)  ", line))]
    assert seqs == [event.seq for event in events if event.seq >= 8 and event.seq not in gone]
    marked = [line for line in ledger.lines if line.endswith("cannot be read")]
    told = {
        seq
        for line in marked
        for first, last in [re.findall("[0-9]+", line)[:1] + re.findall("[0-9]+", line)[-1:]]
        for seq in range(int(first), int(last) + 1)
    }
    assert told == gone
    assert [line for line in any_store.run("show", "tour").lines if "cannot be read" in line]


def test_what_was_made_up_behind_the_damage_is_not_believed(any_store: CliStore) -> None:
    data = any_store.raw("tour")
    start, end = line_of(data, 20)
    forged = data[start:end].replace(b'"turn":', b'"tarn":')
    any_store.put("tour", flipped(data, line_of(data, 9)[0] + 60).replace(data[start:end], forged))
    shown = any_store.run("show", "tour", "--events").out
    assert "tarn" not in shown
    assert "seq 20 cannot be read" in shown


def test_of_a_log_whose_header_is_damaged_the_events_are_shown(any_store: CliStore) -> None:
    events = any_store.events("tour")
    any_store.put("tour", flipped(any_store.raw("tour"), 40))
    ran = any_store.run("show", "tour", "--json")
    assert (ran.code, len(ran.lines)) == (4, len(events))
    ran = any_store.run("show", "tour")
    assert (ran.code, "whose header is damaged" in ran.lines[0]) == (4, True)
    assert "content of a" in ran.out


def test_a_request_behind_the_damage_is_not_said_to_be_missing(any_store: CliStore) -> None:
    seq = any_store.first("tour", "turn/end").seq + 3
    data = any_store.raw("tour")
    any_store.put("tour", flipped(data, line_of(data, seq)[0] + 60))
    for command in (["request", "tour", "2.1"], ["diff", "tour", "1.1", "2.1"]):
        ran = any_store.run(*command)
        assert (ran.code, one_sentence(ran.err)) == (4, True)
        assert "step 2.1 is not among the" in ran.err
        assert "there is no step" not in ran.err
    assert any_store.run("request", "tour", "1.1").code == 4  # whole, and the damage is told
    assert "matches its seal" in any_store.run("request", "tour", "1.1").err


async def test_a_damaged_log_is_forked_before_the_damage_and_gone_on_with(
    any_store: CliStore,
) -> None:
    end = any_store.first("tour", "turn/end").seq
    data = any_store.raw("tour")
    start = line_of(data, end + 3)[0]
    any_store.put("tour", flipped(data, start + 60))
    for at in ("turn:1", str(end), "1.2"):
        ran = any_store.run("fork", "tour", "--at", at, "--json")
        assert ran.code == 0, ran.err
        fork = orjson.loads(ran.out)["session"]
        assert any_store.run("check", fork).code == 0
        assert (
            any_store.raw(fork).split(b"\n", 1)[1]
            == data.split(b"\n", 1)[1][: line_of(data, end)[1] - data.index(b"\n") - 1]
        )
    async with refold.open(any_store.address, providers=[Script([Say("on")])]) as runtime:
        agent = await runtime.resume(fork, model="script/x", tools=[])
        assert (await agent.ask("go on")).text == "on"
        other = await runtime.fork("tour", at=end, model="script/x", tools=[])
        assert other.session_id != fork
    for point in ([], ["--at", "turn:2"], ["--at", "2.1"], ["--at", str(end + 30)]):
        ran = any_store.run("fork", "tour", *point)
        assert (ran.code, "damaged" in ran.err) == (4, True)


def test_a_log_that_is_not_the_one_its_head_file_saw_is_forked_nowhere(
    any_store: CliStore,
) -> None:
    end = any_store.first("changed", "turn/end").seq
    with any_store.opened() as sessions:
        sessions.open("tour").close()  # writes the head file
    other = any_store.raw("changed").replace(b'"id":"changed"', b'"id":"tour"', 1)
    header = seal(other.partition(b"\n")[0][17:])[0]
    any_store.put("tour", header + other.partition(b"\n")[2])
    ran = any_store.run("fork", "tour", "--at", str(end))
    assert (ran.code, "another record than when the log was last closed" in ran.err) == (4, True)


@pytest.fixture
def newer(any_store: CliStore) -> CliStore:
    """`tour`, as a newer refold might have written it."""
    first, _, rest = any_store.raw("tour").partition(b"\n")
    line = seal(first[17:].replace(b'"version":0', b'"version":9'))[0]
    any_store.put("tour", line + rest)
    any_store.head("tour").unlink()
    return any_store


def test_a_newer_log_is_no_damaged_one_and_is_never_pruned(newer: CliStore) -> None:
    listed = orjson.loads(newer.run("sessions", "--json").out)["sessions"]
    states = {row["session"]: (row["state"], row["detail"]) for row in listed}
    assert states["tour"][0] == "newer format"
    assert "upgrade refold" in states["tour"][1]
    if newer.file is None:
        old = newer.log("changed").stat().st_mtime - 10**7
        os.utime(newer.log("tour"), (old, old))
    for damaged in ([], ["--damaged"]):
        ran = newer.run("prune", "--older-than", "0m", "--yes", *damaged)
        assert ran.code == 0
    assert newer.ids() == ["tour"]
    ran = newer.run("check", "tour")
    assert (ran.code, "upgrade refold" in ran.out) == (3, True)


def test_a_newer_log_is_exported_as_it_is(newer: CliStore) -> None:
    ran = newer.run("export", "tour")
    assert (ran.code, ran.raw, "--raw" in ran.err) == (3, b"", True)
    ran = newer.run("export", "tour", "--raw")
    assert (ran.code, ran.raw) == (0, newer.raw("tour"))


def test_a_damaged_log_is_exported_as_it_is(any_store: CliStore) -> None:
    data = flipped(any_store.raw("tour"), line_of(any_store.raw("tour"), 9)[0] + 60)
    any_store.put("tour", data)
    target = any_store.path.parent / "copies" / "raw.jsonl"
    target.parent.mkdir()
    ran = any_store.run("export", "tour", str(target), "--raw", "--json")
    assert ran.code == 0
    told = {"session": "tour", "to": str(target), "bytes": len(data)}
    assert (orjson.loads(ran.out), target.read_bytes()) == (told, data)
    assert any_store.run("export", "tour", str(target), "--raw").code == 3
    assert any_store.run("export", "tour", "--raw", "--readable").code == 2
    assert any_store.run("export", "tour", "--raw", "--to", "elsewhere").code == 2
    ran = any_store.run("export", "tour", "--readable")
    assert ran.code == 0
    assert "behind the damage still fit" in ran.err
    assert "refold show tour --from 7" in ran.err


def test_a_position_that_the_log_does_not_reach_is_an_error_of_usage(any_store: CliStore) -> None:
    end = len(any_store.events("tour"))
    assert any_store.run("show", "tour", "--events", "--from", str(end)).code == 0
    for form in (["--events"], ["--json"], [], ["--follow"]):
        ran = any_store.run("show", "tour", "--from", str(end + 1), *form)
        assert (ran.code, one_sentence(ran.err)) == (2, True)
        assert f"its next event will be seq {end}," in ran.err
    for wrong in ("-1", "1.5", "x"):
        assert any_store.run("show", "tour", "--from", wrong).code == 2
