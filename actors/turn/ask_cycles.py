"""Who waits for whose turn: a circle of agents that wait would never end.

The kernel sees a cycle of asks by the chain that each message carries. A prompt to a busy agent is
no ask: it stands in the log until a turn takes it. So what waits for a turn is noted here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from refold.actors.kernel import AskCycle, waiting


class Waits:
    """The waits of one runtime: from the loop whose tool or seam waits to the loop that answers."""

    def __init__(self) -> None:
        self._targets: dict[str, list[str]] = defaultdict(list)

    @contextmanager
    def on(self, target: str) -> Iterator[None]:
        """Note that this task waits for a turn of the loop `target`; raises `AskCycle` at once."""
        chain = waiting()
        if not chain:
            yield
            return
        asker = chain[-1].actor
        circle = self._path(target, asker)
        if circle is not None:
            raise AskCycle((asker, *circle))
        self._targets[asker].append(target)
        try:
            yield
        finally:
            self._targets[asker].remove(target)

    def _path(self, start: str, goal: str) -> tuple[str, ...] | None:
        """The way from `start` to `goal` along the waits, both included."""
        if start == goal:
            return (goal,)
        for target in self._targets.get(start, ()):
            rest = self._path(target, goal)
            if rest is not None:
                return (start, *rest)
        return None
