"""A program that writes sessions is killed at any instant: what was acknowledged is there.

A run is a session (and its forks) with one to four lives that are killed and a last one that is
not. How many seconds of runs there are on each store says `REFOLD_KILL_SECONDS`.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from refold.faults import ForkServer, Journal, Kill, Life, kill
from refold.runtime.envelope import decode_line
from refold.runtime.events import SessionRecovered, TurnEnd
from refold.runtime.rules import broken_rules
from refold.runtime.storage import Record
from refold.runtime.verify import verify_requests
from tests.agents import assert_within_rules
from tests.crash import writing
from tests.crash.places import KINDS, Place, journal_of

pytestmark = pytest.mark.crash

SECONDS = float(os.environ.get("REFOLD_KILL_SECONDS", "30"))
RUNS_BY_HAND = 1000
MOST_LIES = 200
MOST_KILLS = 4
HOME = writing.__name__
SESSION = "killed"
SELDOM = {"park": "park", "close": "close", "fork": "fork", "at length": "prompt_at_length"}
"""What a writer says as it begins to do what it does seldom, and what that is."""

PAGES = {"many pages": "prompt_at_length"}
"""It sees its own large writes, but not those that SQLite makes."""


@attrs.define
class Count:
    """What was tried, and what was seen on the way."""

    runs: int = 0
    kills: int = 0
    sessions: int = 0
    events_acknowledged: int = 0
    torn_tails: int = 0
    interrupted_turns: int = 0
    requests_rebuilt: int = 0
    killed_after: Counter[str] = attrs.field(factory=Counter)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(HOME, "refold.actors.runtime") as server:
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def drawn(chance: random.Random, kind: str) -> tuple[str, Kill]:
    """What the program is to do besides, and when to kill it: at any instant, or as it does it."""
    if chance.random() < 0.5:
        return "", Kill.drawn(chance, lines=chance.choice([0, 20, 100]), seconds=0.01)
    seldom = SELDOM if kind == "sqlite" else SELDOM | PAGES
    begun = chance.choice([*seldom])
    return seldom[begun], Kill(b'{"writing": "%s"' % begun.encode(), 0.01 * chance.random() ** 2)


def run(server: ForkServer, place: Place, seed: int, counted: Count) -> None:
    """One session through its lives, and what must hold of it after each."""
    chance, journal = random.Random(seed), Journal()
    for life in range(chance.randint(1, MOST_KILLS)):
        wanted, when = drawn(chance, place.kind)
        program = server.start(f"{HOME}:write", place.store, SESSION, f"{seed}.{life}", wanted)
        ended = kill(program, when)
        assert ended.killed
        note(journal, ended, counted)
        assert place.broken_promises(journal) == []
        for session in journal.said:
            assert broken_rules(attrs.evolve(place, session=session).events()) == []
        counted.kills += 1
    ended = server.start(f"{HOME}:finish", place.store, SESSION).end()
    assert ended.status == 0
    assert place.broken_promises(journal) == []
    finished = [json.loads(line) for line in ended.lines]
    assert {SESSION, *journal.said} <= {told["finished"] for told in finished}
    for told in finished:
        assert told["reason"] == "completed"
        check_whole(attrs.evolve(place, session=told["finished"]).records(), counted)
    counted.runs += 1
    counted.events_acknowledged += sum(map(len, journal.said.values()))


def note(journal: Journal, life: Life, counted: Count) -> None:
    """Keep what a life was told; what is told twice was the same."""
    for session, said in journal_of(life.lines).said.items():
        known = journal.said.setdefault(session, {})
        assert all(known.get(seq, crc) == crc for seq, crc in said.items())
        known |= said
    done = [json.loads(line) for line in life.lines if line[:1] == b"{"]
    counted.killed_after[done[-1].get("writing", "opened") if done else "start"] += 1


def check_whole(records: list[Record], counted: Count) -> None:
    """A log that nobody killed last: balanced, and every request in it rebuilds."""
    events = [decode_line(record.encoded) for record in records]
    assert_within_rules(events)
    verdicts = [*verify_requests(records)]
    assert verdicts
    assert all(verdict.verified for verdict in verdicts), verdicts
    counted.sessions += 1
    counted.requests_rebuilt += len(verdicts)
    for event in events:
        counted.torn_tails += isinstance(event.data, SessionRecovered)
        if isinstance(event.data, TurnEnd):
            counted.interrupted_turns += event.data.reason.kind == "interrupted"


def test_what_a_killed_writer_was_told_is_there(
    server: ForkServer,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted, until = Count(), time.monotonic() + SECONDS
    while time.monotonic() < until or not counted.interrupted_turns:
        place = Place(kind, tmp_path / str(counted.runs), SESSION)
        run(server, place, counted.runs, counted)
    tell(counted, capsys)


@pytest.mark.slow
def test_what_a_writer_was_told_is_there_after_a_thousand_runs(
    server: ForkServer,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted = Count()
    for seed in range(1_000_000, 1_000_000 + RUNS_BY_HAND):
        run(server, Place(kind, tmp_path / str(seed), SESSION), seed, counted)
    assert counted.torn_tails or kind == "sqlite"
    tell(counted, capsys)


def test_a_writer_that_acknowledges_too_early_is_caught(
    server: ForkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bug is planted in the program: events are told as safe before they are written."""
    for seed in range(MOST_LIES):
        place, chance = Place("jsonl", tmp_path / str(seed), SESSION), random.Random(seed)
        program, journal = server.start(f"{HOME}:boast", place.store, SESSION, str(seed)), Journal()
        note(
            journal,
            kill(program, Kill(b'{"writing": "at length', chance.uniform(0, 0.01))),
            Count(),
        )
        if problems := place.broken_promises(journal):
            tell(f"the lie was found at kill {seed + 1}: {problems[0]}", capsys)
            return
    pytest.fail(f"{MOST_LIES} kills did not find the lie")


def tell(counted: Count | str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{counted}")  # noqa: T201 - how much was tried is the test's other result
