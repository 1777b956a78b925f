"""The steps of a log and their names."""

from __future__ import annotations

import pytest

from refold.runtime.envelope import Event, draft
from refold.runtime.errors import NoSuchStep
from refold.runtime.events import (
    EndReason,
    RequestSealed,
    StepEnd,
    StepStart,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.messages import USER, TextBlock
from refold.runtime.step_names import find_step, list_steps


def log(*data: object) -> list[Event]:
    return [draft(item).at(seq, 0) for seq, item in enumerate(data)]


def turn(number: int, *steps: object) -> list[object]:
    message = UserMessage((TextBlock("hi"),), USER)
    end = TurnEnd(number, EndReason("completed"))
    return [TurnStart(number, Trigger("message", USER)), message, *steps, end]


def seal(number: int, step: int) -> RequestSealed:
    return RequestSealed(number, step, "chat/1", "0", "0", 10, 0, "enforce")


def step(number: int, step_number: int) -> list[object]:
    return [StepStart(number, step_number), seal(number, step_number), StepEnd(number, step_number)]


EVENTS = log(*turn(1, *step(1, 1), *step(1, 2)), *turn(2, *step(2, 1)))
"""Steps at seqs 2 to 4, 5 to 7 and 11 to 13."""


def test_steps_are_listed_with_their_places_and_seals() -> None:
    found = list_steps(EVENTS)
    assert [(s.name, s.boundary, s.end) for s in found] == [
        ("1.1", 2, 5),
        ("1.2", 5, 8),
        ("2.1", 11, 14),
    ]
    assert [s.seal for s in found] == [seal(1, 1), seal(1, 2), seal(2, 1)]


def test_a_step_that_never_ended_ends_with_its_turn_or_with_the_log() -> None:
    events = log(*turn(1, StepStart(1, 1)), StepStart(2, 1), seal(2, 1))
    assert [(s.boundary, s.end) for s in list_steps(events)] == [(2, 3), (4, 6)]


@pytest.mark.parametrize("wanted", ["1.2", "5", "6", "7"])
def test_a_step_is_found_by_name_or_by_any_seq_from_its_start_to_its_end(wanted: str) -> None:
    assert find_step(EVENTS, wanted).name == "1.2"


@pytest.mark.parametrize("wanted", ["0", "8", "10", "14", "3.1", "1.3", "", "-1", "1.2 ", "5\n"])
def test_what_names_no_step_is_refused_with_what_there_is(wanted: str) -> None:
    with pytest.raises(NoSuchStep, match=r"1\.1, 1\.2, 2\.1 \(seqs 2 to 13\)"):
        find_step(EVENTS, wanted)


def test_a_log_without_steps_says_so() -> None:
    with pytest.raises(NoSuchStep, match="no step yet"):
        find_step([], "1.1")


def test_of_many_steps_the_first_and_last_are_named() -> None:
    steps = [item for number in range(1, 13) for item in step(1, number)]
    with pytest.raises(NoSuchStep, match=r"1\.1, 1\.2, 1\.3, \.\.\., 1\.10, 1\.11, 1\.12"):
        find_step(log(*turn(1, *steps)), "9.9")
