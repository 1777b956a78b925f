"""Rule 9: an entry of the inbox is used once: a message that cites it, or its removal, takes it.

A prompt that wants a turn of its own is cited in a turn that takes no other prompt.
"""

from __future__ import annotations

import attrs
import pytest

from refold.runtime.envelope import Draft
from refold.runtime.rules.inbox import KeyConflict, next_prompts
from tests.runtime.rules.table import Log, Row, allowed, judge, log_of, refused_batches, rows
from tests.runtime.rules.words import (
    aside,
    context,
    header,
    queued,
    removed,
    result,
    says,
    steering,
    step,
    turn,
    turn_end,
    user,
)

PENDING = [queued()]
TWO = [queued(), queued()]
TAKEN = [queued(), user(0)]
GONE = [queued(), removed(0)]


@rows(
    [
        ("a prompt cites it", PENDING, user(0), allowed),
        ("context cites it", PENDING, context(0), allowed),
        ("steering cites it", PENDING, steering(1, 0), allowed),
        ("it is removed", PENDING, removed(0), allowed),
        ("two at once", TWO, context(0, 1), allowed),
        ("two are removed at once", TWO, removed(0, 1), allowed),
        ("the later before the earlier", TWO, user(1), allowed),
        ("the earlier after the later", [*TWO, user(1)], user(0), allowed),
        ("nothing is removed", PENDING, removed(), allowed),
    ]
)
def test_a_pending_entry_may_be_taken(row: Row) -> None:
    judge(row)


@rows(
    [
        ("cited twice", TAKEN, user(0), 9),
        ("cited by context after a prompt", TAKEN, context(0), 9),
        ("removed after it was cited", TAKEN, removed(0), 9),
        ("cited after it was removed", GONE, user(0), 9),
        ("removed twice", GONE, removed(0), 9),
        ("one of two is gone", [*TWO, user(0)], user(0, 1), 9),
        ("one of two is gone, for a removal", [*TWO, removed(1)], removed(0, 1), 9),
        ("removal of what is no entry", [user()], removed(0), 9),
        ("removal of what is not there", [], removed(0), 9),
        ("removal of a later entry", PENDING, removed(1), 9),
    ]
)
def test_an_entry_is_taken_once(row: Row) -> None:
    judge(row)


OWN, JOINED, ASIDE = queued(own=True), queued(), aside()
"""How a prompt is queued that wants a turn of its own, one that others may join, and context."""


@rows(
    [
        ("alone in its turn", [OWN, JOINED, turn(1)], user(0), allowed),
        ("out of turn, alone", [OWN, JOINED], user(0), allowed),
        ("the other one alone", [OWN, JOINED, turn(1)], user(1), allowed),
        ("with context", [OWN, ASIDE, turn(1), user(0)], context(1), allowed),
        ("after context", [OWN, ASIDE, turn(1), context(1)], user(0), allowed),
        ("with a message of nobody's entry", [OWN, turn(1), user(0)], user(), allowed),
        ("after a prompt that was removed", [JOINED, OWN, turn(1), removed(0)], user(1), allowed),
        ("another is removed in its turn", [JOINED, OWN, turn(1), user(1)], removed(0), allowed),
        ("after a turn with another", [JOINED, OWN, turn(1), user(0), turn_end(1), turn(2)],
         user(1), allowed),
        ("before a turn with another", [OWN, JOINED, turn(1), user(0), turn_end(1), turn(2)],
         user(1), allowed),
        ("others among themselves", [JOINED, JOINED, JOINED, turn(1), user(0)], user(1, 2),
         allowed),
        ("of its parent's no fork knows", [OWN, JOINED, turn(1), user(0), turn_end(1)], user(1),
         allowed, 5),
        ("nor of what its parent took last", [OWN, turn(1), user(0), turn_end(1), JOINED],
         user(4), allowed, 4),
    ]
)  # fmt: skip
def test_a_prompt_has_a_turn_of_its_own(row: Row) -> None:
    judge(row)


@rows(
    [
        ("after another prompt", [JOINED, OWN, turn(1), user(0)], user(1), 9),
        ("before another prompt", [JOINED, OWN, turn(1), user(1)], user(0), 9),
        ("two of the kind", [OWN, OWN, turn(1), user(0)], user(1), 9),
        ("in one message with another", [OWN, JOINED, turn(1)], user(0, 1), 9),
        ("in one message, the other first", [JOINED, OWN, turn(1)], user(0, 1), 9),
        ("by way of context", [OWN, JOINED, turn(1), user(0)], context(1), 9),
        ("behind context of the inbox", [OWN, ASIDE, JOINED, turn(1), user(0), context(1)],
         user(2), 9),
        ("in the recovery turn of another", [JOINED, OWN, turn(1), user(0), turn_end(1),
         turn(2, "recovery")], user(1), 9),
    ]
)  # fmt: skip
def test_no_other_prompt_joins_the_turn_of_such_a_one(row: Row) -> None:
    judge(row)


def test_a_turn_that_was_shared_all_the_same_is_told_of_once() -> None:
    log = Log()
    for made in (OWN, JOINED, turn(1), user(0)):
        log.take(made)
    assert log.verdict(user(1)) == 9
    log.take(user(1))
    assert log.verdict(context()) == log.verdict(turn_end(1)) == allowed


