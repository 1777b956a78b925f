"""A real pseudo-terminal with a program in it, driven as a person would drive it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
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

from tests.snippets import ROOT

PATIENCE = 30.0
"""Seconds that a test waits for what must come; only one that fails waits so long."""

# The program must own the terminal, or Ctrl-C would reach nobody. A program of its own does that,
# since code between fork and exec is not safe in a process with threads.
_OWN_THE_TERMINAL = (
    "import fcntl, os, sys, termios; "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """The person's side: `type` keys, `expect` output, `resize`. `output` is all that came."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process, self._fd = process, fd
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

    def finish(self) -> int:
        """Take all output until the program ends; returns its exit code."""
        ends = time.monotonic() + PATIENCE
        while self._wait(ends):
            pass
        return self.process.wait(timeout=PATIENCE)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Give the window another size, which the kernel tells the program."""
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
        self.output += self._decoder.decode(data)
        return bool(data)


@contextmanager
def terminal(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, columns: int = 80
) -> Iterator[Terminal]:
    """`refold ARGUMENTS` in a terminal of its own; it is killed if the test leaves it running."""
    ours, theirs = pty.openpty()
    set_size(ours, columns, 24)
    process = subprocess.Popen(
        [sys.executable, "-c", _OWN_THE_TERMINAL, sys.executable, "-m", "refold", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**environment(), **(env or {})},
        start_new_session=True,
    )
    os.close(theirs)
    person = Terminal(process, ours)
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
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "XDG_CONFIG_HOME": "/none"}


def set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def looks_like(output: str) -> list[str]:
    """The lines that a wide terminal shows after `output`, which may overwrite and use colours."""
    shown: list[str] = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", output).replace("\r\n", "\n").split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        shown.append("".join(cells).rstrip())
    return shown
