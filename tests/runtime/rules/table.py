"""How a row of a table is judged: the one place that knows how rules are asked.

A row is a state as a short list of events, an event, and the verdict: `allowed`, or the number of
the rule that forbids it. The state of a row is itself within the rules, so that it can come about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from refold.runtime.envelope import Draft, Event
from refold.runtime.errors import HistoryUnbalanced, RuleBroken
from refold.runtime.history import History
from refold.runtime.rules import Rules, broken_rules
from refold.runtime.rules.soundness import refusal_of
from tests.runtime.rules import words as w

allowed = 0
"""The verdict of a row that breaks no rule."""


class Row(NamedTuple):
    what: str
    state: Sequence[Draft]
    event: Draft
    verdict: int
    seed: int = 0
    """How many events of the state a fork has from its parent."""


Table = Sequence[
    tuple[str, Sequence[Draft], Draft, int] | tuple[str, Sequence[Draft], Draft, int, int]
]


class Log:
    """A log under the rules, as its writer has it: a session with its rules beside it."""

    def __init__(self, seed_length: int = 0) -> None:
        self.session = History()
        self.rules = Rules(self.session.surface, seed_length)

    def verdict(self, made: Draft) -> int:
        """The rule that forbids it as the next event, or `allowed`; asking changes nothing."""
        seq = self.session.next_seq
        self.session.check(made)
        try:
            self.rules.check(made, seq)
        except RuleBroken as broken:
            refusal = broken
        else:
            return allowed
        assert refusal.seq == seq
        assert isinstance(refusal.problem, str)
        return refusal.rule

    def take(self, made: Draft) -> Event:
        """Let it in, whatever the rules say."""
        event = self.session.append(made, 0)
        self.rules.apply(event)
        return event

    def undo(self) -> Callable[[], None]:
        """How to forget what comes from now on."""
        session, rules = self.session.mark(), self.rules.mark()

        def back() -> None:
            self.session.restore(session)
            self.rules.restore(rules)

        return back


def log_of(state: Sequence[Draft], seed: int = 0) -> Log:
    """A log of these events, each within the rules."""
    log = Log(seed)
    for made in state:
        if len(log.session.events) >= seed:  # what is inherited is only read
            assert log.verdict(made) == allowed, f"{made} in the state of a row breaks a rule"
        log.take(made)
    return log


def refused_batches(log: Log) -> None:
    """Batches of everything come and go again, one after the other: nothing of them may be left."""
    seq = log.session.next_seq
    whole = [
        w.queued("key"),
        w.user(seq),
        w.removed(seq),
        w.turn(7),
        w.step(7, 3),
        w.header(),
        w.seal(7, 3),
        w.says(7, 3, "a", "b", "c"),
        w.call(7, 3, "a"),
        w.result(7, 3, "a"),
        w.compact(7),
        w.summary(7),
        w.queued("other"),
    ]
    calls = [w.says(7, 3, "a", "b"), w.result(7, 3, "a"), w.says(7, 3, "c")]
    results = [w.result(7, 3, "a"), w.result(7, 3, "b"), w.says(7, 3, "b")]
    for batch in (whole, calls, results, [w.queued("key")]):
        undo = log.undo()
        for made in batch:
            log.take(made)
        if len(log.session.surface.nodes) > len(batch):
            first = log.session.surface.nodes[0]
            log.take(w.user(first, replaces=w.at(first)))
        undo()


def judge(row: Row) -> None:
    """The verdict holds: asked live, after a refused batch at each moment, and in a report."""
    log = log_of(row.state, row.seed)
    assert log.verdict(row.event) == row.verdict
    assert log.verdict(row.event) == row.verdict, "asking has changed something"
    for moment in range(len(row.state) + 1):
        log = Log(row.seed)
        for made in row.state[:moment]:
            log.take(made)
        refused_batches(log)
        for made in row.state[moment:]:
            assert log.verdict(made) == allowed or log.session.next_seq < row.seed
            log.take(made)
        assert log.verdict(row.event) == row.verdict, f"a batch refused at {moment} left something"
    log = log_of(row.state, row.seed)
    log.take(row.event)
    found = [
        (broken.rule, broken.seq)
        for broken in broken_rules(log.session.events, row.seed)
        if broken.seq >= row.seed
    ]
    assert found == ([(row.verdict, len(row.state))] if row.verdict else [])


def unanswered(events: Sequence[Event]) -> tuple[int, ...]:
    """The messages with a call that no result answers, as the refusal of a session has them."""
    refused = refusal_of(events)
    return refused.seqs if isinstance(refused, HistoryUnbalanced) else ()


def rows(table: Table) -> pytest.MarkDecorator:
    """The rows of a table as the cases of a test, each by what it says."""
    cases = [Row._make((*row, 0)[:5]) for row in table]
    names = [case.what for case in cases]
    assert len(set(names)) == len(names), "two rows say the same"
    return pytest.mark.parametrize("row", cases, ids=names)
