"""The killer: what it reads, when it kills, and that nothing is left of what it started."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from refold.faults import ForkServer, Kill, Life, OutOfPatience, Program, kill, start_program
from tests.refold.faults import programs

pytestmark = pytest.mark.crash

HOME = programs.__name__

Starter = Callable[..., Program]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(HOME) as server:
        yield server


@pytest.fixture(params=["forked", "command"])
def launch(request: pytest.FixtureRequest, server: ForkServer) -> Starter:
    """Both ways to start one of the programs."""

    def forked(name: str, *arguments: str) -> Program:
        return server.start(f"{HOME}:{name}", *arguments)

    def command(name: str, *arguments: str) -> Program:
        code = f"import {HOME} as p, sys; p.{name}(*sys.argv[1:])"
        path = os.pathsep.join(sys.path)
        return start_program(
            [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": path}
        )

    return forked if request.param == "forked" else command


def test_a_program_is_killed_after_so_many_lines(launch: Starter) -> None:
    life = kill(launch("count", "50"), Kill(50))
    assert life == Life(b"".join(b"%d\n" % n for n in range(50)), b"", -signal.SIGKILL)
    assert life.killed
    assert life.lines[-1] == b"49"


def test_a_program_is_killed_after_a_line_and_some_time(launch: Starter) -> None:
    begun = time.monotonic()
    life = kill(launch("count", "8"), Kill(b"7", 0.2))
    assert time.monotonic() - begun >= 0.2
    assert len(life.lines) == 8


def test_what_the_kill_cut_off_was_not_said(launch: Starter) -> None:
    program = launch("tear")
    program.wait_for(b"whole")
    program.listen(0.05)
    assert program.kill() == Life(b"whole\n", b"hal", -signal.SIGKILL)


def test_a_program_that_ends_before_its_instant_is_not_killed(launch: Starter) -> None:
    life = kill(launch("flood", "1000"), Kill(10_000, 60))
    assert (len(life.lines), life.status, life.killed) == (1000, 0, False)


def test_a_stopped_program_says_nothing_until_it_goes_on(launch: Starter) -> None:
    with launch("stop_itself") as program:
        program.wait_stopped()
        program.listen(0.05)
        assert program.said == [b"stopping"]
        program.go_on()
        assert program.end().lines == [b"stopping", b"went on"]


def test_a_program_can_be_stopped_from_outside(server: ForkServer) -> None:
    with server.start(f"{HOME}:count", "100000") as program:
        program.wait_for(10)
        program.stop()
        program.listen(0)
        said = len(program.said)
        program.listen(0.05)
        assert len(program.said) == said
        program.go_on()
        program.wait_for(said + 1)


def test_nobody_waits_for_a_child_that_keeps_the_output_open(launch: Starter) -> None:
    begun = time.monotonic()
    assert launch("leave_a_child").end() == Life(b"leaving\n", b"", 0)
    assert time.monotonic() - begun < 2


def test_waiting_for_what_never_comes_has_an_end(server: ForkServer) -> None:
    program = server.start(f"{HOME}:count", "3")
    with pytest.raises(OutOfPatience, match="did not say 4"):
        kill(program, Kill(4), patience=0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


def test_an_instant_follows_its_seed() -> None:
    def drawn(seed: int) -> Kill:
        return Kill.drawn(random.Random(seed), lines=100, seconds=0.5)

    assert drawn(1) == drawn(1)
    instants = [drawn(seed) for seed in range(1000)]
    assert {instant.after for instant in instants} == {*range(101)}
    assert max(instant.seconds for instant in instants) <= 0.5


def test_a_program_that_raises_has_a_status_of_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with ForkServer() as server:
        assert server.start(f"{HOME}:fail").end() == Life(b"", b"", 1)
    assert capfd.readouterr().err.endswith("ValueError: as it was told\n")


def test_forked_programs_draw_other_numbers(server: ForkServer) -> None:
    first, second = (server.start(f"{HOME}:draw").end() for _ in range(2))
    assert first.output != second.output


def test_the_server_ends_with_its_block_and_its_programs_with_it() -> None:
    with ForkServer(HOME) as server:
        program = server.start(f"{HOME}:count", "1")
        parent = int(server.start(f"{HOME}:say_modules").end().lines[0].split()[1])
        program.wait_for(1)
    for pid in (program.pid, parent):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_module_that_starts_a_thread_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="standard error says why"):
        ForkServer("tests.refold.faults.threaded")
    assert "must have one thread" in capfd.readouterr().err


def test_a_forked_run_costs_no_interpreter(server: ForkServer) -> None:
    begun = time.process_time()
    for _ in range(20):
        server.start(f"{HOME}:draw").end()
    assert time.process_time() - begun < 1
