"""What each step cost, what it kept, and what broke that."""

from __future__ import annotations

from runtime.envelope import draft
from runtime.events import (
    AssistantChunk,
    AssistantMessage,
    LlmRetry,
    RequestSealed,
    StepEnd,
    StepStart,
)
from runtime.header import EpochHeader, LlmCallConfig, RequestHeader
from runtime.messages import TextBlock
from runtime.stream.chunks import TextDelta, Usage, UsageChunk
from runtime.stream.failures import Failure
from runtime.usage import StepUsage, usage_by_step

HEADER = EpochHeader(LlmCallConfig("p", model="m"))


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
