"""Which chunks of a stream are written into the log.

The log keeps what reading and replay need. Displays get every chunk undelayed, by another way.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from refold.runtime.stream.chunks import (
    BlockEnd,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

ChunkLogging: TypeAlias = Literal["coalesced", "verbatim", "none"]
_Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


@attrs.define(eq=False)
class _Held:
    since: float
    deltas: list[_Delta] = attrs.Factory(list)
    size: int = 0

    def add(self, delta: _Delta) -> None:
        self.deltas.append(delta)
        self.size += len(_text(delta).encode())


class Trace:
    """Thins the chunks of one answer out before they are logged.

    `coalesced` joins the deltas of a block until they are `interval` seconds old or `limit` bytes
    of UTF-8 long, and leaves the block out of its end where deltas have told it already; starts,
    usage and finish pass. `verbatim` lets everything pass, `none` nothing. There is no timer: what
    is held comes out with a later chunk, or with `flush`.
    """

    def __init__(
        self, setting: ChunkLogging = "coalesced", interval: float = 1.0, limit: int = 8192
    ) -> None:
        self._setting = setting
        self._interval = interval
        self._limit = limit
        self._held: dict[int, _Held] = {}
        self._told: set[int] = set()

    def feed(self, chunk: Chunk, now: float) -> list[Chunk]:
        """The chunks to log now; `now` is in seconds of any clock that never runs back."""
        if self._setting == "none":
            return []
        if self._setting == "verbatim":
            return [chunk]
        if isinstance(chunk, TextDelta | ReasoningDelta | ToolCallDelta):
            self._told.add(chunk.index)
            self._held.setdefault(chunk.index, _Held(now)).add(chunk)
            return self._due(now)
        return [*self._due(now), *self._passed(chunk)]

    def flush(self) -> list[Chunk]:
        """What is still held; for a stream that was cut."""
        return self._release(list(self._held))

    def _passed(self, chunk: Chunk) -> list[Chunk]:
        if isinstance(chunk, BlockEnd):
            held = [chunk.index] if chunk.index in self._held else []
            block = None if chunk.index in self._told else chunk.block
            return [*self._release(held), BlockEnd(chunk.index, block)]
        if isinstance(chunk, Finish):
            return [*self.flush(), chunk]
        return [chunk]

    def _due(self, now: float) -> list[Chunk]:
        return self._release(
            [
                index
                for index, held in self._held.items()
                if now - held.since >= self._interval or held.size >= self._limit
            ]
        )

    def _release(self, indices: list[int]) -> list[Chunk]:
        return [_joined(self._held.pop(index).deltas) for index in indices]


def _text(delta: _Delta) -> str:
    return delta.arguments_delta if isinstance(delta, ToolCallDelta) else delta.text


def _joined(deltas: list[_Delta]) -> _Delta:
    first, text = deltas[0], "".join(map(_text, deltas))
    if isinstance(first, ToolCallDelta):
        names = (delta.name for delta in deltas if isinstance(delta, ToolCallDelta))
        name = next(filter(None, names), None)
        return attrs.evolve(first, arguments_delta=text, name=name)
    return attrs.evolve(first, text=text)
