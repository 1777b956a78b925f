"""The terminal as a device: keys one by one, and bytes without holding up Trio."""

from __future__ import annotations

import os
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress

import trio

READ_BYTES = 65536

_INPUT, _LOCAL, _CHARACTERS = 0, 3, 6


@contextmanager
def key_by_key(fd: int) -> Iterator[Callable[[], None]]:
    """Have the terminal hand over each key at once and echo none; restored on leaving.

    A terminal's own line editing loses all of a line after 4095 bytes. Ctrl-C and Ctrl-Z stay
    signals. Yields what sets the mode again after a stop.
    """
    before = termios.tcgetattr(fd)

    def enter() -> None:
        mode = termios.tcgetattr(fd)
        mode[_INPUT] &= ~termios.IXON  # Ctrl-S would hold up the agent with the screen
        mode[_LOCAL] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
        termios.tcsetattr(fd, termios.TCSANOW, mode)

    enter()
    try:
        yield enter
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(fd, termios.TCSANOW, before)


async def keystrokes(fd: int) -> AsyncIterator[bytes]:
    """What is typed, until the terminal is gone. Cancelling it loses nothing."""
    while True:
        await trio.lowlevel.wait_readable(fd)
        try:
            data = os.read(fd, READ_BYTES)
        except OSError:  # EIO: whoever held the other end has closed it
            return
        if not data:
            return
        yield data


async def lines(fd: int) -> AsyncIterator[str]:
    """The lines of a pipe or a file, without their ends; the last one may lack its own.

    Cancelled, it leaves its thread in a read, which takes nothing from anybody.
    """
    rest = b""
    while data := await trio.to_thread.run_sync(os.read, fd, READ_BYTES, abandon_on_cancel=True):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").removesuffix("\r")
    if rest:
        yield rest.decode(errors="replace")
