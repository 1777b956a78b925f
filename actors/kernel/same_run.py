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


def check_same_run(run: trio.lowlevel.TrioToken) -> None:
    """Raise `OtherRun` unless this is the Trio run `run`."""
    try:
        here = trio.lowlevel.current_trio_token()
    except RuntimeError:  # no Trio run at all
        raise OtherRun from None
    if here is not run:
        raise OtherRun
