"""Which Trio run something belongs to: its events wake nobody in another one."""

from __future__ import annotations

import attrs
import trio

from refold.runtime.errors import Refused


@attrs.define(eq=False)
class OtherRun(Refused):
    """A call from outside the Trio run that the runtime was opened in."""

    def __str__(self) -> str:
        return (
            "this agent and its runtime belong to another Trio run; from another thread call it "
            "with trio.from_thread.run(..., trio_token=...), the token taken in its own run"
        )


@attrs.define(eq=False)
class NoTrioRun(Refused):
    """A runtime that is entered where no Trio runs; `loop` is what runs there, if anything."""

    loop: str | None

    def __str__(self) -> str:
        where = "outside of it" if self.loop is None else f"in {self.loop}'s loop"
        return (
            f"refold runs on Trio and is used {where}; start the program with trio.run(main), or "
            "in a program of asyncio use refold.from_asyncio(...)"
        )


def check_in_trio() -> None:
    """Raise `NoTrioRun` where no Trio runs in this thread."""
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        raise NoTrioRun("asyncio" if _in_asyncio() else None) from None


def _in_asyncio() -> bool:
    import asyncio  # only where it failed: it is slow to import

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def check_same_run(run: trio.lowlevel.TrioToken) -> None:
    """Raise `OtherRun` unless this is the Trio run `run`."""
    try:
        here = trio.lowlevel.current_trio_token()
    except RuntimeError:  # no Trio run at all
        raise OtherRun from None
    if here is not run:
        raise OtherRun