def test_prompts_go_together_up_to_the_first_that_wants_a_turn_of_its_own() -> None:
    def go(*entries: Draft, steered: bool = False) -> set[int]:
        waiting = {seq: entry.data for seq, entry in enumerate(entries)}
        return set(next_prompts(waiting, steered=steered))

    assert go() == go(ASIDE) == set()
    assert go(JOINED, ASIDE, JOINED) == {0, 2}
    assert go(OWN, JOINED) == go(OWN, OWN) == {0}
    assert go(JOINED, JOINED, OWN, JOINED) == {0, 1}
    assert go(ASIDE, OWN) == {1}
    assert go(OWN, JOINED, steered=True) == set()
    assert go(JOINED, OWN, JOINED, steered=True) == {0}


@rows(
    [
        ("a message cites what is no entry", [user(), *TWO], user(0), allowed),
        ("a message cites nothing", PENDING, user(), allowed),
        (
            "a result cites what is no entry, beside entries",
            [queued(), turn(1), step(1, 1), says(1, 1, "a")],
            result(1, 1, "a", cites=(1,)),
            allowed,
        ),
        ("log-only events take nothing", TAKEN, queued(), allowed),
        ("nor does a header", [queued(), turn(1), step(1, 1)], header(), allowed),
    ]
)
def test_what_takes_no_entry(row: Row) -> None:
    judge(row)


@rows(
    [
        ("a message may cite the parent's entry", PENDING, user(0), allowed, 1),
        ("again and again", TAKEN, user(0), allowed, 2),
        ("it cannot be removed here", PENDING, removed(0), 9, 1),
        ("entries after the seed are the fork's", [queued(), queued()], removed(1), allowed, 1),
        ("and are used once", [queued(), queued(), removed(1)], user(1), 9, 1),
        ("the last of the seed is the parent's", TWO, removed(1), 9, 2),
    ]
)
def test_what_waits_in_a_parent_is_not_the_forks(row: Row) -> None:
    judge(row)


def pending(log: Log) -> list[int]:
    return list(log.rules.inbox.pending)


def test_pending_entries_keep_their_order() -> None:
    log = log_of([queued(), queued(), user(0), queued(), removed(1), queued()])
    assert pending(log) == [3, 4 + 1]
    refused_batches(log)
    assert pending(log) == [3, 5]


def test_what_refused_batches_took_is_pending_again() -> None:
    log = log_of([queued(), queued(), queued()])
    undo = log.undo()
    for made in (user(1), removed(0), queued()):
        log.take(made)
    assert pending(log) == [2, 5]
    undo()
    assert pending(log) == [0, 1, 2]
    log.take(user())
    assert log.verdict(user(1)) == allowed


def first(log: Log, key: str | None) -> int | None:
    known = log.rules.inbox.first(key)
    return None if known is None else known.seq


def test_a_key_stands_for_the_first_entry_under_it() -> None:
    log = log_of([queued("k"), queued(), queued("other"), user(0)])
    log.take(queued("k"))  # which a writer refuses, and a log of another may hold
    assert (first(log, "k"), first(log, "other"), first(log, "?"), first(log, None)) == (
        0,
        2,
        None,
        None,
    )


def test_a_key_knows_what_was_said_under_it() -> None:
    log = log_of([queued("k", "pay")])
    known = log.rules.inbox.first("k")
    assert known is not None
    assert known.has(queued(text="pay").data.content)
    assert not known.has(queued(text="do not pay").data.content)


def test_a_key_of_refused_batches_is_free() -> None:
    log = log_of([queued("k"), queued("key")])
    undo = log.undo()
    log.take(queued("late"))
    log.take(queued("k"))
    undo()
    assert (first(log, "late"), first(log, "k"), first(log, "key")) == (None, 0, 1)


def test_the_keys_of_a_parent_are_free_in_a_fork() -> None:
    log = log_of([queued("k"), queued("k")], seed=1)
    assert first(log, "k") == 1


def said(log: Log, key: str | None, text: str) -> int | None:
    return log.rules.inbox.said(queued(key, text).data)


def test_the_same_under_a_key_was_said_where_its_first_entry_stands() -> None:
    log = log_of([queued("other", "pay"), queued("k", "pay"), removed(1), queued(None, "pay")])
    assert (said(log, "k", "pay"), said(log, "other", "pay")) == (1, 0)
    assert (said(log, "new", "pay"), said(log, None, "pay")) == (None, None)


def test_a_key_under_which_something_else_was_said_is_a_conflict() -> None:
    log = log_of([queued(), queued("k", "pay")])
    with pytest.raises(KeyConflict) as conflict:
        said(log, "k", "do not pay")
    assert (conflict.value.key, conflict.value.seq) == ("k", 1)


def of_another_version(target: str, kind: str) -> Draft:
    made = queued()
    return attrs.evolve(made, data=attrs.evolve(made.data, target=target, kind=kind))


@pytest.mark.parametrize(("target", "kind"), [("later", "prompt"), ("turn", "whisper")])
def test_an_entry_of_another_version_is_taken_once_and_by_no_turn(target: str, kind: str) -> None:
    """It can be removed and cited, but is not offered; a fork does not have its parent's."""
    for seed, of_parent in ((0, allowed), (1, 9)):
        log = Log(seed)
        log.take(of_another_version(target, kind))
        assert pending(log) == []
        assert log.verdict(removed(0)) == of_parent
    for taken in (removed(0), user(0)):
        log = Log()
        log.take(of_another_version(target, kind))
        log.take(taken)
        assert log.verdict(removed(0)) == 9
