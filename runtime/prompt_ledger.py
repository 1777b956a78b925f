"""What turns came to, and which turn answered which inbox entry.

Folds of committed events; in a fork the inherited part has neither entries nor turns to answer.

An entry goes one of these ways, and whoever waits for its answer waits for whichever it is:

    queued --+-- a message of a turn cites it -----------> that turn answers it
             +-- inbox/removed, rejected, inside a turn -> that turn answers it
             `-- inbox/removed, cancelled or edited -----> nobody will

A turn that ends before it could claim its prompts (it was cancelled early, say) is their answer
and says so with the second way; one that a crash or the end of its agent cut leaves them pending.

An interrupted turn hands what it had taken to the recovery turn that follows, which takes no new
prompt. `recoveries` counts such turns in a row, so that input which ends the program each time is
not tried for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from refold.runtime.envelope import Event
from refold.runtime.events import (
    SURFACE,
    AssistantMessage,
    EndReason,
    InboxQueued,
    InboxRemoved,
    Trigger,
    TurnEnd,
    TurnStart,
)
from refold.runtime.messages import Message, Source, text_of, tool_calls
from refold.runtime.projection import message_of
from refold.runtime.stream.chunks import Usage
from refold.runtime.turn_calls import FinishedCall, finished_calls


@attrs.frozen
class Turn:
    """A finished turn: the model's last visible text, why it ended, what it used, where it stands.

    `usage` is the sum over its steps, `end_seq` the seq of its `turn/end`. `prompts` are the seqs
    of the prompts that it answered, in the order in which it took them: one for an `ask`, several
    where prompts joined, none for a turn that steering alone set off. What was said in it, its
    `messages`, `calls` and `failures`, is made of the log's own values when it is asked for.
    """

    turn: int
    text: str
    reason: EndReason
    usage: Usage
    end_seq: int
    start_seq: int
    prompts: tuple[int, ...] = ()
    _said: tuple[object, ...] = attrs.field(default=(), eq=False, repr=False)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that this turn added to the history, from its prompts to its last answer."""
        return tuple(found for data in self._said if (found := message_of(data)) is not None)

    @property
    def calls(self) -> tuple[FinishedCall, ...]:
        """The tool calls of this turn with what came of each, in the order of the model's calls."""
        return tuple(finished_calls(self._said))

    @property
    def failures(self) -> tuple[FinishedCall, ...]:
        """The calls that ended in an error result: a tool's exception, a denial, a timeout."""
        return tuple(call for call in self.calls if call.is_error)


@attrs.define
class Tally:
    """A turn that is not over yet."""

    turn: int
    start_seq: int
    trigger: Trigger
    text: str = ""
    usage: Usage = attrs.field(factory=Usage)
    step: int = 0
    claimed: list[int] = attrs.field(factory=list)
    prompts: tuple[int, ...] = ()
    offered: frozenset[int] = frozenset()
    """What was pending when it started."""
    answered: bool = False
    said: list[object] = attrs.field(factory=list)
    """The data of the turn's surface events."""

    def take(self, event: Event) -> None:
        """Follow a surface event of this turn; one that replaces others says nothing new."""
        if event.surface_op == "append":
            self.said.append(event.data)
        if isinstance(event.data, AssistantMessage):
            self.see(event.data)

    def see(self, message: AssistantMessage) -> None:
        self.step = message.step
        self.text = text_of(message.content)
        self.usage = add_usage(self.usage, message.usage or Usage())
        self.answered = not message.interrupted and not tool_calls(message.content)

    def end(self, reason: EndReason, seq: int) -> Turn:
        place = (seq, self.start_seq, self.prompts)
        return Turn(self.turn, self.text, reason, self.usage, *place, tuple(self.said))


def add_usage(one: Usage, other: Usage) -> Usage:
    """The sum of two counts; what neither reported stays absent."""
    pairs = zip(attrs.astuple(one), attrs.astuple(other), strict=True)
    return Usage(*(None if a is None and b is None else (a or 0) + (b or 0) for a, b in pairs))


@attrs.frozen
class Place:
    """A finished turn: the seqs of its `turn/start`, its `turn/end`, and its prompts.

    `recoveries` counts the recovery turns that led to it, itself included, each after a crash.
    """

    turn: int
    start: int
    end: int
    prompts: tuple[int, ...]
    recoveries: int = 0


