"""Comparing requests: kept bytes, the pointer of the first difference, and its cause."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.divergence import (
    Comparison,
    StepRequest,
    UnknownCodec,
    _parting,
    compare_steps,
    kept_share,
    rebuild_step,
)
from refold.runtime.envelope import Draft, Event, Replace, draft
from refold.runtime.events import (
    AssistantMessage,
    ContextMessage,
    RequestSealed,
    StepEnd,
    StepStart,
    UserMessage,
)
from refold.runtime.json import Json
from refold.runtime.messages import USER, Message, Provenance, TextBlock
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.step_names import list_steps

BASE = EpochHeader(LlmCallConfig("p", model="m"), system="system")


def user(text: str, **fields: object) -> Draft:
    return draft(UserMessage((TextBlock(text),), USER), **fields)  # type: ignore[arg-type] # a draft's own


def header(written: EpochHeader, reason: str = "change") -> Draft:
    return draft(RequestHeader(written, reason))  # type: ignore[arg-type] # one of the reasons


def step(number: int, *inside: Draft) -> list[Draft]:
    return [draft(StepStart(1, number)), *inside, draft(StepEnd(1, number))]


def log(*drafts: Draft) -> list[Event]:
    return [item.at(seq, 0) for seq, item in enumerate(drafts)]


def requests(events: Sequence[Event]) -> list[StepRequest]:
    return [rebuild_step(events, found) for found in list_steps(events)]


def compared(*drafts: Draft) -> Comparison:
    """The first and the last step of a log, compared."""
    found = requests(log(*drafts))
    return compare_steps(found[0], found[-1])


def cause(found: Comparison) -> int:
    assert found.divergence is not None
    return found.divergence.cause.seq


def changed(*, temperature: float) -> EpochHeader:
    """The base header with another temperature."""
    return attrs.evolve(BASE, config=attrs.evolve(BASE.config, temperature=temperature))


def test_a_message_is_traced_to_its_event_and_one_without_a_message_is_left_out() -> None:
    empty = draft(AssistantMessage(1, 1, ()))
    events = log(user("a"), *step(1, header(BASE, "initial"), empty), user("b"), *step(2))
    assert [found.origins for found in requests(events)] == [(0,), (0, 5)]


def test_appended_messages_keep_everything() -> None:
    found = compared(user("a"), *step(1, header(BASE, "initial")), user("b"), *step(2))
    assert (found.relation, found.kept_share, found.divergence) == ("continues", 1.0, None)


def test_a_repeated_snapshot_is_no_cause() -> None:
    found = compared(
        user("a"),
        *step(1, header(BASE, "initial")),
        *step(2, header(changed(temperature=0.5))),  # seq 5
        *step(3, header(changed(temperature=0.5), "resume")),
    )
    assert found.divergence is not None
    assert found.divergence.path == "/temperature"
    assert cause(found) == 5


def test_the_cause_is_the_header_that_wrote_the_differing_bytes_and_not_a_later_one() -> None:
    later = attrs.evolve(changed(temperature=0.5), system="another")
    found = compared(
        user("a"),
        *step(1, header(BASE, "initial")),
        *step(2, header(changed(temperature=0.5))),  # seq 5
        *step(3, header(later)),
    )
    assert {drift.path for drift in found.header_drift} == {"/config/temperature", "/system"}
    assert cause(found) == 5


def test_a_value_that_was_changed_twice_is_laid_to_the_last_change() -> None:
    found = compared(
        user("a"),
        *step(1, header(changed(temperature=0.25), "initial")),
        *step(2, header(changed(temperature=0.5))),
        *step(3, header(changed(temperature=0.75))),  # seq 8
    )
    assert cause(found) == 8


def test_a_value_that_came_back_is_laid_to_its_return() -> None:
    events = log(
        user("a"),
        *step(1, header(changed(temperature=0.5), "initial")),
        *step(2, header(changed(temperature=0.75))),
        *step(3, header(changed(temperature=0.5))),  # seq 8
    )
    _, second, third = requests(events)
    assert cause(compare_steps(second, third)) == 8


def test_a_replacement_is_the_cause_of_its_own_message() -> None:
    found = compared(
        user("a"),
        user("b"),
        *step(1, header(BASE, "initial")),
        user("short", cites=(0, 1), replaces=Replace(0, 1)),  # seq 5
        *step(2),
    )
    assert (cause(found), found.relation) == (5, "diverges")
    assert found.divergence is not None
    assert found.divergence.path == "/messages/1/content"


def test_a_replacement_that_has_no_message_is_the_cause_of_what_moved_up() -> None:
    nothing = AssistantMessage(1, 1, ())
    found = compared(
        user("a"),
        user("b"),
        user("c"),
        *step(1, header(BASE, "initial")),
        draft(nothing, cites=(1,), replaces=Replace(1, 1)),  # seq 6
        *step(2),
    )
    assert cause(found) == 6


def test_the_cause_lies_between_the_steps_whichever_is_named_first() -> None:
    events = log(
        user("a"),
        *step(1, header(BASE, "initial")),
        user("b", cites=(0,), replaces=Replace(0, 0)),  # seq 4
        *step(2),
    )
    first, second = requests(events)
    for pair in ((first, second), (second, first)):
        assert cause(compare_steps(*pair)) == 4


def test_in_two_logs_the_cause_stands_in_the_second() -> None:
    shared = [user("a"), *step(1, header(BASE, "initial"))]
    one = requests(log(*shared, user("b"), *step(2)))[1]
    other = requests(log(*shared, draft(StepStart(9, 9)), user("c"), *step(2)))[-1]
    found = compare_steps(one, other)
    assert found.divergence is not None
    assert found.divergence.cause is other.events[5]


def test_a_prefix_message_belongs_to_the_header() -> None:
    def prefixed(text: str) -> EpochHeader:
        return attrs.evolve(BASE, message_prefix=(Message("user", (TextBlock(text),)),))

    found = compared(
        user("a"),
        *step(1, header(prefixed("one"), "initial")),
        *step(2, header(prefixed("two"))),  # seq 5
    )
    assert cause(found) == 5
    assert found.divergence is not None
    assert found.divergence.path == "/messages/1/content"


def test_a_header_whose_prefix_shifts_the_messages_is_the_cause() -> None:
    prefix = (Message("user", (TextBlock("a"),)),)
    found = compared(
        user("a"),
        *step(1, header(attrs.evolve(BASE, message_prefix=prefix), "initial")),
        user("b"),
        *step(2, header(BASE)),  # seq 6
    )
    assert found.divergence is not None
    assert found.divergence.path == "/messages/2/content"
    assert cause(found) == 6


def test_a_header_that_gains_a_system_prompt_is_the_cause_of_what_it_shifts() -> None:
    found = compared(
        user("a"),
        *step(1, header(attrs.evolve(BASE, system=""), "initial")),
        *step(2, header(BASE)),  # seq 5
    )
    assert cause(found) == 5


def test_a_message_that_another_config_writes_differently_is_laid_to_the_header() -> None:
    made = Provenance("p", "m", Json.of({"reasoning_content": "because"}))
    answer = AssistantMessage(1, 1, (TextBlock("b"),), made)
    found = compared(
        user("a"),
        draft(answer),
        *step(1, header(BASE, "initial")),
        *step(2, header(attrs.evolve(BASE, config=LlmCallConfig("q", model="m")))),  # seq 6
    )
    assert found.divergence is not None
    assert found.divergence.path == "/messages/2/reasoning_content"
    assert cause(found) == 6


def test_a_codec_that_nobody_knows_is_refused() -> None:
    found = requests(log(user("a"), *step(1, header(BASE, "initial"))))[0]
    unknown = attrs.evolve(found.step, seal=seal_with("chat/9"))
    with pytest.raises(UnknownCodec, match=r"step 1\.1 was sent with codec 'chat/9'"):
        compare_steps(found, attrs.evolve(found, step=unknown))


def seal_with(codec: str) -> RequestSealed:
    return RequestSealed(1, 1, codec, "0", "0", 10, 0, "enforce")


def test_context_stands_in_its_envelope() -> None:
    context = draft(ContextMessage((TextBlock("b"),), USER))
    found = compared(user("a"), *step(1, header(BASE, "initial")), context, *step(2))
    assert found.relation == "continues"


@pytest.mark.parametrize(
    ("kept", "body", "codec", "share"),
    [
        (98, 100, "chat/1", 1.0),
        (100, 100, "chat/1", 1.0),
        (49, 100, "chat/1", 0.5),
        (0, 100, "chat/1", 0.0),
        (50, 100, "chat/9", 0.5),
        (0, 2, "chat/1", 1.0),
    ],
)
def test_the_kept_share_leaves_the_fixed_ending_out(
    kept: int, body: int, codec: str, share: float
) -> None:
    assert kept_share(kept, body, codec) == share


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | st.text("a/~", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def children(value: object) -> dict[str, object]:
    """What a pointer's next part may name, in order."""
    if isinstance(value, dict):
        return value
    return {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else {}


@given(JSON, JSON)
def test_everything_before_the_pointer_is_the_same_in_both(one: object, other: object) -> None:
    if orjson.dumps(one) == orjson.dumps(other):
        return
    for part in _parting(one, other).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        left, right = children(one), children(other)
        assert key in left or key in right
        at = min(list(side).index(key) for side in (left, right) if key in side)
        before = [orjson.dumps(list(side.items())[:at]) for side in (left, right)]
        assert before[0] == before[1]
        one, other = left.get(key), right.get(key)
