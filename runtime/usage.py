"""What each step of a log cost, how much of the last request it kept, and what broke that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from runtime.comparison import kept_share
from runtime.difference import Difference, compare_headers
from runtime.envelope import Event, Replace
from runtime.events import (
    AssistantChunk,
    AssistantMessage,
    LlmRetry,
    RequestSealed,
    StepStart,
)
from runtime.header import EpochHeader, RequestHeader
from runtime.stream.chunks import Usage, UsageChunk


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

    `kept` is how much of the previous sealed body begins this one, 0 to 1 (see `kept_share`).
    `retries` counts failed attempts, whose tokens are not in `usage`.
    """

    turn: int
    step: int
    seq: int
    usage: Usage | None = None
    wire_bytes: int | None = None
    kept: float | None = None
    breaks: tuple[Break, ...] = ()
    retries: int = 0

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


class _Fold:
    def __init__(self) -> None:
        self.rows: list[StepUsage] = []
        self._header: EpochHeader | None = None
        self._seal: RequestSealed | None = None
        self._breaks: list[Break] = []

    def feed(self, event: Event) -> None:
        if isinstance(event.surface_op, Replace):
            self._breaks.append(Break("replacement", event.seq, replaced=event.surface_op))
        if event.type == "assistant/chunk" and b'"usage"' not in event.encoded:
            return  # most of a log is chunks, and building their data would cost the most
        match event.data:
            case RequestHeader(header=header, reason=reason):
                self._follow_header(event.seq, header, reason)
            case StepStart(turn=turn, step=step):
                self.rows.append(StepUsage(turn, step, event.seq))
            case RequestSealed() as seal if self.rows:
                self._take_seal(event.seq, seal)
            case AssistantMessage(usage=usage) if self.rows:
                self._take_usage(usage)
            case AssistantChunk(chunk=UsageChunk(usage=usage)) if self.rows:
                self._take_usage(usage)
            case LlmRetry() if self.rows:
                self._update(retries=self.rows[-1].retries + 1)

    def _follow_header(self, seq: int, header: EpochHeader, reason: str) -> None:
        if reason == "resume":
            self._breaks.append(Break("instance", seq))
        fields = () if self._header is None else compare_headers(self._header, header)
        if fields:
            self._breaks.append(Break("header", seq, fields=tuple(fields)))
        self._header = header

    def _take_seal(self, seq: int, seal: RequestSealed) -> None:
        kept = None
        if self._seal is not None:
            if seal.codec != self._seal.codec:
                codecs = (self._seal.codec, seal.codec)
                self._breaks.append(Break("codec", seq, codecs=codecs))
            kept = kept_share(seal.shared_prefix_bytes, self._seal.wire_bytes, self._seal.codec)
        self._seal = seal
        self._update(wire_bytes=seal.wire_bytes, kept=kept)
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
