"""Every state that a crash may leave of scripted sessions opens, and nothing acknowledged is lost.

How many seconds are spent on it says `REFOLD_CRASH_SECONDS`; by hand everything is tried.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice, takewhile
from multiprocessing import get_context
from typing import Any

import attrs
import pytest
import trio

import refold
from refold.faults import (
    KINDS,
    CrashState,
    Kind,
    Seen,
    crash_states,
    recorded_store,
    recovery_states,
)
from refold.runtime.storage import NotFound
from tests.agents import assert_sound
from tests.crash.checking import Checker
from tests.crash.recordings import SCENES, model_of, record

pytestmark = pytest.mark.crash

SECONDS = float(os.environ.get("REFOLD_CRASH_SECONDS", "60"))

SMALL = [name for name in SCENES if name != "large"]

EVERY = 3000
"""One state of so many is recovered from, and that recovery is cut, too."""


@attrs.frozen
class Plan:
    """A recording to enumerate; `until` is when to stop, on the monotonic clock."""

    scene: str
    seed: int = 0
    drawn: int = 64
    until: float = float("inf")

    def while_there_is_time(self, states: Iterable[CrashState]) -> Iterator[CrashState]:
        return takewhile(lambda _: time.monotonic() < self.until, states)

    @property
    def kinds(self) -> list[Kind]:
        """What to lose: of large writes the pieces, for their bytes are cut in small ones."""
        return [kind for kind in KINDS if self.scene != "large" or kind != "byte cut"]


def problems(plan: Plan, seen: Seen) -> Iterator[str]:
    """What is wrong with the states of a recording, and of recoveries from some of them."""
    recording = record(plan.scene, plan.seed)
    checker = Checker(recording.disk)
    how: dict[str, Any] = {"kinds": plan.kinds, "seen": seen, "seed": plan.seed}
    states = crash_states(recording.disk, drawn=plan.drawn, **how)
    for number, state in enumerate(plan.while_there_is_time(states)):
        yield from told(plan, state, checker.problem(state))
        if number % EVERY == plan.seed % EVERY:
            after = recovery_states(state, checker.recover, **how)
            for again in plan.while_there_is_time(after):
                yield from told(plan, again, checker.recovery_problem(again))


def told(plan: Plan, state: CrashState, problem: str | None) -> Iterator[str]:
    if problem is not None:
        where = f"{plan.scene} {plan.seed}, {state.kind} after {state.at} operations"
        yield f"{where}, lost: {state.lost}: {problem}"


@pytest.mark.parametrize("scene", SCENES)
def test_whatever_a_crash_leaves_opens_with_everything_acknowledged(
    scene: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, until = Seen(), time.monotonic() + SECONDS / len(SCENES)
    for seed in takewhile(lambda _: time.monotonic() < until, count()):
        assert list(islice(problems(Plan(scene, seed, until=until), seen), 5)) == []
    tell(scene, seen.counts, capsys)
    assert seen.counts["crash during recovery"]


@pytest.mark.parametrize("scene", SMALL)
def test_what_a_crash_leaves_goes_on_with_a_turn_that_can_be_verified(scene: str) -> None:
    disk = record(scene, 1).disk
    for state in islice(crash_states(disk), 17, None, 397):
        trio.run(go_on, state)


async def go_on(state: CrashState) -> None:
    model = model_of(random.Random(state.at))
    async with refold.open(recorded_store(state.disk()), providers=[model]) as runtime:
        for session in await runtime.list():
            try:
                agent = await runtime.resume(session, model="script/m", tools=())
            except NotFound:
                continue
            turn = await agent.ask("what is left?")
            assert turn.reason.kind == "completed"
            assert_sound(runtime, agent)


ENOUGH = {"byte cut": 100_000, "lost block": 100_000, "torn sector": 100_000}
ENOUGH |= {"crash during recovery": 100_000}
ENOUGH_IN_ALL = 2_000_000

_seen = Seen()  # of this process


def work(plan: Plan) -> tuple[Counter[str], list[str]]:
    """The new states of a plan by kind, and what is wrong with the first of them."""
    before = _seen.counts.copy()
    found = list(islice(problems(plan, _seen), 5))
    return _seen.counts - before, found


@pytest.mark.slow
def test_two_million_states_open_with_everything_acknowledged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts, seed = Counter[str](), 0
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        while counts.total() < ENOUGH_IN_ALL or any(counts[kind] < ENOUGH[kind] for kind in ENOUGH):
            plans = [
                Plan(scene, seed + more, 64 if scene in SMALL else 1000)
                for more in range(1, 5)
                for scene in SCENES
            ]
            for new, found in pool.map(work, plans):
                assert found == []
                counts += new
            seed += 4
            tell(f"up to seed {seed}", counts, capsys)


def tell(what: str, counts: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{what}: {counts.total():,} states, {dict(counts)}")  # noqa: T201 - the result
