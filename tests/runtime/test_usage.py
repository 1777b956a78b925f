"""What each step cost, what it kept, and what broke that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from refold.runtime.divergence import compare_steps, rebuild_step
from refold.runtime.envelope import Draft, Event, Replace, draft
from refold.runtime.events import (
    AssistantChunk,
    AssistantMessage,
    ContextMessage,
    LlmRetry,
    RequestSealed,
    StepEnd,
    StepStart,
    UserMessage,
)
from refold.runtime.messages import USER, Source, TextBlock
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader
from refold.runtime.step_names import list_steps
from refold.runtime.stream.chunks import TextDelta, Usage, UsageChunk
from refold.runtime.stream.failures import Failure
from refold.runtime.usage import StepUsage, explain, usage_by_step

HEADER = EpochHeader(LlmCallConfig("p", model="m"))
OTHER = LlmCallConfig("another", model="m")
"""Another provider, which no byte of a body tells."""


def rows(*data: object) -> list[StepUsage]:
    return usage_by_step([draft(item).at(seq, 0) for seq, item in enumerate(data)])


def seal(step: int, size: int, shared: int) -> RequestSealed:
    return RequestSealed(1, step, "chat/1", "0", "0", size, shared, "enforce")


def answer(step: int, usage: Usage | None) -> AssistantMessage:
    return AssistantMessage(1, step, (TextBlock("said"),), usage=usage)


def test_tokens_in_are_all_that_the_model_read() -> None:
    (row,) = rows(StepStart(1, 1), answer(1, Usage(5, 7, 20, 3)), StepEnd(1, 1))
    assert (row.tokens_in, row.tokens_cached, row.tokens_out) == (28, 20, 7)
    assert row.cached_share == 20 / 28


def test_what_was_not_reported_is_unknown() -> None:
    silent, partly = rows(
        StepStart(1, 1), answer(1, None), StepStart(1, 2), answer(2, Usage(output_tokens=3))
    )
    for row in (silent, partly):
        assert (row.tokens_in, row.tokens_cached, row.cached_share) == (None, None, None)
    assert (silent.tokens_out, partly.tokens_out) == (None, 3)


def test_a_model_that_read_nothing_has_no_cached_share() -> None:
    (row,) = rows(StepStart(1, 1), answer(1, Usage(0, 0, 0)))
    assert (row.tokens_in, row.cached_share) == (0, None)


def test_a_step_without_a_message_has_the_usage_of_its_chunks() -> None:
    (row,) = rows(
        StepStart(1, 1),
        AssistantChunk(1, 1, TextDelta(0, "usage")),
        AssistantChunk(1, 1, UsageChunk(Usage(4, 5))),
        StepEnd(1, 1),
    )
    assert row.usage == Usage(4, 5)


def test_kept_is_the_share_of_the_body_that_was_sealed_before() -> None:
    found = rows(
        *(StepStart(1, 1), seal(1, 102, 0), StepEnd(1, 1)),
        *(StepStart(1, 2), seal(2, 202, 100), StepEnd(1, 2)),
        *(StepStart(1, 3), StepEnd(1, 3)),
        *(StepStart(1, 4), seal(4, 302, 50), StepEnd(1, 4)),
    )
    assert [row.kept for row in found] == [None, 1.0, None, 0.25]
    assert [row.wire_bytes for row in found] == [102, 202, None, 302]


def test_a_break_is_told_at_the_next_request_even_if_a_step_sent_none() -> None:
    found = rows(
        *(StepStart(1, 1), RequestHeader(HEADER, "initial"), seal(1, 102, 0), StepEnd(1, 1)),
        *(StepStart(1, 2), RequestHeader(HEADER, "resume"), StepEnd(1, 2)),
        *(StepStart(1, 3), seal(3, 102, 100), StepEnd(1, 3)),
    )
    assert [[broke.kind for broke in row.breaks] for row in found] == [[], [], ["instance"]]


def test_failed_attempts_are_counted() -> None:
    retry = LlmRetry(1, 1, 1, Failure("TIMEOUT", "slow"), 10, Usage(9, 9))
    (row,) = rows(StepStart(1, 1), seal(1, 102, 0), retry, retry, answer(1, Usage(1, 1)))
    assert (row.retries, row.usage) == (2, Usage(1, 1))


def test_what_stands_outside_of_every_step_is_no_steps_usage() -> None:
    spent, other = Usage(5, 7), Usage(900, 900)
    data = [StepStart(1, 1), answer(1, spent), StepEnd(1, 1), answer(1, other), seal(1, 10, 0)]
    (row,) = rows(*data)
    assert (row.usage, row.wire_bytes) == (spent, None)
    replaces: dict[str, Any] = {"cites": (1,), "replaces": Replace(1, 1)}
    events = [draft(item).at(seq, 0) for seq, item in enumerate(data[:2])]
    events.append(draft(answer(1, other), **replaces).at(2, 0))
    (row,) = usage_by_step(events)
    assert row.usage == spent


def user(text: str, **fields: Any) -> Draft:
    return draft(UserMessage((TextBlock(text),), USER), **fields)


def sealed(step: int, shared: int, *before: Draft, usage: Usage | None = None) -> list[Draft]:
    """A step whose request keeps `shared` of 100 bytes; `before` comes at its boundary."""
    data = [StepStart(1, step), seal(step, 102, shared), answer(step, usage), StepEnd(1, step)]
    return [*before, *map(draft, data)]


def header(system: str, reason: Literal["initial", "resume", "change"] = "change") -> Draft:
    return draft(RequestHeader(attrs.evolve(HEADER, system=system), reason))


def logged(*steps: Sequence[Draft], every_ms: int = 0) -> list[Event]:
    drafts = [item for step in steps for item in step]
    return [item.at(seq, seq * every_ms) for seq, item in enumerate(drafts)]


def explained(events: Sequence[Event]) -> list[StepUsage]:
    return explain(events, usage_by_step(events))


def test_of_several_changes_the_cause_is_the_one_that_the_comparison_of_both_names() -> None:
    summary = ContextMessage((TextBlock("short"),), Source("plugin", plugin="p"))
    replaced = draft(summary, cites=(1,), replaces=Replace(1, 1))
    late = sealed(2, 50, replaced, header("two", "resume"), header("nine"))
    events = logged([header("one", "initial"), user("a"), *sealed(1, 0)], late)
    row = explained(events)[1]
    assert [found.kind for found in row.breaks] == ["replacement", "instance", "header", "header"]
    one, other = (rebuild_step(events, step) for step in list_steps(events))
    divergence = compare_steps(one, other).divergence
    assert divergence is not None
    assert (row.cause, divergence.path) == (divergence.cause.seq, "/messages/0/content")
    assert row.cause == row.breaks[-1].seq


def test_where_a_header_writes_the_same_bytes_the_replacement_is_the_cause() -> None:
    summary = ContextMessage((TextBlock("short"),), Source("plugin", plugin="p"))
    replaced = draft(summary, cites=(1,), replaces=Replace(1, 1))
    same = RequestHeader(attrs.evolve(HEADER, system="one", config=OTHER), "change")
    late = sealed(2, 50, replaced, draft(same))
    events = logged([header("one", "initial"), user("a"), *sealed(1, 0)], late)
    row = explained(events)[1]
    assert row.cause == row.breaks[0].seq
    assert row.breaks[0].kind == "replacement"


def test_what_is_alone_is_the_cause_and_what_kept_everything_has_none() -> None:
    events = logged(
        [header("one", "initial"), user("a"), *sealed(1, 0)],
        sealed(2, 50, header("two")),
        sealed(3, 100, header("two", "resume")),
    )
    first, second, third = explained(events)
    assert (first.cause, second.cause, third.cause) == (None, second.breaks[0].seq, None)


def asked(*usages: Usage | None, shared: int = 100, every_ms: int = 1000) -> list[bool]:
    steps = [sealed(number, shared, usage=usage) for number, usage in enumerate(usages, 1)]
    begin = [header("one", "initial"), user("a")]
    return [row.missed for row in explained(logged(begin, *steps, every_ms=every_ms))]


def test_a_cache_that_had_the_prefix_and_lost_it_has_missed() -> None:
    assert asked(Usage(100, 1, 0), Usage(10, 1, 100), Usage(120, 1, 0)) == [False, False, True]
    assert asked(Usage(100, 1, 0), Usage(10, 1, 100), Usage(15, 1, 105)) == [False] * 3
    assert asked(Usage(100, 1, 0), Usage(10, 1, 100), Usage(120, 1, None)) == [False] * 3


def test_a_long_prefix_that_was_never_found_has_missed_where_the_provider_caches_at_all() -> None:
    long = Usage(3000, 1, 0)
    assert asked(long, long, Usage(10, 1, 3000)) == [False, True, False]
    assert asked(long, long, long) == [False] * 3  # it may have no cache
    short = Usage(500, 1, 0)
    assert asked(short, short, Usage(10, 1, 500)) == [False] * 3  # too short to be kept


def test_a_prefix_that_the_log_broke_is_no_miss() -> None:
    assert asked(Usage(9, 1, 0), Usage(1, 1, 90), Usage(99, 1, 0), shared=50) == [False] * 3


def test_the_time_since_the_request_before_is_told() -> None:
    events = logged(
        [header("one", "initial"), user("a")], sealed(1, 0), sealed(2, 100), every_ms=1000
    )
    assert [row.gap_ms for row in explained(events)] == [None, 4000]
