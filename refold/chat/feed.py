"""What waits to be shown, in the order in which it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio


@attrs.frozen
class Piece:
    """Text that is safe to show; `aside` is what is said about the answer and not part of it."""

    text: str
    aside: bool


class Feed:
    """Pieces on their way to a display.

    The log and the model put them in from callbacks, which must neither wait nor fail.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._filled = trio.Event()

    def put(self, text: str, *, aside: bool) -> None:
        self._pieces.append(Piece(text, aside))
        self._filled.set()

    def take(self) -> list[Piece]:
        """All that waits."""
        pieces, self._pieces = self._pieces, []
        if self._filled.is_set():  # else somebody waits for this one
            self._filled = trio.Event()
        return pieces

    async def show(self, display: Callable[[Sequence[Piece]], None]) -> None:
        """Hand what comes to `display` until cancelled; raises what that raises."""
        while True:
            await self._filled.wait()
            display(self.take())
