"""Cancelling something at its every step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import attrs
import trio

from refold.testing.store_contract.stores import require

_MOST = 1000


@attrs.define(eq=False)
class _CancelAt(trio.abc.Instrument):
    """Cancels a scope before the `at`-th step of the task."""

    at: int
    task: trio.lowlevel.Task
    scope: trio.CancelScope
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.steps += 1
            if self.steps == self.at:
                self.scope.cancel()


def every_step() -> Iterator[int]:
    """Steps from 0, the one before anything happens; leave the loop when no more is reached."""
    for step in count():
        require(step < _MOST, f"more than {_MOST} steps")
        yield step


async def cancelled_at(step: int, work: Callable[[], Awaitable[object]]) -> bool:
    """Do the work in this task, cancelled before its `step`-th step; whether it came so far."""
    with trio.CancelScope() as scope:
        instrument = _CancelAt(step, trio.lowlevel.current_task(), scope)
        if step == 0:
            scope.cancel()
        trio.lowlevel.add_instrument(instrument)
        try:
            await work()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancel_called
