"""A terminal without a line editor: its own line editing, and text written as it comes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import trio

from refold.chat.feed import Piece
from refold.chat.person import PROMPT, Entered, Heard, show_at_once, write
from refold.chat.terminal import lines


class Plain:
    """A `Person` at a terminal that edits lines itself."""

    def __init__(self, heard: Callable[[Heard], None], awaited: Callable[[], str | None]) -> None:
        self._heard, self._awaited = heard, awaited
        self._running = trio.CancelScope()

    async def run(self) -> None:
        with self._running:
            self.refresh()
            async for line in lines(sys.stdin.fileno()):
                if line.strip():
                    self._heard(Entered(line, line.startswith("/")))
                else:
                    self.refresh()
            self._heard("leave")
            await trio.sleep_forever()  # until what was said before has been done

    def show(self, pieces: Sequence[Piece]) -> None:
        show_at_once(pieces)

    def refresh(self) -> None:
        if self._awaited() is None:
            write(PROMPT)

    def woken(self) -> None:
        self.refresh()

    def resized(self) -> None:
        """The terminal breaks lines by itself."""

    def leave(self) -> None:
        self._running.cancel()
