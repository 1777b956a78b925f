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
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from refold.faults import BrokenPromise, ForkServer, Journal, Kill, Life, check_promises, kill
from runtime.envelope import decode_line
from runtime.events import SessionRecovered, TurnEnd
from runtime.rules import broken_rules
from runtime.storage import Record
from runtime.storage.sessions import open_sessions
from runtime.verify import verify_requests
from tests.agents import assert_within_rules
from tests.crash import writing

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


@attrs.frozen
class Stores:
    """How the store of a run is named, given its folder, and what kills wait for."""

    name: Callable[[Path], str]
    seldom: dict[str, str]


STORES = {
    "jsonl": Stores(str, SELDOM | PAGES),
    "sqlite": Stores(lambda folder: f"sqlite:///{folder}/sessions.db", SELDOM),
}


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
    with ForkServer(HOME, "actors.runtime") as server:
        yield server


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest) -> Stores:
    return STORES[request.param]


def drawn(chance: random.Random, seldom: dict[str, str]) -> tuple[str, Kill]:
    """What the program is to do besides, and when to kill it: at any instant, or as it does it."""
    if chance.random() < 0.5:
        return "", Kill.drawn(chance, lines=chance.choice([0, 20, 100]), seconds=0.01)
    begun = chance.choice([*seldom])
    return seldom[begun], Kill(b'{"writing": "%s"' % begun.encode(), 0.01 * chance.random() ** 2)


def run(server: ForkServer, stores: Stores, folder: Path, seed: int, counted: Count) -> None:
    """One session through its lives, and what must hold of it after each."""
    store, chance, journal = stores.name(folder), random.Random(seed), Journal()
    for life in range(chance.randint(1, MOST_KILLS)):
        wanted, when = drawn(chance, stores.seldom)
        program = server.start(f"{HOME}:write", store, SESSION, f"{seed}.{life}", wanted)
        ended = kill(program, when)
        assert ended.killed
        note(journal, ended, counted)
        assert broken_promises(store, journal) == []
        for session in journal.said:
            assert broken_rules([decode_line(r.encoded) for r in read(store, session)]) == []
        counted.kills += 1
    ended = server.start(f"{HOME}:finish", store, SESSION).end()
    assert ended.status == 0
    assert broken_promises(store, journal) == []
    finished = [json.loads(line) for line in ended.lines]
    assert {SESSION, *journal.said} <= {told["finished"] for told in finished}
    for told in finished:
        assert told["reason"] == "completed"
        check_whole(read(store, told["finished"]), counted)
    counted.runs += 1
    counted.events_acknowledged += sum(map(len, journal.said.values()))


def note(journal: Journal, life: Life, counted: Count) -> None:
    """Keep what a life was told; what is told twice was the same."""
    told = Journal.read(b"".join(b"%s\n" % line for line in life.lines if line[:1] == b"["))
    for session, said in told.said.items():
        known = journal.said.setdefault(session, {})
        assert all(known.get(seq, crc) == crc for seq, crc in said.items())
        known |= said
    done = [json.loads(line) for line in life.lines if line[:1] == b"{"]
    counted.killed_after[done[-1].get("writing", "opened") if done else "start"] += 1


def broken_promises(store: str, journal: Journal) -> list[BrokenPromise]:
    with closing(open_sessions(store)) as sessions:
        return check_promises(sessions, journal)


def read(store: str, session: str) -> list[Record]:
    with (
        closing(open_sessions(store)) as sessions,
        closing(sessions.reader(session)) as reader,
    ):
        return reader.read_new()


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
    stores: Stores,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted, until = Count(), time.monotonic() + SECONDS
    while time.monotonic() < until or not counted.interrupted_turns:
        run(server, stores, tmp_path / str(counted.runs), counted.runs, counted)
    tell(counted, capsys)


@pytest.mark.slow
def test_what_a_writer_was_told_is_there_after_a_thousand_runs(
    server: ForkServer,
    stores: Stores,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted = Count()
    for seed in range(1_000_000, 1_000_000 + RUNS_BY_HAND):
        run(server, stores, tmp_path / str(seed), seed, counted)
    assert counted.torn_tails or "many pages" not in stores.seldom
    tell(counted, capsys)


def test_a_writer_that_acknowledges_too_early_is_caught(
    server: ForkServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bug is planted in the program: events are told as safe before they are written."""
    for seed in range(MOST_LIES):
        store, chance, journal = str(tmp_path / str(seed)), random.Random(seed), Journal()
        program = server.start(f"{HOME}:boast", store, SESSION, str(seed))
        note(
            journal,
            kill(program, Kill(b'{"writing": "at length', chance.uniform(0, 0.01))),
            Count(),
        )
        if problems := broken_promises(store, journal):
            tell(f"the lie was found at kill {seed + 1}: {problems[0]}", capsys)
            return
    pytest.fail(f"{MOST_LIES} kills did not find the lie")


def tell(counted: Count | str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{counted}")  # noqa: T201 - how much was tried is the test's other result
