"""A real pseudo-terminal with a program in it, driven as a person would drive it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.refold.screen import Screen
from tests.snippets import ROOT

PATIENCE = 120.0
"""Seconds that a test waits for what must come; only one that fails waits so long."""

REFOLD = (sys.executable, "-m", "refold")

# The program must own the terminal, or Ctrl-C would reach nobody. A program of its own does that,
# since code between fork and exec is not safe in a process with threads.
_OWN_THE_TERMINAL = (
    "import fcntl, os, sys, termios; "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """The person's side: `type` keys, `expect` output, `resize`. `output` is all that came.

    `screen` is what it looks like; what a line editor draws is looked for there.
    """

    def __init__(self, process: subprocess.Popen[bytes], fd: int, screen: Screen) -> None:
        self.process, self._fd, self.screen = process, fd, screen
        self.output = ""
        self._seen = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def type(self, keys: str) -> None:
        """Send keys, taking what comes meanwhile, so that neither side waits for the other."""
        data = keys.encode()
        ends = time.monotonic() + PATIENCE
        while data:
            readable, writable, _ = select.select([self._fd], [self._fd], [], PATIENCE)
            if readable:
                self._read()
            if writable:
                data = data[os.write(self._fd, data[:1024]) :]
            assert time.monotonic() < ends, "the program takes no keys"

    def expect(self, text: str) -> str:
        """Wait until `text` has come after what was expected before; returns what preceded it."""
        ends = time.monotonic() + PATIENCE
        while (at := self.output.find(text, self._seen)) < 0:
            assert self._wait(ends), f"{text!r} did not come after {self.output[self._seen :]!r}"
        before = self.output[self._seen : at]
        self._seen = at + len(text)
        return before

    def shows(self, text: str) -> None:
        """Wait until a row of the screen holds `text`, which may stand there already."""
        ends = time.monotonic() + PATIENCE
        while not any(text in line for line in self.screen.lines):
            assert self._wait(ends), f"{text!r} is not shown in {self.screen.lines}"

    def shows_rows(self, rows: list[str], place: slice) -> None:
        """Wait until these rows stand at a place of the screen."""
        ends = time.monotonic() + PATIENCE
        while self.screen.lines[place] != rows:
            assert self._wait(ends), f"{rows} are not shown in {self.screen.lines}"

    def shows_no_more(self, text: str) -> None:
        """Wait until no row of the screen holds `text`."""
        ends = time.monotonic() + PATIENCE
        while any(text in line for line in self.screen.lines):
            assert self._wait(ends), f"{text!r} is still shown in {self.screen.lines}"

    def finish(self) -> int:
        """Take all output until the program ends; returns its exit code."""
        ends = time.monotonic() + PATIENCE
        while self._wait(ends):
            pass
        return self.process.wait(timeout=PATIENCE)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Give the window another size, which the kernel tells the program."""
        self.screen.columns = columns
        set_size(self._fd, columns, rows)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def echoes(self) -> bool:
        """Whether the terminal echoes keys and edits lines by itself, as a shell expects it."""
        local: int = termios.tcgetattr(self._fd)[3]
        return local & (termios.ECHO | termios.ICANON) == termios.ECHO | termios.ICANON

    def echo(self) -> None:
        """Set the terminal as a shell does that takes it over."""
        mode = termios.tcgetattr(self._fd)
        mode[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(self._fd, termios.TCSANOW, mode)

    def hang_up(self) -> int:
        """Close the window; returns the program's exit code."""
        self.close()
        return self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        """Give the person's end back; safe to call again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _wait(self, ends: float) -> bool:
        """Take more output; False once the program has closed the terminal."""
        left = max(0.0, ends - time.monotonic())
        readable, _, _ = select.select([self._fd], [], [], left)
        assert readable, f"nothing came for {PATIENCE} s; so far: {self.output[-2000:]!r}"
        return self._read()

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # EIO: nobody holds the other end any more
            return False
        came = self._decoder.decode(data)
        self.output += came
        self.screen.feed(came)
        return bool(data)


@contextmanager
def terminal(
    arguments: Sequence[str],
    cwd: Path,
    env: Mapping[str, str] | None = None,
    columns: int = 80,
    *,
    joins: bool = False,
    program: Sequence[str] = REFOLD,
) -> Iterator[Terminal]:
    """`refold ARGUMENTS`, or another program, in a terminal of its own; it is killed at the end."""
    ours, theirs = pty.openpty()
    set_size(ours, columns, 24)
    process = subprocess.Popen(
        [sys.executable, "-c", _OWN_THE_TERMINAL, *program, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**environment(), **(env or {})},
        start_new_session=True,
    )
    os.close(theirs)
    person = Terminal(process, ours, Screen(columns, joins=joins))
    try:
        yield person
    finally:
        person.close()
        if process.poll() is None:
            process.kill()
        process.wait(timeout=PATIENCE)


def environment() -> dict[str, str]:
    """The environment of a user who has configured nothing."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    kept.pop("NO_COLOR", None)
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "XDG_CONFIG_HOME": "/none",
        "XDG_STATE_HOME": "/dev/null/none",
    }


def set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
