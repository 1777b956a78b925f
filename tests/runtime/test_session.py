"""What a session answers and refuses, where no generated data looks."""

from __future__ import annotations

import pytest

from refold.runtime.envelope import draft
from refold.runtime.errors import SeqGap, SurfaceRefused
from refold.runtime.events import AssistantMessage
from refold.runtime.history import History
from refold.runtime.surface import Surface, SurfaceManager, fold_surface
from tests.runtime.rules.words import at, context, queued, user


def session_of(*drafts: object) -> History:
    session = History()
    for made in drafts:
        session.append(made, 0)  # type: ignore[arg-type]  # drafts, as `words` makes them
    return session


def test_a_snapshot_has_the_nodes_and_counts_the_replacements() -> None:
    session = session_of(user(), queued(), context(), user(2, replaces=at(2)))
    assert session.surface.snapshot() == Surface((0, 3), 1)
    assert fold_surface(session.events) == Surface((0, 3), 1)
    assert SurfaceManager().snapshot() == Surface((), 0)


def test_a_check_tells_which_nodes_would_be_replaced() -> None:
    session = session_of(user(), user(), user())
    assert session.check(user(0, 1, replaces=at(0, 1))) == (0, 1)
    assert session.check(user(2, replaces=at(2))) == (2,)
    assert session.check(user()) == ()
    assert session.check(queued()) == ()


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (at(9, 0), "names start seq 9, which is not on the surface"),
        (at(0, 9), "names end seq 9, which is not on the surface"),
        (at(1, 0), "replaces from seq 1 to 0, but they stand in the other order"),
        (at(0, 1), "must cite every node that it replaces; add 1"),
    ],
)
def test_a_replacement_that_is_refused_says_why(op: object, says: str) -> None:
    session = session_of(user(), user())
    with pytest.raises(SurfaceRefused) as refused:
        session.check(user(0, replaces=op))  # type: ignore[arg-type]  # a replacement
    assert says in str(refused.value)


def test_an_event_cites_earlier_ones_only() -> None:
    session = session_of(user(), user())
    assert session.check(user(1)) == ()
    for late in (2, 3):
        with pytest.raises(SurfaceRefused):
            session.check(user(late))


def test_the_whole_fold_refuses_what_the_live_one_does() -> None:
    first = user().at(0, 0)
    with pytest.raises(SurfaceRefused):
        fold_surface([first, user(1).at(1, 0)])
    with pytest.raises(SurfaceRefused):
        fold_surface([first, user(5, replaces=at(5)).at(6, 0)])


def test_messages_derived_so_far_stay_what_they_were() -> None:
    silent = draft(AssistantMessage(1, 1, ()))
    session = session_of(user(), queued(), silent, context())
    before, messages = session.derived_so_far(), session.derive_messages()
    assert len(messages) == 2
    session.append(user(0, replaces=at(0)), 0)
    session.append(user(), 0)
    assert before.derive_messages() == messages != session.derive_messages()


def test_a_seq_that_is_not_the_next_is_refused() -> None:
    session = session_of(user())
    for seq in (0, 2):
        with pytest.raises(SeqGap):
            session.replay(user().at(seq, 0))
    session.replay(user().at(1, 0))
    assert session.next_seq == 2


def test_folds_alone_are_the_folds_of_a_session_that_keeps_its_events() -> None:
    drafts = [user(), context(), user(0, replaces=at(0)), queued()]
    whole, folds = session_of(*drafts), History(retain=False)
    for event in whole.events:
        folds.replay(event)
    assert folds.derive_messages() == whole.derive_messages()
    assert folds.next_seq == whole.next_seq
    mark = folds.mark()
    folds.append(user(), 0)
    folds.restore(mark)
    assert folds.derive_messages() == whole.derive_messages()
    assert folds.next_seq == whole.next_seq
    folds.pass_over(9)
    assert folds.next_seq == 9
