"""What waits to be shown, in the order in which it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import attrs
import trio

from refold.render import Colour

Kind: TypeAlias = Literal["answer", "thinking", "aside"]


@attrs.frozen
class Piece:
    """A piece of text.

    `answer` is the model's, as it came, and `thinking` too; an `aside` is what is said about them,
    in lines of its own, and safe to show.
    """

    text: str
    kind: Kind
    style: Colour | None = None


class Feed:
    """Pieces on their way to a display.

    The log and the model put them in from callbacks, which must neither wait nor fail.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._filled = trio.Event()

    def put(self, piece: Piece) -> None:
        self._pieces.append(piece)
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
