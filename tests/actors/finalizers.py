"""A program that is struck by a Ctrl-C where Python runs a callback of a weak reference.

Python drops what is raised there. There are many such places while modules are imported, which
the first names of refold do, and where a generator of a context dies. Run by `test_interrupts`,
which gives the number of the place; it says whether it was interrupted, or how many there are.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import trio
import trio.lowlevel

import refold

NAMES = ("_remove", "cb")
"""What such callbacks are called in Python's weak sets and in its locks of imports."""


def main(place: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    count, struck = 0, False

    def strike(frame: FrameType, event: str, _given: object) -> None:
        nonlocal count, struck
        if event == "call" and frame.f_code.co_name in NAMES:
            count += 1
            if count == int(place):
                struck = True
                signal.raise_signal(signal.SIGINT)

    async def program() -> None:
        sys.setprofile(strike)
        async with refold.open("memory:", providers=[refold.Script([refold.Say("hi")])]) as runtime:
            await (await runtime.start_agent(model="script/m")).ask("hello")
        sys.setprofile(None)
        await trio.lowlevel.checkpoint()

    try:
        trio.run(program)
        sys.stdout.write("lost\n" if struck else f"{count}\n")
    except KeyboardInterrupt:
        sys.stdout.write("interrupted\n")
