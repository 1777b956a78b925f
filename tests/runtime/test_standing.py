"""Where a log stands, what closes it, and what a fork inherits of that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from refold.runtime.closing import INTERRUPTED, NOT_STARTED, UNKNOWN_OUTCOME, closers
from refold.runtime.closing import interrupted_turn_closers as closers_of
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import FOLDED, UnknownEvent
from refold.runtime.odd_events import STRUCTURAL
from refold.runtime.request import rebuild_request
from refold.runtime.rules import broken_rules
from refold.runtime.rules.soundness import refusal_of
from refold.runtime.rules.table import ALLOWED
from refold.runtime.standing import Bracket, Standing, standing_of
from refold.runtime.step_names import list_steps
from tests.actors.histories import RandomHistory
from tests.foreign import TEXT, USER, Line, answers, asks, begin, encoded, end, event, over, turn


def log(*lines: Line) -> list[Event]:
    return [decode_line(line) for line in encoded(lines)]


def stands(*lines: Line) -> Standing:
    return standing_of(log(*lines))


CALL = {"turn": 1, "step": 1, "name": "n", "arguments": "{}"}
APPROVAL = {"turn": 1, "step": 1}


def test_calls_of_the_open_step_are_asked_started_and_answered() -> None:
    step = stands(
        *begin(1),
        *asks(1, "a", "b", "c"),
        event("tool/call", callId="a", **CALL),
        event("tool/call", callId="b", **CALL),
        *answers(1, "a"),
        event("tool/call", callId="stranger", **CALL),
    ).step
    assert step is not None
    calls = {id_: (call.started, call.has_result) for id_, call in step.calls.items()}
    assert calls == {"a": (4, True), "b": (5, False), "c": (None, False)}
    assert step.waiting == ("b", "c")


def test_an_approval_is_open_until_it_is_decided_or_its_call_goes_on() -> None:
    asked = [event("approval/asked", callId=id_, **APPROVAL) for id_ in "abcd"]
    decided = event("approval/decided", callId="a", decision="denied", by="me", **APPROVAL)
    begun = [*begin(1), *asks(1, *"abcd"), *asked]
    later = [decided, event("tool/call", callId="b", **CALL), *answers(1, "c")]
    approvals = [stands(*begun, *later[:count]).step for count in range(4)]
    assert [step and step.approvals for step in approvals] == [
        ("a", "b", "c", "d"),
        ("b", "c", "d"),
        ("c", "d"),
        ("d",),
    ]


@pytest.mark.parametrize(
    ("last", "turn_open", "step"),
    [
        (over(1), True, None),
        (end(1), False, None),
        (begin(2)[0], True, None),
        (event("step/start", turn=1, step=2), True, 2),
        (over(1).having(turn=9, step=9), True, None),
        (event("turn/end", nonsense=1), False, None),
        (event("step/end"), True, None),
        (event("step/start", turn=1), True, 1),
        (event("llm/retry"), True, 1),
    ],
)
def test_what_ends_a_step_ends_it_for_every_fold(
    last: Line, turn_open: bool, step: int | None
) -> None:
    events = log(*begin(1), *asks(1, "a"), last)
    at = standing_of(events)
    assert (at.turn_open, at.step and at.step.number) == (turn_open, step)
    ended = step != 1
    assert (list_steps(events)[0].end == len(events)) != (ended and last.type != "step/end")
    closed = closers(at, INTERRUPTED)
    assert [made.type for made in closed].count("tool/result") == (not ended)
    assert [made.type for made in closed].count("turn/end") == turn_open


def test_a_header_behind_what_ended_a_step_is_not_that_steps() -> None:
    header = {"config": {"provider": "p", "model": "m"}}
    first = event("request/header", header=header, reason="initial")
    other = {"config": {"provider": "p", "model": "other"}}
    events = log(
        *begin(1),
        event("step/start", turn=1, step=1),
        first,
        *begin(2)[:1],
        event("request/header", header=other, reason="change"),
    )
    assert rebuild_request(events, 2).header.config.model == "m"


def test_a_replacement_moves_nothing() -> None:
    lines = [*begin(1), *asks(1, "a")]
    op = {"op": "replace", "start": 1, "end": 1}
    replacing = Line(
        "assistant/message",
        {"turn": 1, "step": 1, "content": TEXT},
        {"sourceEventSeqs": [1], "surfaceOp": op},
    )
    assert stands(*lines, replacing) == stands(*lines)


def test_closers_end_what_is_open_once() -> None:
    events = log(
        *begin(1),
        event("compact/start", turn=1),
        *asks(1, "a", "b"),
        event("tool/call", callId="b", **CALL),
    )
    made = closers_of(events)
    assert [event.type for event in made] == [
        "compact/end",
        "tool/result",
        "tool/result",
        "step/end",
        "turn/end",
    ]
    assert [event.time for event in made] == [events[-1].time] * 5
    texts = [event.data.content[0].text for event in made[1:3]]
    assert texts == [NOT_STARTED, UNKNOWN_OUTCOME]
    assert [event.source_event_seqs for event in made[1:3]] == [None, (5,)]
    assert broken_rules([*events, *made]) == []
    assert closers_of([*events, *made]) == []


@pytest.mark.parametrize("seed", range(8))
def test_every_beginning_of_a_log_within_the_rules_is_closed_within_them(seed: int) -> None:
    grown = RandomHistory(random.Random(seed))
    grown.grow(120)
    events = list(grown.session.events)
    for length in range(len(events)):
        made = closers_of(events[:length])
        assert broken_rules([*events[:length], *made]) == []
        at = standing_of([*events[:length], *made])
        assert (at.turn_open, at.step, at.bracket) == (False, None, None)


INBOX: dict[str, Any] = {"target": "turn", "kind": "prompt", "content": TEXT, "source": USER}


def removal(*seqs: int) -> Line:
    return event("inbox/removed", queuedSeqs=list(seqs), outcome="cancelled")


def test_what_a_fork_inherits_is_judged_as_its_parents() -> None:
    seed = [
        event("inbox/queued", **INBOX),
        event("inbox/queued", **INBOX),
        removal(0),
        event("compact/start", turn=None),
        event("compact/end", turn=None, error="x"),
        *turn(1, "c"),
    ]
    own = [event("inbox/queued", **INBOX), removal(len(seed))]
    assert broken_rules(log(*seed, *own), len(seed)) == []
    again = log(*seed[:3], removal(0), *seed[3:], *own[:1])
    assert [(b.rule, b.seq) for b in broken_rules(again, len(seed) + 1)] == [(9, 3)]


def test_what_was_pending_or_open_at_a_fork_is_left_to_its_parent() -> None:
    seed = [event("inbox/queued", **INBOX), event("compact/start", turn=None), *turn(1)]
    after = [removal(0), event("compact/end", turn=None, error="x")]
    broken = broken_rules(log(*seed, *after), len(seed))
    assert [(b.rule, b.seq) for b in broken[-2:]] == [(9, len(seed)), (8, len(seed) + 1)]
    assert standing_of(log(*seed)).bracket == Bracket(None)
    assert standing_of(log(*seed), len(seed)).bracket is None


def test_every_structural_type_is_read_alike_with_a_field_more() -> None:
    samples: Sequence[Line] = [
        *begin(1)[:1],
        *asks(1)[:1],
        event("tool/call", callId="a", **CALL),
        event(
            "request/sealed",
            turn=1,
            step=1,
            codec="c",
            requestDigest="",
            wireDigest="",
            wireBytes=0,
            sharedPrefixBytes=0,
            invariants="off",
        ),
        over(1),
        end(1),
        event("inbox/queued", **INBOX),
        removal(0),
        event("compact/start", turn=1),
        event("compact/summary", turn=1),
        Line("compact/end", {"turn": None}),
        event("session/owner", term=3),
    ]
    assert {line.type for line in samples} == STRUCTURAL.keys()
    for line in samples:
        (plain,), (more,) = log(line), log(line.having(more={"a": 1}))
        assert not isinstance(plain.data, UnknownEvent)
        assert more.data == plain.data
        assert b'"more":{"a":1}' in more.encoded
        empty = decode_line(encoded([event(line.type)])[0])
        assert isinstance(empty.data, UnknownEvent) or line.type == "compact/end"


def test_the_table_speaks_of_types_that_there_are_and_of_all_that_move_a_log() -> None:
    told = {*ALLOWED, "inbox/queued", "inbox/removed", "session/owner"}
    assert told >= STRUCTURAL.keys()
    assert ALLOWED.keys() <= FOLDED | STRUCTURAL.keys() | {"assistant/chunk"}


def test_a_second_message_of_a_step_asks_for_more_calls() -> None:
    step = stands(*begin(1), *asks(1, "a"), asks(1, "b")[1]).step
    assert step is not None
    assert step.waiting == ("a", "b")


@pytest.mark.parametrize("type_", ["request/sealed", "compact/start", "compact/end", "turn/start"])
def test_what_lacks_what_a_fold_needs_moves_nothing(type_: str) -> None:
    lines = [*begin(1), event("compact/start", turn=1), event("step/start", turn=1, step=1)]
    assert stands(*lines, event(type_)) == stands(*lines)


@pytest.mark.parametrize("type_", sorted(set(ALLOWED) & set(STRUCTURAL)))
def test_what_cannot_be_read_is_told_as_unreadable_and_breaks_no_rule(type_: str) -> None:
    events = log(*begin(1), event("step/start", turn=1, step=1), event(type_, nonsense=1))
    assert broken_rules(events) == []


def test_an_event_that_says_not_where_the_log_stands_may_be_unreadable() -> None:
    events = log(event("llm/retry", nonsense=1), event("of-a-plugin", nonsense=1), *turn(1))
    assert isinstance(events[0].data, UnknownEvent)
    assert refusal_of(events) is None
