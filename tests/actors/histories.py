"""Random logs of every kind of event that the rules let in, for comparing folds of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import attrs

from refold.runtime.envelope import Draft, Replace, draft
from refold.runtime.errors import Refused
from refold.runtime.events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantChunk,
    AssistantMessage,
    CompactEnd,
    CompactStart,
    CompactSummary,
    ContextMessage,
    EndReason,
    InboxQueued,
    InboxRemoved,
    PromptBlocked,
    RequestSealed,
    SessionOwner,
    SessionRecovered,
    SessionReleased,
    SteeringMessage,
    StepEnd,
    StepStart,
    TodoWrite,
    ToolCall,
    ToolResult,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.history import History
from refold.runtime.messages import USER, Block, TextBlock, ToolCallBlock
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.rules import Rules
from refold.runtime.stream.chunks import TextDelta, Usage


@attrs.define
class RandomHistory:
    """A log that grows by random events."""

    chance: random.Random
    session: History = attrs.field(factory=History)
    rules: Rules = attrs.field(init=False)
    time: int = 1

    def __attrs_post_init__(self) -> None:
        self.rules = Rules(self.session.surface)

    def grow(self, length: int) -> None:
        """Add events until there are so many; what is refused is tried no more."""
        while self.session.next_seq < length:
            makers = STRUCTURE if self.chance.random() < 0.7 else OTHERS
            made = self.chance.choice(makers)(self)
            if made is not None and self._is_let_in(made):
                self.time += self.chance.randrange(3)
                self.rules.apply(self.session.append(made, self.time))

    def _is_let_in(self, made: Draft) -> bool:
        try:
            self.session.check(made)
            self.rules.check(made, self.session.next_seq)
        except Refused:
            return False
        return True

    @property
    def turn(self) -> int:
        return self.rules.standing.turn

    @property
    def step(self) -> int:
        return self.rules.standing.last_step

    @property
    def content(self) -> tuple[TextBlock, ...]:
        return (TextBlock(f"text {self.chance.randrange(9)}"),)

    def waiting(self) -> str | None:
        """One of the calls of the open step that have no result yet."""
        step = self.rules.standing.step
        return self.chance.choice(step.waiting) if step is not None and step.waiting else None

    def pending(self, most: int) -> tuple[int, ...]:
        """Some pending entries of the inbox."""
        entries = [*self.rules.inbox.pending]
        return tuple(self.chance.sample(entries, min(len(entries), self.chance.randint(0, most))))


def message(history: RandomHistory) -> Draft:
    calls = [ToolCallBlock(f"c{history.session.next_seq}-{n}", "look", "{}") for n in range(2)]
    content: tuple[Block, ...] = (*history.content, *calls[: history.chance.randrange(3)])
    interrupted = history.chance.choice([None, True])
    usage = history.chance.choice([None, Usage(history.chance.randrange(9))])
    return draft(
        AssistantMessage(history.turn, history.step, content, interrupted=interrupted, usage=usage)
    )


def of_call(make: Callable[[RandomHistory, str], object]) -> Maker:
    """What is made for a call that waits, if one does."""

    def made(history: RandomHistory) -> Draft | None:
        call = history.waiting()
        return None if call is None else draft(make(history, call))

    return made


def header(history: RandomHistory) -> Draft:
    config = LlmCallConfig("p", model=f"m{history.chance.randrange(3)}")
    system = f"system {history.chance.randrange(3)}"
    return draft(RequestHeader(EpochHeader(config, system), "change"))


def replacement(history: RandomHistory) -> Draft | None:
    nodes = history.session.surface.nodes
    if not nodes:
        return None
    first = history.chance.randrange(len(nodes))
    shadowed = tuple(nodes[first : first + history.chance.randint(1, 3)])
    summary = ContextMessage(history.content, USER)
    return draft(summary, cites=shadowed, replaces=Replace(shadowed[0], shadowed[-1]))


def queued(history: RandomHistory) -> Draft:
    key = history.chance.choice([None, f"key {history.chance.randrange(5)}"])
    entry = history.chance.choice(
        [
            InboxQueued("turn", "prompt", history.content, USER, key),
            InboxQueued("step", "steer", history.content, USER, key),
        ]
    )
    return draft(entry)


def removed(history: RandomHistory) -> Draft | None:
    entries = history.pending(1)
    removals = [InboxRemoved(entries, "cancelled"), InboxRemoved(entries, "rejected")]
    return draft(history.chance.choice(removals)) if entries else None


def start(history: RandomHistory) -> Draft:
    triggers = [Trigger("message", USER), Trigger("injection", USER), Trigger("recovery", USER)]
    return draft(TurnStart(history.turn + 1, history.chance.choice(triggers)))


def end(history: RandomHistory) -> Draft:
    reasons = [EndReason("completed"), EndReason("interrupted"), EndReason("error")]
    return draft(TurnEnd(history.turn, history.chance.choice(reasons)))


def compaction(history: RandomHistory) -> Draft:
    """The next event of one: its start, and once it is open a summary or an end."""
    bracket = history.rules.standing.bracket
    if bracket is None:
        turn = history.turn if history.rules.standing.turn_open else None
        return draft(CompactStart(turn, "p", "m", (0, 1), "shorten", "d"))
    if history.chance.random() < 0.5:
        return draft(CompactSummary(bracket.turn, "short", (0, 1), (0,), "p", "m"))
    return draft(CompactEnd(bracket.turn, history.chance.choice([None, "failed"])))


Maker: TypeAlias = Callable[[RandomHistory], Draft | None]

STRUCTURE: list[Maker] = [
    start,
    end,
    lambda h: draft(StepStart(h.turn, h.step + 1)),
    lambda h: draft(StepEnd(h.turn, h.step)),
    header,
    lambda h: draft(RequestSealed(h.turn, h.step, "c", "0" * 64, "0" * 64, 1, 0, "off")),
    lambda h: draft(AssistantChunk(h.turn, h.step, TextDelta(0, "x"))),
    message,
    of_call(lambda h, call: ToolCall(h.turn, h.step, call, "look", "{}")),
    of_call(lambda h, call: ToolResult(h.turn, h.step, call, h.content, is_error=False)),
    of_call(lambda h, call: ApprovalAsked(h.turn, h.step, call)),
    of_call(lambda h, call: ApprovalDecided(h.turn, h.step, call, "allowed", "me")),
    lambda h: draft(SteeringMessage(h.turn, h.content, USER), cites=h.pending(1) or None),
    compaction,
]
"""What belongs to turns and steps; little of it is let in at any one moment."""

OTHERS: list[Maker] = [
    lambda h: draft(UserMessage(h.content, USER), cites=h.pending(2) or None),
    lambda h: draft(ContextMessage(h.content, USER)),
    replacement,
    queued,
    removed,
    lambda h: draft(PromptBlocked(h.content, USER, "why")),
    lambda _: draft(TodoWrite(())),
    lambda _: draft(SessionOwner(1)),
    lambda _: draft(SessionReleased(1, "closed")),
    lambda _: draft(SessionRecovered(1, 1, "partial", "q")),
]
