"""Who puts a terminal right after a program that was killed and could not.

A small process of its own waits for the end of this one. Where that comes without a word, and the
terminal is still in the mode that was set here, the mode from before is put back; a shell that has
done so itself, or is editing its next line already, is left alone.
"""

from __future__ import annotations

import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_KEEPER = """
import ast, os, sys, termios
before, ours = ast.literal_eval(sys.stdin.readline()), ast.literal_eval(sys.stdin.readline())
if not sys.stdin.readline() and termios.tcgetattr(1) == ours:
    termios.tcsetattr(1, termios.TCSANOW, before)
    os.write(1, b"\\x1b[?2004l\\x1b[?7h\\x1b[?25h\\x1b[0m\\r\\n")
"""
"""Switches off bracketed paste and colours, and on wrapping and the cursor."""


@contextmanager
def kept(fd: int, before: list[object]) -> Iterator[None]:
    """Have the terminal put back to `before` if this process ends inside, whatever ends it."""
    keeper = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-I", "-S", "-c", _KEEPER],
        stdin=subprocess.PIPE,
        stdout=fd,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # what ends everything else on this terminal must not end it
    )
    assert keeper.stdin is not None
    with suppress(OSError):  # a keeper that could not start keeps nothing
        keeper.stdin.write(f"{before!r}\n{termios.tcgetattr(fd)!r}\n")
        keeper.stdin.flush()
    try:
        yield
    finally:
        with suppress(OSError):
            keeper.stdin.write("done\n")
            keeper.stdin.close()
        keeper.wait()
