"""A program that accepts prompts is ended at any instant: each is answered once all the same.

A run is a session with one to three lives that are ended, by SIGKILL or, politely, by SIGTERM, or
by both, and a last one that is not. How many seconds of runs there are says `REFOLD_KILL_SECONDS`.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Literal, get_args

import attrs
import pytest

from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import AssistantMessage, InboxQueued, TurnEnd, TurnStart, UserMessage
from refold.runtime.messages import text_of, tool_calls
from refold.runtime.prompt_ledger import CUT
from refold.runtime.storage.jsonl.folder import JsonlFolder
from refold.runtime.verify import verify_requests
from tests.agents import assert_within_rules

pytestmark = pytest.mark.crash

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
MOST_KILLS = 3
"""A turn that was interrupted once and in two recoveries has a third recovery coming."""

SECONDS = float(os.environ.get("REFOLD_KILL_SECONDS", "20"))
FIRST = int(os.environ.get("REFOLD_KILL_FIRST", "5000"))
SESSION = "killed"


@attrs.define
class Count:
    runs: int = 0
    kills: int = 0
    interrupted: int = 0
    disposed: int = 0
    prompts: int = 0


def start(store: Path, life: int, keys: list[str], *last: str) -> Popen[bytes]:
    program = [sys.executable, "-P", "-m", "tests.crash.prompting"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [str(store), SESSION, str(life), *last]
    process = Popen([*program, *arguments], stdin=PIPE, stdout=PIPE, env=environment)
    assert process.stdin
    process.stdin.write("\n".join(keys).encode())
    process.stdin.close()
    process.stdin = None  # what `communicate` would want to close again
    return process


def said(output: bytes) -> list[dict[str, str | int]]:
    """What a program said; a line that the kill tore was not said."""
    return [json.loads(line) for line in output.split(b"\n")[:-1]]


Death = Literal["kill", "term", "term, then kill"]
DEATHS = get_args(Death)


def ended_life(
    store: Path, life: int, keys: list[str], chance: random.Random, death: Death
) -> bytes:
    """Run a life and end it at some instant after its start, mostly once it has opened."""
    process = start(store, life, keys)
    assert process.stdout
    with process:
        try:
            if chance.random() < 0.8:
                ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
                assert ready, "the program did not open its session"
            with suppress(TimeoutExpired):
                process.wait(chance.uniform(0, 0.3))
            if death != "kill":
                process.terminate()
            if death == "term":
                assert process.wait(PATIENCE) in (0, -signal.SIGTERM)  # that before it can drain
            elif death == "term, then kill":
                with suppress(TimeoutExpired):
                    process.wait(chance.uniform(0, 0.2))
        finally:
            process.kill()
        return process.stdout.read()


def last_life(store: Path, life: int, keys: list[str]) -> bytes:
    """Run a life that is not killed, to its own end."""
    process = start(store, life, keys, "last")
    with process:
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0
    return output


def run(store: Path, seed: int, counted: Count, deaths: Sequence[Death]) -> None:
    """One session through its lives, and what must hold of it."""
    chance, accepted, kills = random.Random(seed), dict[str, int](), 0
    for kills in range(1, chance.randint(1, MOST_KILLS) + 1):
        death = chance.choice(deaths)
        note(accepted, said(ended_life(store, kills, [*accepted], chance, death)))
    words = said(last_life(store, kills + 1, [*accepted]))
    note(accepted, words)
    events = checked_events(store)
    assert_each_is_kept(events, accepted)
    answered = {str(word["answered"]): word for word in words if "answered" in word}
    assert answered.keys() == accepted.keys()
    for seq, turn, reason in answering_turns(events):
        key = events[seq].data.idempotency_key
        if key in answered:
            assert answered[key] == {"answered": key, "turn": turn, "reason": reason}
    counted.runs += 1
    counted.kills += kills
    counted.interrupted += sum(turn.reason == "interrupted" for turn in turns_of(events))
    counted.disposed += sum(turn.reason == "disposed" for turn in turns_of(events))
    counted.prompts += len(accepted)


def note(accepted: dict[str, int], words: list[dict[str, str | int]]) -> None:
    """Keep what a life accepted; a repeat has the seq of the first time."""
    for word in words:
        if "key" in word:
            seq = int(word["seq"])
            assert accepted.setdefault(str(word["key"]), seq) == seq


def checked_events(store: Path) -> list[Event]:
    records = JsonlFolder(store).read(SESSION).records
    events = [decode_line(record.encoded) for record in records]
    assert_within_rules(events)
    verdicts = [*verify_requests(records)]
    assert all(verdict.verified for verdict in verdicts), verdicts
    return events


def assert_each_is_kept(events: list[Event], accepted: dict[str, int]) -> None:
    """Every accepted prompt has one entry, where it was said to be, and one message."""
    queued = [event for event in events if isinstance(event.data, InboxQueued)]
    places = {event.data.idempotency_key: event.seq for event in queued}
    assert len(places) == len(queued)
    assert accepted.items() <= places.items()
    claims = [event for event in events if isinstance(event.data, UserMessage)]
    cited = Counter(seq for event in claims for seq in event.source_event_seqs or ())
    assert cited == {event.seq: 1 for event in queued}
    texts = sorted(text_of(event.data.content) for event in claims)
    assert texts == sorted(f"prompt {key};" for key in places)


@attrs.define
class TurnSeen:
    """What set a turn off, why it ended, what it claimed, and whether the model finished."""

    trigger: str
    reason: str = ""
    claimed: list[int] = attrs.field(factory=list)
    answered: bool = False


def turns_of(events: list[Event]) -> Iterator[TurnSeen]:
    turn = TurnSeen("")
    for event in events:
        match event.data:
            case TurnStart():
                turn = TurnSeen(event.data.trigger.kind)
            case UserMessage():
                turn.claimed.extend(event.source_event_seqs or ())
            case AssistantMessage(content=content, interrupted=interrupted):
                turn.answered = not interrupted and not tool_calls(content)
            case TurnEnd():
                turn.reason = event.data.reason.kind
                yield turn


def answering_turns(events: list[Event]) -> Iterator[tuple[int, int, str]]:
    """Each entry with the one turn that finished its answer, by itself or as a recovery.

    An end between an answer and the end of its turn leaves a turn that was cut and answered.
    """
    owed: list[int] = []
    for number, turn in enumerate(turns_of(events), 1):
        assert turn.trigger == ("recovery" if owed else "message"), f"turn {number}"
        owed += turn.claimed
        if turn.answered:
            yield from ((seq, number, turn.reason) for seq in owed)
            owed = []
        assert turn.reason in CUT or (turn.reason == "completed" and turn.answered)
    assert owed == [], "these were never answered"


def test_prompts_of_a_program_that_is_killed_are_answered_exactly_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted, until = Count(), time.monotonic() + SECONDS
    while time.monotonic() < until or not counted.interrupted:
        run(tmp_path / str(counted.runs), counted.runs, counted, ["kill"])
    tell(counted, capsys)


def test_prompts_of_a_program_that_is_ended_in_any_way_are_answered_exactly_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted, until = Count(), time.monotonic() + SECONDS
    while time.monotonic() < until or not counted.disposed:
        run(tmp_path / str(counted.runs), FIRST + counted.runs, counted, DEATHS)
    tell(counted, capsys)


@pytest.mark.slow
def test_prompts_of_a_program_that_is_killed_hundreds_of_times_are_answered_exactly_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = Count()
    for seed in range(1000, 1500):
        run(tmp_path / str(seed), seed, counted, DEATHS if seed % 2 else ["kill"])
    tell(counted, capsys)


def tell(counted: Count, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{counted}")  # noqa: T201 - how much was tried is the test's other result
