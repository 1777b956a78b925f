"""What each step of a log cost, how much of the last request it kept, and what broke that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from refold.runtime.divergence import compare_steps, kept_share, rebuild_step
from refold.runtime.envelope import Event, Replace
from refold.runtime.errors import RefoldError
from refold.runtime.events import (
    AssistantChunk,
    AssistantMessage,
    LlmRetry,
    RequestSealed,
    StepStart,
)
from refold.runtime.json_diff import Difference, compare_headers
from refold.runtime.request_header import EpochHeader, RequestHeader
from refold.runtime.standing import Standing
from refold.runtime.step_names import StepSpan, list_steps
from refold.runtime.stream.chunks import Usage, UsageChunk


@attrs.frozen
class Break:
    """Something between two requests that may end their common prefix.

    `instance`: a new loop instance began (a resume or a fork); `header`: the request header
    changed in `fields`; `replacement`: the surface nodes from one seq to another were replaced;
    `codec`: the request sealed at `seq` is the first that is written in the second of `codecs`.
    """

    kind: Literal["instance", "header", "replacement", "codec"]
    seq: int
    fields: tuple[Difference, ...] = ()
    replaced: Replace | None = None
    codecs: tuple[str, str] | None = None


@attrs.frozen
class StepUsage:
    """One step; what the provider or the log does not say is None.

    `kept` is how much of the previous sealed body begins this one, 0 to 1 (see `kept_share`), and
    `gap_ms` how long after it this one was sealed. `retries` counts failed attempts, whose tokens
    are not in `usage`. What `explain` adds: `cause` is the seq of the event that ended the common
    prefix; `missed` says that the prefix was kept and the provider's cache had less of it than it
    could, which nothing in the log explains.
    """

    turn: int
    step: int
    seq: int
    usage: Usage | None = None
    wire_bytes: int | None = None
    kept: float | None = None
    breaks: tuple[Break, ...] = ()
    retries: int = 0
    gap_ms: int | None = None
    cause: int | None = None
    missed: bool = False

    @property
    def tokens_in(self) -> int | None:
        """Every token that the model read, from its cache too."""
        if self.usage is None or self.usage.input_tokens is None:
            return None
        return self.usage.total_input

    @property
    def tokens_cached(self) -> int | None:
        return None if self.usage is None else self.usage.cache_read_tokens

    @property
    def tokens_out(self) -> int | None:
        return None if self.usage is None else self.usage.output_tokens

    @property
    def cached_share(self) -> float | None:
        """Cached tokens of those read, 0 to 1."""
        if not self.tokens_in or self.tokens_cached is None:
            return None
        return self.tokens_cached / self.tokens_in


def usage_by_step(events: Sequence[Event]) -> list[StepUsage]:
    """A row for each step of a log, in order."""
    fold = _Fold()
    for event in events:
        fold.feed(event)
    return fold.rows


LEAST = 1024
"""Tokens: providers keep no prefix that is shorter."""


def explain(events: Sequence[Event], rows: Sequence[StepUsage]) -> list[StepUsage]:
    """The rows of a whole log with what ended each prefix, and with the caches that missed.

    Who broke a prefix is the opinion of `compare_steps`. It is asked where the log leaves a doubt:
    where one thing alone happened between two requests, it is that.
    """
    steps = {step.boundary: step for step in list_steps(events)}
    caches = any(row.tokens_cached for row in rows)
    explained = []
    before: StepUsage | None = None  # the last one whose body was sealed
    for row in rows:
        cause = None
        if before is not None and row.kept is not None and row.kept < 1:
            cause = _only_cause(row)
            if cause is None:
                cause = _compared(events, steps[before.seq], steps[row.seq])
        missed = before is not None and _has_missed(before, row, caches=caches)
        explained.append(attrs.evolve(row, cause=cause, missed=missed))
        before = before if row.wire_bytes is None else row
    return explained


def _only_cause(row: StepUsage) -> int | None:
    changes = {found.seq for found in row.breaks if found.kind != "instance"}
    return changes.pop() if len(changes) == 1 else None


def _compared(events: Sequence[Event], one: StepSpan, other: StepSpan) -> int | None:
    try:
        found = compare_steps(rebuild_step(events, one), rebuild_step(events, other))
    except RefoldError:  # of a codec that is not known here, or of a log that is not ours
        return None
    return None if found.divergence is None else found.divergence.cause.seq


def _has_missed(before: StepUsage, row: StepUsage, *, caches: bool) -> bool:
    """Whether a kept prefix was not in the cache that had it, or was long enough to have it.

    `caches` says that the provider has shown cached tokens in this log.
    """
    is_ours = any(found.kind == "header" for found in row.breaks)
    if row.kept != 1 or row.tokens_cached is None or is_ours:
        return False
    had, sent = before.tokens_cached or 0, before.tokens_in or 0
    due = max(had, sent if caches and sent >= LEAST else 0)
    return row.tokens_cached < due / 2


class _Fold:
    def __init__(self) -> None:
        self.rows: list[StepUsage] = []
        self._header: EpochHeader | None = None
        self._seal: RequestSealed | None = None
        self._sealed_at = 0
        self._breaks: list[Break] = []
        self._at = Standing()

    def feed(self, event: Event) -> None:
        if isinstance(event.surface_op, Replace):
            self._breaks.append(Break("replacement", event.seq, replaced=event.surface_op))
        if event.type == "assistant/chunk" and b'"usage"' not in event.encoded:
            return  # most of a log is chunks, and building their data would cost the most
        self._at = self._at.after(event)
        in_step = self._at.step is not None and not isinstance(event.surface_op, Replace)
        match event.data:
            case RequestHeader(header=header, reason=reason):
                self._follow_header(event.seq, header, reason)
            case StepStart(turn=turn, step=step):
                self.rows.append(StepUsage(turn, step, event.seq))
            case RequestSealed() as seal if in_step:
                self._take_seal(event.seq, seal, event.time)
            case AssistantMessage(usage=usage) if in_step:
                self._take_usage(usage)
            case AssistantChunk(chunk=UsageChunk(usage=usage)) if in_step:
                self._take_usage(usage)
            case LlmRetry() if in_step:
                self._update(retries=self.rows[-1].retries + 1)

    def _follow_header(self, seq: int, header: EpochHeader, reason: str) -> None:
        if reason == "resume":
            self._breaks.append(Break("instance", seq))
        fields = () if self._header is None else compare_headers(self._header, header)
        if fields:
            self._breaks.append(Break("header", seq, fields=tuple(fields)))
        self._header = header

    def _take_seal(self, seq: int, seal: RequestSealed, time: int) -> None:
        kept = gap = None
        if self._seal is not None:
            gap = time - self._sealed_at
            if seal.codec != self._seal.codec:
                codecs = (self._seal.codec, seal.codec)
                self._breaks.append(Break("codec", seq, codecs=codecs))
            kept = kept_share(seal.shared_prefix_bytes, self._seal.wire_bytes, self._seal.codec)
        self._seal, self._sealed_at = seal, time
        self._update(wire_bytes=seal.wire_bytes, kept=kept, gap_ms=gap)
        self._take_breaks()

    def _take_usage(self, usage: Usage | None) -> None:
        self._take_breaks()
        if usage is not None:
            self._update(usage=usage)

    def _take_breaks(self) -> None:
        self._update(breaks=(*self.rows[-1].breaks, *self._breaks))
        self._breaks = []

    def _update(self, **fields: Any) -> None:
        self.rows[-1] = attrs.evolve(self.rows[-1], **fields)
