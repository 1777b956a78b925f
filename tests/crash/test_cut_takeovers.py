"""A session that is taken from its owner by force, where the taking is cut anywhere.

The lock file is removed while the session is held, so that a second program takes the log over
(and, in some tests, a third while the second does). Whatever is killed or loses its power, and
whenever, what anybody was told is durable is there for the next opening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice, product

import pytest

from refold.faults import CrashState, RecordingDisk, Seen, crash_states, recovery_states
from refold.runtime.storage import NotFound
from tests.crash.contending import (
    Ahead,
    Contender,
    Contest,
    Habit,
    lost,
    meanwhile,
    nothing,
    reopen,
)
from tests.crash.racing import Race, Stoppable, When

pytestmark = pytest.mark.crash


def rests(first: Contender, other: Contender) -> None:
    """It does nothing meanwhile."""
    del first, other


def leaves(first: Contender, other: Contender) -> None:
    """It appends an event and syncs it, each time."""
    del other
    first.leave()


def writes_before_changes(first: Contender, other: Contender) -> None:
    """It appends before one operation and syncs before the next."""
    (first.write if other.steps % 2 else first.sync)()


def syncs_before_changes(first: Contender, other: Contender) -> None:
    """As above, the other way about."""
    (first.sync if other.steps % 2 else first.write)()


HABITS: list[Habit] = [rests, leaves, writes_before_changes, syncs_before_changes]


def dying(at: int) -> Ahead:
    """It is killed before its change number `at`; 0 lets it live."""
    return lambda other: other.die() if at and other.changes == at else None


def taken(habit: Habit, kill: int) -> tuple[Contest, Contender]:
    """A takeover that was killed before a change; 0 lets it end, and the new owner goes on."""
    contest = Contest()
    second = contest.contender("second", meanwhile(contest.first, habit, dying(kill)))
    second.open()
    second.ahead = nothing
    contest.first.sync()
    contest.first.leave()
    second.leave()
    return contest, second


def killed(habit: Habit) -> Iterator[tuple[int, Contest]]:
    """A takeover for each change that it may be killed before."""
    for kill in count(1):
        contest, second = taken(habit, kill)
        if not second.is_dead:
            return
        yield kill, contest


@pytest.mark.parametrize("habit", HABITS)
def test_an_owner_that_was_taken_over_is_told_and_nothing_is_lost(habit: Habit) -> None:
    contest, second = taken(habit, 0)
    assert contest.first.told is not None
    assert second.told is None
    assert second.acknowledged == 2
    assert contest.lost() == []


@pytest.mark.parametrize("habit", HABITS)
def test_nothing_is_lost_wherever_a_takeover_is_killed(habit: Habit) -> None:
    runs = [(kill, contest.lost()) for kill, contest in killed(habit)]
    assert len(runs) > 8
    assert [(f"killed before change {kill}", found) for kill, found in runs if found] == []


@pytest.mark.parametrize(
    "habit", [writes_before_changes, pytest.param(leaves, marks=pytest.mark.slow)]
)
def test_nothing_is_lost_where_the_next_takeover_is_killed_too(habit: Habit) -> None:
    found, kills = [], [kill for kill, _ in killed(habit)]
    for kill, again in product(kills, [0, *kills]):
        contest, _ = taken(habit, kill)
        third = contest.contender("third", meanwhile(contest.first, habit, dying(again)))
        third.open()
        contest.first.leave()
        if bad := contest.lost():
            found.append((f"killed before change {kill}, then {again}", bad))
    assert found == []


@pytest.mark.parametrize("act", [Contender.leave, Contender.write, Contender.sync])
def test_nothing_is_lost_where_a_takeover_comes_within_a_write_or_a_sync(
    act: Callable[[Contender], None],
) -> None:
    found = []
    for at in range(1, steps_of(act) + 1):
        for kill in count():
            contest, second = taken_within(act, at, kill)
            if kill and not second.is_dead:
                break
            if bad := contest.lost():
                found.append((f"within operation {at}, killed before change {kill}", bad))
    assert found == []


def steps_of(act: Callable[[Contender], None]) -> int:
    first = Contest().first
    first.write()
    before = first.steps
    act(first)
    assert first.steps > before + 2
    return first.steps - before


def taken_within(act: Callable[[Contender], None], at: int, kill: int) -> tuple[Contest, Contender]:
    """A takeover, killed before a change, that comes before an operation of what the first does."""
    contest = Contest()
    first, second = contest.first, contest.contender("second", dying(kill))
    first.write()
    begin = first.steps
    first.ahead = lambda _: second.open() if first.steps == begin + at else None
    act(first)
    first.ahead = nothing
    first.leave()
    second.leave()
    return contest, second


EVERY = 1000
"""One state of so many is opened, and that is cut, too."""


@pytest.mark.parametrize(
    ("habit", "stride"),
    [
        (leaves, 30),
        (writes_before_changes, 30),
        *(pytest.param(habit, 1, marks=pytest.mark.slow) for habit in HABITS),
    ],
)
def test_nothing_is_lost_where_the_power_goes_during_or_after_a_takeover(
    habit: Habit, stride: int
) -> None:
    """Of the cuts within bytes one of so many is tried."""
    seen, found = Seen(), list[str]()
    for kill, contest in [(0, taken(habit, 0)[0]), *killed(habit)]:
        for state in some_states(contest.disk, seen, stride):
            for bad in lost(state.image, state.marks):
                found.append(f"killed before change {kill}, {told(state)}: {bad}")
    assert found[:5] == []
    assert seen.counts["crash during recovery"] > 1000


def some_states(disk: RecordingDisk, seen: Seen, stride: int) -> Iterator[CrashState]:
    for number, state in enumerate(crash_states(disk, seen=seen)):
        if number % stride == 0 or state.kind != "byte cut" or state.lost.startswith("nothing"):
            yield state
        if number % EVERY == 0:
            yield from islice(recovery_states(state, try_to_open, seen=seen), 0, None, stride)


def try_to_open(disk: RecordingDisk) -> None:
    with suppress(NotFound):  # while the first batch is not durable
        reopen(disk)


def told(state: CrashState) -> str:
    return f"{state.kind} after {state.at} operations, lost: {state.lost}"


@pytest.mark.parametrize("habit", HABITS)
def test_of_two_takeovers_at_once_one_goes_on_at_most_and_nothing_is_lost(habit: Habit) -> None:
    found, at = list[str](), 1
    while (race := raced(habit, at_step(at))).has_begun:
        found += [f"at operation {at}: {bad}" for bad in race.problems()]
        at += 1
    assert at > 20
    assert found[:5] == []


def at_step(at: int) -> When:
    return lambda second: second.steps == at


def at_change(at: int) -> When:
    return lambda second: second.changes == at


def raced(habit: Habit, when: When, kill: int = 0) -> Race:
    """A third program takes the session within the second's takeover, and is killed or not."""
    race = Race(habit, dying(kill))
    race.second.ahead = meanwhile(race.contest.first, habit, race.joining(when))
    race.second.open()
    return race


@pytest.mark.parametrize("habit", [rests, leaves])
def test_nothing_is_lost_where_one_of_two_takeovers_is_killed(habit: Habit) -> None:
    found, at = list[str](), 1
    while raced(habit, at_change(at)).has_begun:
        for kill in count(1):
            race = raced(habit, at_change(at), kill)
            if not race.third.is_dead:
                break
            found += [f"at change {at}, killed before its {kill}: {bad}" for bad in race.problems()]
        at += 1
    assert at > 8
    assert found[:5] == []


@pytest.mark.parametrize("habit", [rests, pytest.param(leaves, marks=pytest.mark.slow)])
def test_nothing_is_lost_where_two_takeovers_stop_and_go_on_in_turn(habit: Habit) -> None:
    found = list[str]()
    changes = range(1, taken(rests, 0)[1].changes + 1)
    for at, then in product(changes, changes):
        race = Race(habit)
        second, third = Stoppable(race.second, at), Stoppable(race.third, then)
        second.start()
        race.contest.unlock()
        third.start()
        second.go_on()
        race.second.leave()
        third.go_on()
        found += [f"stopped before changes {at} and {then}: {bad}" for bad in race.problems()]
    assert found[:5] == []
