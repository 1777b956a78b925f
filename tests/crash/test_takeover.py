"""One writer a session, whatever is done to its lock: by force, at once, and after a death."""

from __future__ import annotations

import json
import os
import platform
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from refold.faults import ForkServer, Life, Program
from refold.runtime.rules import broken_rules
from tests.crash import owning
from tests.crash.owning import SESSION
from tests.crash.places import KINDS, Place, journal_of

pytestmark = pytest.mark.crash

HOME = owning.__name__
PROMPTS = 5
"""How many prompts a program leaves before it holds the session."""

SEEDS, SEEDS_BY_HAND = 30, 500
ROUNDS, RACERS = 10, 6
HOLDING = b'{"holding"'


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(HOME, "refold.actors.runtime") as server:
        yield server


def facts(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line[:1] == b"{"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def take_over(server: ForkServer, place: Place, old: Program, *, until_end: bool = False) -> Life:
    """A second program owns the session while the first is stopped; then the first goes on.

    With `until_end` the second has ended by then.
    """
    place.replace_lock()
    with server.start(f"{HOME}:own", place.store, "new", str(PROMPTS)) as new:
        new.wait_for(HOLDING)
        assert "holding" in facts(new.said)[-1]
        if until_end:
            new.kill()
        before = place.raw()
        old.go_on()
        ended = old.end()
        assert place.raw() == before
        assert place.broken_promises(journal_of(new.said)) == []
    return ended


def check_old_owner(place: Place, old: Life) -> str:
    """It said clearly why it ended, and nothing that it was told is missing; the error's name."""
    assert old.status == 0
    *_, told = facts(old.lines)
    assert told["broken"], told
    assert SESSION in told["text"]
    assert place.broken_promises(journal_of(old.lines)) == []
    assert broken_rules(place.events()) == []
    terms = place.terms()
    assert terms == [*range(1, len(terms) + 1)]
    return str(told["failed"])


def test_an_owner_that_was_stopped_anywhere_adds_nothing_after_the_next(
    server: ForkServer, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_owners(server, kind, tmp_path, range(SEEDS), capsys)


@pytest.mark.slow
def test_an_owner_that_was_stopped_within_a_transaction_keeps_the_session(
    server: ForkServer, tmp_path: Path
) -> None:
    """SQLite lets nobody in; after its patience, that is what the next one is told."""
    place = Place("sqlite", tmp_path, SESSION)
    with server.start(f"{HOME}:own", place.store, "old", "1000000") as old:
        old.wait_for(b"[")
        stop(old, place, random.Random(1), locked=True)
        place.replace_lock()
        new = server.start(f"{HOME}:own", place.store, "new", "1").end()
        assert facts(new.lines)[-1]["failed"] == "StoreBusy"
        old.go_on()
        old.wait_for(len(old.said) + 1)
    assert place.broken_promises(journal_of(old.said)) == []
    assert place.terms() == [1]


@pytest.mark.slow
def test_five_hundred_owners_that_were_stopped_add_nothing_after_the_next(
    server: ForkServer, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_owners(server, kind, tmp_path, range(1000, 1000 + SEEDS_BY_HAND), capsys)


def stop(owner: Program, place: Place, chance: random.Random, *, locked: bool = False) -> None:
    """Stop the owner at some instant, within a transaction or not."""
    owner.listen(chance.uniform(0, 0.05))
    owner.stop()
    while place.is_locked() != locked:
        owner.go_on()
        owner.listen(chance.uniform(0, 0.01))
        owner.stop()


def stop_owners(
    server: ForkServer,
    kind: str,
    tmp_path: Path,
    seeds: range,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stop owners at seeded instants, which mostly are between writes."""
    seen = Counter[str]()
    for seed in seeds:
        place, chance = Place(kind, tmp_path / str(seed), SESSION), random.Random(seed)
        with server.start(f"{HOME}:own", place.store, str(seed), "1000000") as old:
            old.wait_for(b"[")
            stop(old, place, chance)
            life = take_over(server, place, old, until_end=seed % 3 == 0)
            seen[check_old_owner(place, life)] += 1
    tell(f"{len(seeds)} stopped owners ended with {dict(seen)}", capsys)


@pytest.mark.parametrize(
    ("call", "share"),
    [*(("pwrite", share) for share in range(5)), ("fdatasync", 0), ("fdatasync", 4)],
)
@pytest.mark.parametrize("nth", [1, 2, 7])
def test_an_owner_that_was_stopped_within_a_write_adds_nothing_after_the_next(
    server: ForkServer, tmp_path: Path, call: str, share: int, nth: int
) -> None:
    arguments = [str(tmp_path), "old", "1000000", call, str(nth), str(share)]
    with server.start(f"{HOME}:own_and_stop", *arguments) as old:
        old.wait_stopped()
        place = Place("jsonl", tmp_path, SESSION)
        check_old_owner(place, take_over(server, place, old))


@pytest.mark.parametrize("share", [0, 4])
def test_what_an_owner_was_told_while_it_was_taken_over_is_there(
    server: ForkServer, tmp_path: Path, share: int
) -> None:
    """The next owner stops before or behind the rename that puts its copy in the log's place."""
    place = Place("jsonl", tmp_path, SESSION)
    with server.start(f"{HOME}:own", place.store, "old", "1000000", "inject") as old:
        old.wait_for(b"[")
        place.replace_lock()
        arguments = [str(tmp_path), "new", str(PROMPTS), "rename", "1", str(share)]
        with server.start(f"{HOME}:own_and_stop", *arguments) as new:
            new.wait_stopped()
            told = len(old.said)
            if share == 0:
                old.wait_for(told + 10)
            new.go_on()
            check_old_owner(place, old.end())
            new.wait_for(HOLDING)
            assert place.broken_promises(journal_of(new.said)) == []


def raced(programs: list[Program], gate: Path) -> list[dict[str, Any]]:
    """Let them go at once; what they said, the last of it being how it went."""
    with ExitStack() as stack:
        for program in programs:
            stack.enter_context(program)
            program.wait_for(b'{"waiting"')
        stack.callback(os.close, os.open(gate, os.O_WRONLY))
        for program in programs:
            program.wait_for(2)
        return [fact for program in programs for fact in facts(program.said)]


def test_of_many_that_resume_at_once_one_wins_and_is_named(
    server: ForkServer, kind: str, tmp_path: Path
) -> None:
    place = Place(kind, tmp_path, SESSION)
    with server.start(f"{HOME}:own", place.store, "first", "1") as first:
        first.wait_for(HOLDING)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    for round_ in range(ROUNDS):
        programs = [server.start(f"{HOME}:race", place.store, str(gate)) for _ in range(RACERS)]
        told = [one for one in raced(programs, gate) if "waiting" not in one]
        (winner,) = [one["won"] for one in told if "won" in one]
        losers = [one for one in told if "busy" in one]
        assert len(losers) == RACERS - 1
        for loser in losers:
            assert (loser["owner"], loser["host"]) == (winner, platform.node())
            assert f"process {winner} on" in loser["text"]
        assert place.terms() == [*range(1, round_ + 3)]


def test_the_session_of_an_owner_that_was_killed_is_free_at_once(
    server: ForkServer, kind: str, tmp_path: Path
) -> None:
    place = Place(kind, tmp_path, SESSION)
    for life in range(20):
        with server.start(f"{HOME}:own", place.store, str(life), "1000000") as program:
            program.wait_for(b"[")
            program.listen(random.Random(life).uniform(0, 0.01))
            assert program.kill().killed
        assert place.broken_promises(journal_of(program.said)) == []
    assert place.terms() == [*range(1, 21)]


def tell(found: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{found}")  # noqa: T201 - how much was tried is the test's other result
