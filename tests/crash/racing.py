"""Two programs that take one session from its owner at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from tests.crash.contending import Ahead, Contender, Contest, Habit, meanwhile, nothing

When: TypeAlias = Callable[[Contender], bool]
"""Whether now is the time."""


class Race:
    """A second program and a third that both take the session from its owner."""

    def __init__(self, habit: Habit, third: Ahead = nothing) -> None:
        """`third` is what happens before each of the third's operations besides."""
        self.contest = contest = Contest()
        self.second = contest.contender("second", meanwhile(contest.first, habit))
        self.third = contest.contender("third", meanwhile(contest.first, habit, third))

    @property
    def has_begun(self) -> bool:
        return self.third.steps > 0

    def joining(self, when: When) -> Ahead:
        """The third opens within the second's operations, and then adds something before each."""

        def ahead(second: Contender) -> None:
            if self.has_begun:
                self.third.leave()
            elif when(second):
                self.contest.unlock()
                self.third.open()

        return ahead

    def problems(self) -> Iterator[str]:
        """What is wrong once both have opened, or not, and when all have tried to go on."""
        self.second.ahead = self.third.ahead = nothing
        yield from self.contest.lost()
        second, third = self.second.acknowledged, self.third.acknowledged
        for one in (self.second, self.third, self.contest.first) * 2:
            one.leave()
        if self.second.acknowledged > second and self.third.acknowledged > third:
            yield "both are told that their events are safe"
        yield from self.contest.lost()


class Stoppable:
    """An opening that stops before its change number `at` until it is told to go on.

    It has a thread of its own, and at any time only one of all threads runs.
    """

    def __init__(self, contender: Contender, at: int) -> None:
        self._contender = contender
        self._stopped, self._going = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        before = contender.ahead

        def ahead(one: Contender) -> None:
            if one.changes == at and not self._stopped.is_set():
                self._stopped.set()
                self._going.wait()
            before(one)

        contender.ahead = ahead

    def start(self) -> None:
        """Open until the stop, or the end."""
        self._thread.start()
        self._stopped.wait()

    def go_on(self) -> None:
        """Open until the end."""
        self._going.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._contender.open()
        finally:
            self._stopped.set()
