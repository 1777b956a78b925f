"""A log of another version or program is gone on with, or refused with where to fork; never both.

What opens a log, what reads it whole and what checks it are of one opinion.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import refold
from refold import Say, Script
from refold.runtime.envelope import Event
from refold.runtime.errors import HistoryUnbalanced, HistoryUnreadable, InvalidEvent
from refold.runtime.rules import broken_rules
from refold.runtime.storage import index as index_module
from refold.runtime.storage import open_sessions
from refold.runtime.verify import verify_requests
from tests.agents import assert_within_rules, of_type, stored_events
from tests.foreign import (
    TEXT,
    USER,
    Line,
    answers,
    asks,
    begin,
    end,
    event,
    over,
    surface,
    turn,
    write,
)

FILES, SQLITE = "files", "sqlite"


@pytest.fixture(params=[FILES, SQLITE])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s") if request.param == FILES else f"sqlite:///{tmp_path / 's.db'}"


async def goes_on(address: str, session: str = "odd") -> None:
    """The session is opened, asked twice, and its log is as any other's."""
    async with refold.open(address, providers=[Script([Say("one"), Say("two")])]) as runtime:
        agent = await runtime.resume(session, model="script/m")
        before = [event.type for event in stored_events(runtime, session)].count("turn/start")
        turns = [await agent.ask("go on"), await agent.ask("and on")]
        assert [(t.turn, t.text, t.reason.kind) for t in turns] == [
            (before + 1, "one", "completed"),
            (before + 2, "two", "completed"),
        ]
        assert_good(runtime)


def assert_good(runtime: refold.Runtime, session: str = "odd") -> list[Event]:
    """The stored log is within the rules, and all that was asked of a model here verifies."""
    events = stored_events(runtime, session)
    assert_within_rules(events)
    with closing(runtime.store.reader(session)) as reader:
        verdicts = [*verify_requests(reader.read_new())]
    assert all(verdict.verified for verdict in verdicts if verdict.sealed)
    assert sum(verdict.verified for verdict in verdicts) > 0
    return events


ODD: dict[str, tuple[int, dict[str, Any]]] = {
    "turn/start with a field more": (0, {"mood": "good"}),
    "turn/start of an unknown kind": (0, {"trigger": {"kind": "timer", "source": USER, "at": 5}}),
    "turn/start without a trigger": (0, {"trigger": None}),
    "step/start with a field more": (2, {"attempt": 1}),
    "step/end with a field more": (5, {"took": {"ms": 5}}),
    "turn/end with a field more": (9, {"cost": {"usd": 1}}),
    "turn/end of an unknown kind": (9, {"reason": {"kind": "handed-over", "to": "human"}}),
    "turn/end with an odd optional field": (9, {"reason": {"kind": "error", "step": "last"}}),
}
"""What another version may make of one event of a whole turn: its seq, and its other data."""


@pytest.mark.parametrize("what", ODD)
async def test_an_event_of_another_version_counts_as_what_it_is(address: str, what: str) -> None:
    seq, data = ODD[what]
    lines = turn(1, "c")
    lines[seq] = lines[seq].having(**data)
    write(address, lines)
    await goes_on(address)


async def test_other_structural_events_of_another_version_count_too(address: str) -> None:
    entry = {"content": TEXT, "source": {**USER, "device": "phone"}, "priority": 3}
    call = {"turn": 1, "step": 1, "callId": "c", "name": "n", "arguments": {"a": [1]}}
    seal = {"codec": "chat/9", "requestDigest": "0", "wireDigest": "0", "wireBytes": 1}
    owner = {"term": 7, "owner": {"host": "h", "pid": 1, "boot": "b", "user": 5}, "since": 1}
    lines = [
        event("session/owner", **owner),
        event("inbox/queued", target="turn", kind="prompt", **entry),
        *begin(1),
        event("inbox/removed", queuedSeqs=[1], outcome="expired", by="timer"),
        *asks(1, "c"),
        event("tool/call", **call),
        event("approval/asked", callId="c", id="a", why="x"),
        event("approval/decided", id="a", outcome="allowed-once"),
        *answers(1, "c"),
        over(1).having(note="x"),
        event("step/start", turn=1, step=2),
        event("request/sealed", turn=1, step=2, sharedPrefixBytes=0, invariants="strict", **seal),
        *asks(1, step=2)[1:],
        over(1, step=2),
        end(1),
        Line("compact/start", {"turn": None, "range": "all"}),
        Line("compact/end", {"turn": None, "error": "x", "code": 5}),
    ]
    write(address, lines)
    async with refold.open(address, providers=[Script([Say("one")])]) as runtime:
        agent = await runtime.resume("odd", model="script/m")
        assert (await agent.ask("go on")).text == "one"
        assert agent.snapshot().pending == 0
        events = stored_events(runtime, "odd")
    assert broken_rules(events) == []
    assert [owner.term for owner in of_type(events, "session/owner")] == [7, 8]


