"""One everyday program, interrupted at its every step and between any two lines of refold.

A strike is a real SIGINT. Trio raises its KeyboardInterrupt where it strikes, in code that is not
protected, or else where the main task waits. Whatever it tears, the program ends with a
KeyboardInterrupt and no group, its logs are whole, and each session can be opened again at once,
in this very process.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest
import trio

import refold
import refold.actors
from refold import Call, Say, Script
from refold.actors.stores import Store, open_store
from refold.faults import ForkServer
from tests.agents import assert_within_rules, stored_events

OURS = (str(Path(refold.actors.__file__).parent), str(Path(refold.__file__).parent))
LINES_IN_CI = 60
"""How many of the lines are struck in the everyday run; by hand it is each."""

Where = Path | Store

HANGING = 20
"""Seconds after which a program hangs."""


@refold.tool
async def look() -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return "seen"


def reply(body: Any) -> Any:
    return Call("look", {}) if body["messages"][-1]["role"] == "user" else Say("done")


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Trio takes SIGINT over only from Python's own handler; what hangs fails."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        pytest.fail("the program hangs")

    kept = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGALRM, signal.signal(signal.SIGALRM, hangs)),
    ]
    yield
    for number, handler in kept:
        signal.signal(number, handler)


@contextmanager
def not_hanging() -> Iterator[None]:
    signal.alarm(HANGING)
    try:
        yield
    finally:
        signal.alarm(0)


async def everyday(where: Where) -> None:
    """Start, ask, park, wake, fork, close, resume, delete and leave, in the main task."""
    options: refold.AgentOptions = {"model": "script/m", "tools": [look]}
    async with refold.open(where, providers=[Script(reply)]) as runtime:
        agent = await runtime.start_agent(session_id="first", **options)
        await agent.ask("hello")
        await agent.park()
        await agent.ask("still there?")
        twin = await runtime.fork("first", **options)
        await twin.prompt("go")
        await agent.close()
        agent = await runtime.resume("first", **options)
        await twin.close()
        await runtime.delete(twin.session_id)
        await agent.prompt("one more")


async def assert_opens_again(where: Where) -> None:
    async with refold.open(where, providers=[Script(reply)]) as runtime:
        for session in await runtime.list():
            await (await runtime.resume(session, model="script/m", tools=())).close()
            assert_within_rules(stored_events(runtime, session))


@attrs.define(eq=False)
class StepStrike(trio.abc.Instrument):
    """Strikes before the steps `at` of Trio's tasks."""

    at: tuple[int, ...]
    count: int = 0
    struck: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        if self.count in self.at:
            self.struck += 1
            signal.raise_signal(signal.SIGINT)

    def run(self, where: Where) -> None:
        trio.run(everyday, where, instruments=[self])


@attrs.define(eq=False)
class LineStrike:
    """Strikes before lines of refold's code on this thread, the ones numbered `at`."""

    at: tuple[int, ...]
    count: int = 0
    struck: int = 0

    def trace(self, frame: FrameType, event: str, _given: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.count += 1
            if self.count in self.at:
                self.struck += 1
                signal.raise_signal(signal.SIGINT)
        return self.trace

    def run(self, where: Where) -> None:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            trio.run(everyday, where)
        finally:
            sys.settrace(before)


Strike = Callable[[tuple[int, ...]], StepStrike | LineStrike]


def strike(make: Strike, at: tuple[int, ...], where: Where) -> bool:
    """Run the program, struck at these places: it ends by that, and everything is whole.

    Returns whether it was struck; a run that happened to end before the first place was not.
    """
    with not_hanging():
        striker, interrupted = make(at), False
        try:
            striker.run(where)
        except KeyboardInterrupt:
            interrupted = True
        assert interrupted == bool(striker.struck)
        trio.run(assert_opens_again, where)
    return interrupted


def assert_mostly_struck(struck: list[bool]) -> None:
    """So that programs which always end too early do not pass for programs that survive."""
    assert sum(struck) >= 0.9 * len(struck) > 0


def count(make: Strike, where: Where) -> int:
    """How many places there are in an undisturbed run."""
    striker = make(())
    striker.run(where)
    return striker.count


def test_the_program_survives_an_interrupt_at_its_every_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a store in memory, which has no thread, so that each run has the same steps."""
    steps = count(StepStrike, open_store("memory:"))
    with capsys.disabled():
        sys.stdout.write(f" [{steps} steps]")
    assert steps > 100
    places = range(1, steps - 20)  # the order of tasks is drawn, and with it a few steps
    assert_mostly_struck([strike(StepStrike, (at,), open_store("memory:")) for at in places])


def test_the_program_survives_an_interrupt_while_its_disk_works(tmp_path: Path) -> None:
    steps = count(StepStrike, tmp_path / "whole")
    places = range(1, steps - 20, 9)  # which thread is first makes a few steps more or less
    assert_mostly_struck([strike(StepStrike, (at,), tmp_path / str(at)) for at in places])


def test_the_program_survives_a_second_and_a_third_interrupt(tmp_path: Path) -> None:
    steps = count(StepStrike, tmp_path / "whole")
    places = [(at, at + 3, at + 9) for at in range(5, steps - 20, 23)]
    assert_mostly_struck([strike(StepStrike, at, tmp_path / str(at[0])) for at in places])


def test_the_program_survives_an_interrupt_between_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = count(LineStrike, tmp_path / "whole")
    with capsys.disabled():
        sys.stdout.write(f" [{lines} lines]")
    places = range(7, lines - 100, lines // LINES_IN_CI)
    assert_mostly_struck([strike(LineStrike, (at,), tmp_path / str(at)) for at in places])


@pytest.mark.slow
@pytest.mark.parametrize("make", [StepStrike, LineStrike])
def test_the_program_survives_an_interrupt_everywhere(make: Strike, tmp_path: Path) -> None:
    places = range(1, count(make, tmp_path / "whole") - 100)
    assert_mostly_struck([strike(make, (at,), tmp_path / str(at)) for at in places])


def test_an_interrupt_in_a_callback_that_python_lets_raise_nothing_is_not_lost() -> None:
    with ForkServer("trio", "refold") as server:

        def said(place: int) -> bytes:
            with server.start("tests.actors.finalizers:main", str(place)) as program:
                return program.end().output

        places = int(said(0))
        assert places > 100, "the names of refold are imported in the run"
        few = {*range(1, places, places // 8), *range(places - 5, places + 1)}
        assert {said(place) for place in few} == {b"interrupted\n"}
