"""The folds of turns: what one came to, and which one answered which inbox entry."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.events import (
    AssistantMessage,
    EndReason,
    InboxQueued,
    InboxRemoved,
    PromptBlocked,
    SteeringMessage,
    StepStart,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.messages import USER, Source, TextBlock, ToolCallBlock
from refold.runtime.prompt_ledger import Place, PromptLedger, Turn, add_usage, summarise
from refold.runtime.stream.chunks import Usage

PARENT = Source("agent", session="parent")
INTERRUPTED = EndReason("interrupted")


def events_of(drafts: Iterable[object], first_seq: int = 0) -> list[Event]:
    made = [one if isinstance(one, Draft) else draft(one) for one in drafts]
    return [one.at(seq, 0) for seq, one in enumerate(made, first_seq)]


def folded(*drafts: object, seed_length: int = 0) -> PromptLedger:
    answers = PromptLedger(seed_length)
    for event in events_of(drafts):
        answers.apply(event)
    return answers


def queued(text: str = "hello", source: Source = USER) -> InboxQueued:
    return InboxQueued("turn", "prompt", (TextBlock(text),), source)


def claimed(seq: int, text: str = "hello") -> Draft:
    return draft(UserMessage((TextBlock(text),), USER), cites=(seq,))


def started(turn: int, kind: str = "message", source: Source = USER) -> TurnStart:
    return TurnStart(turn, Trigger("recovery" if kind == "recovery" else "message", source))


def said(text: str, step: int = 1, usage: Usage | None = None, turn: int = 1) -> AssistantMessage:
    return AssistantMessage(turn, step, (TextBlock(text),), usage=usage)


def ended(turn: int, kind: EndReason | None = None) -> TurnEnd:
    return TurnEnd(turn, kind or EndReason("completed"))


def test_a_turn_is_its_last_text_its_reason_and_the_sum_of_its_usage() -> None:
    events = events_of(
        [
            started(1),
            said("first", 1, Usage(10, 2, 3)),
            said("second", 2, Usage(20, 4, None, 1)),
            ended(1, EndReason("budget", limit="steps")),
        ],
        first_seq=7,
    )
    expected = Turn(1, "second", EndReason("budget", limit="steps"), Usage(30, 6, 3, 1), 10, 7)
    assert summarise(events) == expected


def test_a_last_message_without_visible_text_makes_a_turn_without_text() -> None:
    call = AssistantMessage(1, 2, (ToolCallBlock("c", "look", "{}"),))
    events = events_of([started(1), said("let me look"), call, ended(1)])
    assert summarise(events).text == ""


def test_events_that_are_no_finished_turn_cannot_be_summarised() -> None:
    with pytest.raises(AssertionError, match="one finished turn"):
        summarise(events_of([started(1), said("half")]))


def test_usage_that_neither_reported_stays_absent() -> None:
    assert add_usage(Usage(1, None, 2), Usage(None, None, 3, 4)) == Usage(1, None, 5, 4)
    assert add_usage(Usage(), Usage()) == Usage()


def test_the_live_fold_and_the_log_read_again_give_the_same_turn() -> None:
    drafts = [
        queued(),
        started(1),
        claimed(0),
        StepStart(1, 1),
        said("one", 1, Usage(3, 4)),
        ended(1),
    ]
    assert folded(*drafts).finished(1) == summarise(events_of(drafts)[1:], (0,))


def test_the_turn_in_hand_is_known_until_it_ends() -> None:
    life = [started(1), said("one", 1, Usage(3, 4))]
    answers = folded(*life)
    current = answers.current
    assert current is not None
    assert (current.turn, current.step) == (1, 1)
    assert (current.text, current.usage) == ("one", Usage(3, 4))
    assert (answers.place_of(1), answers.finished(1)) == (None, None)
    over = folded(*life, ended(1))
    assert over.current is None
    assert over.place_of(1) == Place(1, 0, 2, ())


def test_an_entry_is_answered_by_the_turn_whose_message_cites_it() -> None:
    answers = folded(
        *(queued(), started(1), claimed(0), ended(1)),
        *(queued("more"), started(2), claimed(4), ended(2)),
    )
    assert [answers.turn_of(seq) for seq in (0, 4, 1)] == [1, 2, None]


def test_steering_is_answered_by_the_turn_that_it_joined() -> None:
    steer = InboxQueued("step", "steer", (TextBlock("left"),), USER)
    message = SteeringMessage(1, (TextBlock("left"),), USER)
    answers = folded(queued(), started(1), claimed(0), steer, draft(message, cites=(3,)), ended(1))
    assert answers.turn_of(3) == 1


def test_an_entry_that_came_during_a_turn_is_not_answered_by_its_end() -> None:
    answers = folded(queued(), started(1), claimed(0), queued("later"), ended(1))
    assert answers.turn_of(3) is None


def test_an_entry_that_its_turn_gave_up_is_answered_by_that_turn() -> None:
    given_up = InboxRemoved((0,), "rejected")
    answers = folded(queued(), started(1), given_up, ended(1, EndReason("aborted", reason="user")))
    turn = answers.finished(1)
    assert turn is not None
    assert (answers.turn_of(0), turn.prompts, answers.waits(0)) == (1, (0,), False)


def test_an_interrupted_turn_that_gave_everything_up_owes_no_answer() -> None:
    given_up = InboxRemoved((0,), "rejected")
    assert folded(queued(), started(1), given_up, ended(1, INTERRUPTED)).cut() is None


def test_an_entry_that_a_log_of_before_left_pending_is_answered_by_the_turn_that_takes_it() -> None:
    answers = folded(queued(), started(1), ended(1, EndReason("aborted", reason="user")))
    assert (answers.turn_of(0), answers.waits(0)) == (None, True)
    for event in events_of([started(2), claimed(0), ended(2)], first_seq=3):
        answers.apply(event)
    assert answers.turn_of(0) == 2


def test_a_turn_names_the_prompts_that_it_answered_in_order_and_nothing_else() -> None:
    steer = InboxQueued("step", "steer", (TextBlock("left"),), USER)
    message = SteeringMessage(1, (TextBlock("left"),), USER)
    answers = folded(
        *(queued("one"), queued("two"), steer, queued("three")),
        *(started(1), claimed(1), claimed(0), draft(message, cites=(2,)), ended(1, INTERRUPTED)),
        *(started(2, "recovery"), ended(2), started(3), claimed(3), ended(3)),
    )
    found = [turn.prompts for n in (1, 2, 3) if (turn := answers.finished(n))]
    assert found == [(1, 0), (1, 0), (3,)]
    assert answers.place_of(2) == Place(2, 9, 10, (1, 0), 1)
    assert [answers.turn_of(seq) for seq in range(4)] == [2, 2, 2, 3]


def test_an_entry_that_an_interrupted_turn_did_not_claim_is_still_unanswered() -> None:
    assert folded(queued(), started(1), ended(1, INTERRUPTED)).turn_of(0) is None


def test_a_blocked_prompt_is_answered_by_the_turn_that_blocked_it() -> None:
    blocked = PromptBlocked((TextBlock("hello"),), USER, "no")
    answers = folded(queued(), started(1), blocked, InboxRemoved((0,), "rejected"), ended(1))
    assert answers.turn_of(0) == 1
    assert answers.removed == {}


@pytest.mark.parametrize("outcome", ["cancelled", "edited"])
def test_a_removed_entry_is_never_answered_and_says_how_it_left(outcome: str) -> None:
    removed = InboxRemoved((0,), "cancelled" if outcome == "cancelled" else "edited")
    answers = folded(queued(), removed, started(1), ended(1))
    assert answers.turn_of(0) is None
    assert answers.removed == {0: outcome}


def test_a_recovery_turn_answers_what_the_interrupted_one_took() -> None:
    answers = folded(
        *(queued(source=PARENT), started(1, source=PARENT), claimed(0), ended(1, INTERRUPTED)),
        started(2, "recovery", PARENT),
    )
    assert answers.turn_of(0) == 2


def test_a_recovery_turn_answers_nothing_that_still_waits() -> None:
    answers = folded(
        *(queued(), started(1), claimed(0), queued("later"), ended(1, INTERRUPTED)),
        *(started(2, "recovery"), ended(2)),
    )
    assert (answers.turn_of(0), answers.turn_of(3)) == (2, None)


def test_a_turn_of_new_input_takes_nothing_from_an_interrupted_one() -> None:
    answers = folded(
        *(queued(), started(1), claimed(0), ended(1, INTERRUPTED)),
        *(queued("later"), started(2), claimed(4), ended(2)),
    )
    assert (answers.turn_of(0), answers.turn_of(4)) == (1, 2)


def test_interrupted_names_the_source_of_a_last_turn_that_owes_an_answer() -> None:
    life = [queued(), started(1, source=PARENT), claimed(0)]
    assert folded(*life).cut() is None, "it is not over"
    assert folded(*life, ended(1)).cut() is None
    assert folded(*life, ended(1, INTERRUPTED)).cut() == PARENT
    later = [started(2), ended(2)]
    assert folded(*life, ended(1, INTERRUPTED), *later).cut() is None


def test_an_interrupted_turn_that_took_nothing_owes_no_answer() -> None:
    assert folded(queued(), started(1), ended(1, INTERRUPTED)).cut() is None


def test_an_interrupted_recovery_turn_still_owes_the_first_ones_answer() -> None:
    drafts = [queued(), started(1, source=PARENT), claimed(0), ended(1, INTERRUPTED)]
    drafts += [started(2, "recovery", PARENT), ended(2, INTERRUPTED)]
    answers = folded(*drafts)
    assert answers.cut() == PARENT
    assert answers.turn_of(0) == 2


def test_recovery_turns_in_a_row_are_counted_until_another_turn_starts() -> None:
    drafts: list[object] = [queued(), started(1), claimed(0), ended(1, INTERRUPTED)]
    counts = [folded(*drafts).recoveries]
    for turn in (2, 3):
        drafts += [started(turn, "recovery"), ended(turn, INTERRUPTED)]
        counts.append(folded(*drafts).recoveries)
    counts.append(folded(*drafts, started(4)).recoveries)
    assert counts == [0, 1, 2, 0]


def test_the_newest_turns_are_kept_whole_and_the_place_of_every_one() -> None:
    turns = PromptLedger.KEPT + 3
    answers = folded(*(one for n in range(1, turns + 1) for one in (started(n), ended(n))))
    kept = [n for n in range(1, turns + 1) if answers.finished(n) is not None]
    assert kept == list(range(4, turns + 1))
    assert answers.place_of(1) == Place(1, 0, 1, ())
    assert answers.place_of(turns) == Place(turns, 2 * turns - 2, 2 * turns - 1, ())


def test_a_fork_has_neither_its_parents_entries_nor_its_turns() -> None:
    inherited = [queued(), started(1), claimed(0), ended(1, INTERRUPTED), queued("pending")]
    answers = folded(*inherited, seed_length=len(inherited))
    assert (answers.turn_of(0), answers.place_of(1), answers.cut()) == (None, None, None)
    for event in events_of([queued(), started(2), claimed(5), ended(2)], first_seq=5):
        answers.apply(event)
    assert (answers.turn_of(4), answers.turn_of(5), answers.place_of(2)) == (
        None,
        2,
        Place(2, 6, 8, (5,)),
    )