class PromptLedger:
    """The live fold: the turn in hand, and for each entry the turn that took it.

    An interrupted turn hands its entries to the recovery turn that follows it.
    """

    KEPT = 64
    """How many finished turns are kept whole; older ones are read from the log again."""

    def __init__(self, seed_length: int = 0) -> None:
        self._seed_length = seed_length
        self._taken_by: dict[int, int] = {}
        self._unclaimed: dict[int, InboxQueued] = {}
        self._places: dict[int, Place] = {}
        self._finished: dict[int, Turn] = {}
        self._last: Tally | None = None
        self.current: Tally | None = None
        self.removed: dict[int, str] = {}
        self.recoveries = 0
        """How many of the last turns were recovery turns, in a row, each after an interruption."""

    def apply(self, event: Event) -> None:
        if event.seq < self._seed_length:
            return
        match event.data if event.type in _FOLLOWED else None:
            case TurnStart(turn=turn, trigger=trigger):
                self._start(turn, trigger, event.seq)
            case TurnEnd(reason=reason):
                self._end(reason, event.seq)
            case InboxQueued() as entry:
                self._unclaimed[event.seq] = entry
            case InboxRemoved(queued_seqs=seqs, outcome=outcome):
                self._remove(seqs, outcome)
        if self.current is not None and event.type in SURFACE:
            self.current.take(event)
            self._take(event.source_event_seqs or ())

    def _start(self, turn: int, trigger: Trigger, seq: int) -> None:
        self.current = Tally(turn, seq, trigger, offered=frozenset(self._unclaimed))
        recovers = trigger.kind == "recovery" and self._last is not None
        crashed = self._cut_by == "interrupted"  # a polite end is no sign of a loop of crashes
        self.recoveries = self.recoveries + crashed if recovers else 0
        if recovers and self._last is not None:
            self.current.claimed, self.current.prompts = self._last.claimed, self._last.prompts
            self._taken_by.update(dict.fromkeys(self._last.prompts, turn))
            self._taken_by.update(dict.fromkeys(self._last.claimed, turn))

    def _take(self, seqs: Iterable[int]) -> None:
        assert self.current is not None
        new = [seq for seq in seqs if seq in self._unclaimed]
        if new:
            self._answer(new)
            self.current.claimed = [*self.current.claimed, *new]
            self.current.answered = False

    def _answer(self, seqs: Iterable[int]) -> None:
        """Let the turn in hand be the answer to entries that nobody has taken."""
        assert self.current is not None
        for seq in seqs:
            self._taken_by[seq] = self.current.turn
            if self._unclaimed.pop(seq).kind == "prompt":
                self.current.prompts += (seq,)

    def _remove(self, seqs: tuple[int, ...], outcome: str) -> None:
        gone = [seq for seq in seqs if seq in self._unclaimed]
        if outcome == "rejected" and self.current is not None:
            self._answer(gone)
        else:
            for seq in gone:
                del self._unclaimed[seq]
            self.removed.update(dict.fromkeys(gone, outcome))

    def _end(self, reason: EndReason, seq: int) -> None:
        if self.current is None:
            return
        turn = self.current.end(reason, seq)
        place = (turn.turn, turn.start_seq, turn.end_seq, turn.prompts)
        self._places[turn.turn] = Place(*place, self.recoveries)
        self._finished[turn.turn] = turn
        self._finished.pop(turn.turn - self.KEPT, None)
        self._last, self.current = self.current, None

    def turn_of(self, queued_seq: int) -> int | None:
        """The turn that took an entry, or that ended before it could; None while none has."""
        return self._taken_by.get(queued_seq)

    def waits(self, queued_seq: int) -> bool:
        """Whether an entry of this session is pending, of whatever kind it is."""
        return queued_seq in self._unclaimed

    def knows(self, queued_seq: int) -> bool:
        """Whether an entry of this session stands at that seq, taken, pending or removed."""
        places = (self._taken_by, self._unclaimed, self.removed)
        return any(queued_seq in place for place in places)

    def place_of(self, turn: int) -> Place | None:
        """Where a finished turn stands."""
        return self._places.get(turn)

    def finished(self, turn: int) -> Turn | None:
        """A finished turn, if it is among those that are kept."""
        return self._finished.get(turn)

    def cut(self) -> Source | None:
        """The source of the last turn if it was cut before it answered what it took.

        By a crash (`interrupted`) or by the end of its agent (`disposed`): a recovery turn is owed.
        """
        if self.current is not None or self._last is None or not self._last.claimed:
            return None
        owed = self._cut_by in CUT and not self._last.answered
        return self._last.trigger.source if owed else None

    @property
    def _cut_by(self) -> str | None:
        last = None if self._last is None else self._finished.get(self._last.turn)
        return None if last is None else last.reason.kind

    def is_cut(self, queued_seq: int) -> bool:
        """Whether an entry was taken by the last turn, which was cut before it answered."""
        took = self._last is not None and self._taken_by.get(queued_seq) == self._last.turn
        return took and self.cut() is not None


CUT = frozenset({"interrupted", "disposed"})
"""The ends of turns that were not theirs: what they took is answered by a recovery turn."""

_FOLLOWED = frozenset({"turn/start", "turn/end", "inbox/queued", "inbox/removed"})


def summarise(events: Iterable[Event], prompts: tuple[int, ...] = ()) -> Turn:
    """A finished turn from its own events, `turn/start` to `turn/end`, and the prompts it answered.

    Those are not in its own events alone, where it is a recovery turn or gave them up.
    """
    tally: Tally | None = None
    for event in events:
        match event.data:
            case TurnStart(turn=turn, trigger=trigger):
                tally = Tally(turn, event.seq, trigger, prompts=prompts)
            case TurnEnd(reason=reason) if tally is not None:
                return tally.end(reason, event.seq)
            case _ if tally is not None and event.type in SURFACE:
                tally.take(event)
    raise AssertionError("these are not the events of one finished turn")
