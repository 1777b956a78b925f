"""A program is killed at any change to the disk, another goes on, and then the power fails.

A kill loses nothing by itself: what was written is still to be synced, by whoever comes next.
"""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count, islice

import attrs
import pytest

from refold.faults import (
    FOLDER,
    CrashState,
    Journal,
    RecordingDisk,
    check_promises,
    crash_states,
)
from refold.runtime.storage import JsonlFolder, NotFound, Port, SessionHeader
from tests.crash.checking import Checker
from tests.crash.recordings import SESSION, record
from tests.runtime.storage.logs import HEADER, PowerCut, cut_at, event

pytestmark = pytest.mark.crash

EVERY = 53
"""One state of so many is looked at."""


def live(disk: RecordingDisk, port: Port) -> None:
    """Write to a session, fork it once it can be, and note what was acknowledged."""
    folder = JsonlFolder(FOLDER, port)
    try:
        log = folder.open("demo")
    except NotFound:
        log = folder.create(HEADER)
    first = log.next_seq
    made = [event(first), event(first + 1), event(first + 2, "turn/end")]
    log.append(made[:2])
    log.sync()
    acknowledge(disk, made[:2], first)
    log.append(made[2:])
    log.close()
    acknowledge(disk, made[2:], first + 2)
    folder.fork("demo", None, SessionHeader(f"twin{first}", 1))
    for record_ in folder.read(f"twin{first}").records:
        disk.acknowledge(f"twin{first}", record_.seq, record_.encoded)


def acknowledge(disk: RecordingDisk, events: list[bytes], seq: int) -> None:
    for place, encoded in enumerate(events, seq):
        disk.acknowledge("demo", place, encoded)


def check(state: CrashState) -> None:
    folder = JsonlFolder(FOLDER, state.disk())
    for session in folder.list():
        folder.open(session).close()
    broken = check_promises(folder, Journal.of(state.marks))
    assert broken == [], f"{state.kind} after {state.at} operations, lost: {state.lost}"


def test_what_a_killed_writer_left_unsynced_is_made_safe_by_the_next() -> None:
    for step in count():
        disk, is_whole = RecordingDisk(), False
        with suppress(PowerCut):
            live(disk, cut_at(disk, step))
            is_whole = True
        disk.kill()
        live(disk, disk)
        for state in islice(crash_states(disk), step % EVERY, None, EVERY):
            check(state)
        if is_whole:
            return


@pytest.mark.parametrize("seed", [0, 1])
def test_a_repair_that_was_killed_at_any_step_still_reports_what_was_cut(seed: int) -> None:
    recorded, chance = record("tools", seed).disk, random.Random(seed)
    checker = Checker(recorded)
    states = list(crash_states(recorded, kinds=["byte cut", "torn sector"]))
    for state in chance.sample([state for state in states if state.marks], 2):
        checker.recover(state.disk())
        for step in count():
            disk, is_whole = state.disk(), False
            with suppress(PowerCut):
                JsonlFolder(FOLDER, cut_at(disk, step)).open(SESSION)
                is_whole = True
            disk.kill()
            checker.recover_again(disk)
            for again in islice(crash_states(disk), step % EVERY, None, EVERY):
                told = attrs.evolve(again, marks=[*state.marks, *again.marks])
                assert checker.recovery_problem(told) is None, (state.lost, again.lost)
            if is_whole:
                break
