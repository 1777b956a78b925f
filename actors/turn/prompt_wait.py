"""Waiting for the turn that answers a prompt.

The wait follows the log and not the loop, so it outlives restarts and recovery turns.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from refold.actors.log.live_log import LogProgress
from refold.actors.session_tree import RunningSession
from refold.runtime.envelope import decode_line
from refold.runtime.errors import Refused
from refold.runtime.events import EndReason
from refold.runtime.prompt_ledger import CUT, Place, Turn, summarise
from refold.runtime.storage.reader import LogReader


@attrs.define(eq=False)
class PromptRemoved(Refused):
    """A prompt that left the inbox before a turn took it."""

    seq: int
    outcome: str

    def __str__(self) -> str:
        return f"the prompt at seq {self.seq} was {self.outcome} before a turn took it"


@attrs.define(eq=False)
class NoSuchPrompt(Refused):
    """A seq at which this session queued no prompt; a fork does not answer inherited ones."""

    seq: int

    def __str__(self) -> str:
        return f"no prompt of this session stands at seq {self.seq}; give the seq that it returned"


@attrs.define(eq=False)
class NothingToRetry(Refused):
    """A prompt that no recovery turn can answer."""

    seq: int

    def __str__(self) -> str:
        return (
            f"nothing of the prompt at seq {self.seq} can be retried: it waits, was answered, or "
            "other turns came after the one that was cut; say it again"
        )


@attrs.frozen(eq=False)
class PromptWait:
    """Waits over one opening of a session; `why` says what its end was."""

    _opened: RunningSession
    _feed: LogProgress
    _open_reader: Callable[[], LogReader]
    _why: Callable[[], Exception]

    async def of(self, seq: int) -> Turn:
        """The turn, as `Agent.ask` says; raises `PromptRemoved`, and why the session ended."""
        live = self._opened.log.live
        while True:
            changed = self._feed.changed
            if seq in live.answers.removed:
                raise PromptRemoved(seq, live.answers.removed[seq])
            turn = self._finished(seq)
            if turn is not None:
                return turn
            if self._opened.stopped.is_set():
                raise self._why()
            await changed.wait()

    def over(self, seq: int) -> bool:
        """Whether nothing will be done for `seq` any more: it was removed, or its turn is over."""
        answers, place = self._opened.log.live.answers, self._place(seq)
        if place is None:
            return seq in answers.removed
        return not self._goes_on(answers.finished(place.turn))

    def lasts(self, seq: int) -> bool:
        """Whether the turn that took `seq` is over and its end durable."""
        place = self._place(seq)
        return place is not None and place.end <= self._opened.log.live.durable_seq

    def _place(self, seq: int) -> Place | None:
        """Where the turn stands that took `seq`, once it is over."""
        answers = self._opened.log.live.answers
        number = answers.turn_of(seq)
        return None if number is None else answers.place_of(number)

    def _finished(self, seq: int) -> Turn | None:
        """The turn that took `seq`, once its end is durable and no recovery will follow it."""
        place = self._place(seq)
        if place is None or not self.lasts(seq):
            return None
        turn = self._opened.log.live.answers.finished(place.turn) or self._read_turn(place)
        if self._goes_on(turn):
            return None
        gave_up = place.recoveries >= self._opened.loop.most_recoveries
        if turn.reason.kind == "interrupted" and gave_up:
            return attrs.evolve(turn, reason=EndReason("gave-up"))
        return turn

    def _goes_on(self, turn: Turn | None) -> bool:
        """Whether a recovery turn is about to follow."""
        cut = turn is not None and turn.reason.kind in CUT
        return cut and self._opened.loop.recovers

    def _read_turn(self, place: Place) -> Turn:
        reader = self._open_reader()
        try:
            records = [one for one in reader.read_new() if place.start <= one.seq <= place.end]
            events = (decode_line(record.encoded) for record in records)
            return summarise(events, place.prompts)
        finally:
            reader.close()