async def test_an_entry_of_a_kind_that_nobody_here_can_take_stays_until_it_is_removed(
    address: str,
) -> None:
    entry = {"target": "turn", "content": TEXT, "source": USER}
    write(address, [event("inbox/queued", kind="wake", **entry), *turn(1)])
    async with refold.open(address, providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.resume("odd", model="script/m", continue_=True)
        assert (await agent.ask("hello")).text == "fine"
        await agent.remove(0)
        assert (await agent.ask("and now?")).text == "fine"
        assert_good(runtime)


LACKING = {
    "turn/start": (10, "turn", event("turn/start", trigger={"kind": "message", "source": USER})),
    "turn/end": (19, "reason", event("turn/end", turn=2)),
    "step/start": (12, "step", event("step/start", turn=2)),
    "step/end": (15, "turn", event("step/end", step=1)),
    "tool/call": (14, "callId", event("tool/call", turn=2, step=1, name="n", arguments="{}")),
    "inbox/queued": (18, "content", event("inbox/queued", target="turn", kind="prompt")),
    "session/owner": (18, "term", event("session/owner", owner={})),
}
"""Events that lack what a fold needs, where they may stand in a second turn, and the field."""


@pytest.mark.parametrize("later", [[], turn(3, "c")], ids=["at the end", "a turn before it"])
@pytest.mark.parametrize("type_", LACKING)
async def test_a_log_that_does_not_say_where_it_stands_is_refused_with_where_to_fork(
    address: str, type_: str, later: Sequence[Line]
) -> None:
    seq, field, odd = LACKING[type_]
    lines = [*turn(1, "c"), *turn(2, "c"), *later]
    stands_there = lines[seq].type == type_
    lines[seq : seq + stands_there] = [odd]
    write(address, lines)
    async with refold.open(address, providers=[Script([Say("fine")])]) as runtime:
        for attempt in (runtime.resume, runtime.fork):
            with pytest.raises(HistoryUnreadable) as refused:
                await attempt("odd", model="script/m")
            assert (refused.value.places, refused.value.fork_at) == (((seq, type_, field),), 9)
        assert f"the {type_} at seq {seq} lacks a readable {field!r}" in str(refused.value)
        assert "fork the session at seq 9" in str(refused.value)
        assert await runtime.list() == ["odd"]
        agent = await runtime.fork("odd", at=9, model="script/m")
        assert (await agent.ask("hello")).text == "fine"


UNSENDABLE: dict[str, tuple[list[Line], dict[str, tuple[int, ...]]]] = {
    "a lost result": ([*begin(2), *asks(2, "c"), over(2), end(2)], {"seqs": (13,)}),
    "a result that comes after a prompt": (
        [*begin(2), *asks(2, "c"), *begin(2)[1:], *answers(2, "c"), over(2), end(2)],
        {"seqs": (13,), "orphans": (15,)},
    ),
    "an orphan": ([*begin(2), *asks(2), *answers(2, "x"), over(2), end(2)], {"orphans": (14,)}),
    "an orphan outside of every turn": (answers(2, "x"), {"orphans": (10,)}),
    "an orphan in a turn that a kill left open": (
        [*begin(2), *asks(2), *answers(2, "x")],
        {"orphans": (14,)},
    ),
    "a result that comes twice": (
        [*begin(2), *asks(2, "c"), *answers(2, "c", "c"), over(2), end(2)],
        {"orphans": (15,)},
    ),
    "an id that is used twice": (
        [*begin(2), *asks(2, "c", "c"), *answers(2, "c", "c"), over(2), end(2)],
        {"doubled": (13,), "orphans": (15,)},
    ),
    "an id that is used twice in an open step": (
        [*begin(2), *asks(2, "c", "c")],
        {"doubled": (13,)},
    ),
    "an open call in a step outside of any turn": (asks(2, "c"), {"seqs": (11,)}),
}
"""What may follow a sound turn whose call had the id `c`, too, and what is wrong then."""


@pytest.mark.parametrize("what", UNSENDABLE)
async def test_a_history_that_no_provider_takes_is_refused_with_where_to_fork(
    address: str, what: str
) -> None:
    lines, wrong = UNSENDABLE[what]
    write(address, [*turn(1, "c"), *lines])
    async with refold.open(address, providers=[Script([Say("fine")])]) as runtime:
        with pytest.raises(HistoryUnbalanced) as refused:
            await runtime.resume("odd", model="script/m")
        found = {name: getattr(refused.value, name) for name in ("seqs", "orphans", "doubled")}
        assert {name: seqs for name, seqs in found.items() if seqs} == wrong
        assert refused.value.fork_at == 9
        if lines[-1].type == "turn/end":
            with pytest.raises(HistoryUnbalanced) as refused:
                await runtime.fork("odd", model="script/m")
            assert refused.value.fork_at == 9
        assert await runtime.list() == ["odd"]
        agent = await runtime.fork("odd", at=9, model="script/m")
        assert (await agent.ask("hello")).text == "fine"


async def test_ids_that_come_back_in_each_answer_are_no_fault(address: str) -> None:
    write(address, [line for number in (1, 2, 3) for line in turn(number, "call-1", "call-2")])
    await goes_on(address)


@pytest.mark.parametrize("continues", [False, True])
async def test_a_call_that_waited_for_an_approval_is_closed_as_one_that_never_started(
    address: str, continues: bool
) -> None:
    asked = event("approval/asked", turn=1, step=1, callId="c")
    write(address, [*begin(1), *asks(1, "c", "d"), asked])
    async with refold.open(address, providers=[Script(lambda _: Say("fine"))]) as runtime:
        agent = await runtime.resume("odd", model="script/m", continue_=continues)
        await agent.wait_idle()
        assert (await agent.ask("hello")).text == "fine"
        events = assert_good(runtime)
    told = {result.call_id: result.content[0].text for result in of_type(events, "tool/result")}
    assert told.keys() == {"c", "d"}
    assert all("before it was started. Nothing ran" in text for text in told.values())


UNREADABLE: dict[str, Line] = {
    "a message of a type that is not known": surface("user/poke", content=TEXT),
    "a message that cites and is not known": Line(
        "poke", {}, {"sourceEventSeqs": [1], "surfaceOp": "append"}
    ),
    "a replacement of a type that is not known": Line(
        "poke", {}, {"surfaceOp": {"op": "replace", "start": 1, "end": 1}}
    ),
    "an unknown field of the envelope": Line("poke", {}, {"lang": "en"}),
    "an unknown field that is an object": Line("poke", {}, {"lang": {"code": "en"}}),
    "an unknown field behind a list": Line("poke", {"a": {"b": []}}, {"tags": []}),
    "an unknown field of a type that is known": Line(
        "step/end", over(1).data, {"lang": {"code": "en"}}
    ),
    "surface fields of a type that is log-only": Line(
        "assistant/chunk", {"turn": 1}, {"surfaceOp": "append"}
    ),
}


@pytest.mark.parametrize("where", ["before the last request", "behind it"])
@pytest.mark.parametrize("fewest", [5, 1000], ids=["with an index", "without one"])
@pytest.mark.parametrize("what", UNREADABLE)
async def test_what_no_reader_takes_is_not_passed_over_when_a_session_is_opened(
    address: str, monkeypatch: pytest.MonkeyPatch, what: str, fewest: int, where: str
) -> None:
    monkeypatch.setattr(index_module, "_FEWEST", fewest)
    odd, sound = UNREADABLE[what], [*turn(1, "c"), *turn(2, "c")]
    sealed = {"requestDigest": "0", "wireDigest": "0", "wireBytes": 1, "sharedPrefixBytes": 0}
    seal = event("request/sealed", turn=2, step=2, codec="chat/1", invariants="off", **sealed)
    sound[17:17] = [seal]
    at = 10 if where == "before the last request" else len(sound)
    write(address, [*sound[:at], odd, *sound[at:]])
    assert has_index(address) == (fewest == 5)
    async with refold.open(address, providers=[Script([Say("fine")])]) as runtime:
        for _ in range(2):  # the first opening has seen the line, the index has its place
            with pytest.raises(InvalidEvent) as refused:
                await runtime.resume("odd", model="script/m")
            assert refused.value.seq == at
        agent = await runtime.fork("odd", at=9, model="script/m")
        assert (await agent.ask("hello")).text == "fine"


def has_index(address: str) -> bool:
    sessions = open_sessions(address)
    found = sessions.read("odd").indexed > 0
    sessions.close()
    return found


async def test_events_of_types_that_are_not_known_are_passed_over(address: str) -> None:
    odd = [event("poke", text="},{", deep={"a": {"b": [{}]}}), event("poke"), event("x/y", a=[])]
    write(address, [*turn(1, "c"), *odd, *turn(2, "c")])
    await goes_on(address)
