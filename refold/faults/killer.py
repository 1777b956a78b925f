"""Killing real processes at instants drawn from a seed.

A program is started, what it says on its standard output is read all the while, and at its
instant it is killed with SIGKILL. What it had said by then is told to whoever waits:

    with ForkServer("my_program") as server:
        for seed in range(1000):
            program = server.start("my_program:main", store, str(seed))
            life = kill(program, Kill.drawn(random.Random(seed), lines=50, seconds=0.01))
            problems = check_promises(store, Journal.read(life.output))

`start_program` starts any command, at the cost of an interpreter where it is one of Python's. A
`ForkServer` has imported what the program needs once and makes each run a fork. For Linux.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from subprocess import DEVNULL, Popen
from types import TracebackType
from typing import Self

import attrs

PATIENCE = 60.0
"""Seconds that a program may take for what is waited for."""

STOPPING_SECONDS = 0.001
"""Between two looks at whether a program has stopped, which nothing announces."""


class OutOfPatience(Exception):
    """A program that neither said what was waited for nor ended."""


@attrs.frozen
class Kill:
    """When to kill: `seconds` after the program has said so many lines, or one line.

    `after` is a number of lines, or the bytes that a line begins with.
    """

    after: int | bytes = 0
    seconds: float = 0.0

    @classmethod
    def drawn(cls, chance: Random, *, lines: int, seconds: float) -> Kill:
        """An instant after 0 to `lines` lines and up to `seconds` more."""
        return cls(chance.randint(0, lines), chance.uniform(0, seconds))


@attrs.frozen
class Life:
    """What came of a program that has ended.

    `output` holds the whole lines that it said; `torn` is what stood behind the last newline, cut
    off by the kill. `status` is its exit status, or minus the number of the signal that ended it.
    """

    output: bytes
    torn: bytes
    status: int

    @property
    def lines(self) -> list[bytes]:
        """The whole lines, without their newlines."""
        return self.output.split(b"\n")[:-1]

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Program:
    """A running program, held by a descriptor that no other process can come to stand behind.

    Leaving its `with` block kills it. Made by `start_program` and `ForkServer.start`.
    """

    def __init__(self, pid: int, output: int, reap: Callable[[], int]) -> None:
        """Takes over `output`, the end of a pipe; `reap` waits for the end, gives the status."""
        self.pid = pid
        self._process = os.pidfd_open(pid)  # not reaped yet, so the number is still its own
        self._output, self._reap = output, reap
        self._said = b""
        self._life: Life | None = None
        os.set_blocking(output, False)

    @property
    def said(self) -> list[bytes]:
        """The whole lines that were read so far, without their newlines."""
        return self._said.split(b"\n")[:-1]

    def wait_for(self, after: int | bytes, patience: float = PATIENCE) -> None:
        """Read until it has said so many lines, or one that begins so, or until it has ended.

        Raises `OutOfPatience`.
        """
        if not self._read_until(lambda: self._has_said(after), patience):
            raise OutOfPatience(f"the program {self.pid} did not say {after!r}: {self.said[-3:]}")

    def listen(self, seconds: float) -> None:
        """Read for some time, or until it has ended."""
        self._read_until(lambda: False, seconds)

    def stop(self, patience: float = PATIENCE) -> None:
        """SIGSTOP it, and return once none of its threads runs; raises `OutOfPatience`."""
        signal.pidfd_send_signal(self._process, signal.SIGSTOP)
        self.wait_stopped(patience)

    def wait_stopped(self, patience: float = PATIENCE) -> None:
        """Return once it is stopped, by whomever, or has ended; raises `OutOfPatience`."""
        late = time.monotonic() + patience
        while not (_is_stopped(self.pid) or self._has_ended()):
            if time.monotonic() > late:
                raise OutOfPatience(f"the program {self.pid} did not stop")
            time.sleep(STOPPING_SECONDS)

    def go_on(self) -> None:
        """SIGCONT it."""
        signal.pidfd_send_signal(self._process, signal.SIGCONT)

    def kill(self) -> Life:
        """SIGKILL it, unless it has ended; returns what came of it."""
        if self._life is None:
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        return self.end()

    def end(self, patience: float = PATIENCE) -> Life:
        """Wait until it ends by itself, and return what came of it; raises `OutOfPatience`."""
        if self._life is None:
            if not self._read_until(self._has_ended, patience):
                raise OutOfPatience(f"the program {self.pid} did not end: {self.said[-3:]}")
            self._read()
            status = self._reap()
            os.close(self._output)
            os.close(self._process)
            whole, newline, torn = self._said.rpartition(b"\n")
            self._life = Life(whole + newline, torn, status)
        return self._life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _has_said(self, after: int | bytes) -> bool:
        if isinstance(after, int):
            return self._said.count(b"\n") >= after
        begin = (b"\n" + self._said).find(b"\n" + after)
        return begin >= 0 and b"\n" in self._said[begin:]

    def _has_ended(self) -> bool:
        return bool(select.select([self._process], [], [], 0)[0])

    def _read_until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Read until `reached` or the program's end; False when the time ran out before."""
        late, sources = time.monotonic() + seconds, [self._output, self._process]
        while not reached():
            left = late - time.monotonic()
            ready, _, _ = select.select(sources, [], [], max(0, left))
            if self._output in ready and not self._read():
                sources.remove(self._output)  # it has closed its output, and may go on
            elif ready == [self._process]:
                return True
            elif left <= 0:
                return False
        return True

    def _read(self) -> bool:
        """Take what it has said; False at the end of its output."""
        try:
            while part := os.read(self._output, 1 << 16):
                self._said += part
        except BlockingIOError:
            return True
        return False


def start_program(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Program:
    """Start a command, its input empty; `env` is what it has of the environment, by default all.

    Raises `OSError` where it cannot be started.
    """
    output, theirs = os.pipe()
    try:
        process = Popen(command, stdin=DEVNULL, stdout=theirs, env=env)  # noqa: S603 - as told
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(theirs)
    return Program(process.pid, output, process.wait)


def kill(program: Program, when: Kill, patience: float = PATIENCE) -> Life:
    """Kill a program at its instant and return what came of it.

    One that ends before is not killed. Raises `OutOfPatience` where it does not say in time what
    the instant is counted from; it is killed even so.
    """
    with program:
        program.wait_for(when.after, patience)
        program.listen(when.seconds)
        return program.kill()


def _is_stopped(pid: int) -> bool:
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        # The state is what follows the name, which stands in brackets and may hold any.
        states = [(t / "stat").read_bytes().rpartition(b")")[2].split()[0] for t in threads]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(state == b"T" for state in states)
