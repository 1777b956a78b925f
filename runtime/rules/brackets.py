"""Compaction brackets: rule 8 (design 2.9)."""

from __future__ import annotations

import attrs

from runtime.envelope import Draft, Event
from runtime.events import CompactEnd, CompactStart, CompactSummary, TurnEnd, TurnStart
from runtime.rules.structure import Problem, State


@attrs.frozen
class Bracket:
    """An open compaction; `turn` is None between turns."""

    turn: int | None
    summaries: int = 0


def advance(bracket: Bracket | None, event: Event) -> Bracket | None:
    match event.data:
        case CompactStart(turn=turn):
            return Bracket(turn)
        case CompactSummary() if bracket is not None:
            return attrs.evolve(bracket, summaries=bracket.summaries + 1)
        case CompactEnd():
            return None
    return bracket


def problem(bracket: Bracket | None, state: State, event: Draft | Event) -> Problem:
    match event.data:
        case CompactStart(turn=turn):
            return _start(bracket, state, turn)
        case CompactSummary(turn=turn) | CompactEnd(turn=turn):
            if bracket is None or turn != bracket.turn:
                return 8, "there is no such compaction open"
            return _inside(bracket, event)
        case TurnStart() | TurnEnd() if bracket is not None:
            return 8, "a compaction is open and must end before the turn boundary"
    return None


def _start(bracket: Bracket | None, state: State, turn: int | None) -> Problem:
    if bracket is not None:
        return 8, "a compaction is open already"
    if turn != (state.turn if state.turn_open else None):
        return 8, "a compaction names the open turn, or null between turns"
    return None


def _inside(bracket: Bracket, event: Draft | Event) -> Problem:
    if isinstance(event.data, CompactSummary):
        return (8, "a compaction has one summary") if bracket.summaries else None
    if event.data.error is None and bracket.summaries != 1:
        return 8, "a compaction without a summary must end with an error"
    return None
