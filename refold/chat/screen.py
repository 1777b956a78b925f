"""The two displays: a terminal with a line that is being typed, and a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from refold.chat.feed import Piece
from refold.chat.line import PROMPT, Line, row
from refold.render import styled, visible

NARROW = 80
"""How many columns a terminal has that does not know its width."""


class Screen:
    """A terminal: text that stays, and below it the row that is being typed, while it is shown.

    The row is drawn with carriage returns and blanks alone, so any terminal can do it. While it
    stands there, only whole lines appear above it; what is left of a line waits.
    """

    def __init__(self) -> None:
        self._line: Line | None = None
        self._drawn = 0
        self._waiting = ""
        self._in_line = False
        self._broken = False

    def show(self, pieces: Sequence[Piece]) -> None:
        """Show text, above the row if there is one."""
        self._waiting += "".join(map(_shown, pieces))
        self._draw()

    def show_row(self, line: Line | None, pieces: Sequence[Piece] = ()) -> None:
        """Show text, and below it the row of `line` as it is now, or with None no row."""
        self._line = line
        self.show(pieces)

    def keep_row(self, text: str) -> None:
        """Let a line that was typed to its end stand where its row is."""
        _write(f"{self._erased()}{self._broken_off()}{PROMPT}{visible(text)}\n")
        self._drawn = 0

    def _draw(self) -> None:
        out = self._erased()
        if self._line is None:
            out += self._staying(self._waiting)
            self._waiting = ""
            self._drawn = 0
            _write(out)
            return
        whole, end, self._waiting = self._waiting.rpartition("\n")
        out += self._staying(whole + end)
        out += self._broken_off()
        shown = row(self._line, _columns())
        self._drawn = shown.cells
        back = f"\r{shown.before}" if shown.after else ""
        _write(f"{out}{shown.text}{back}")

    def _broken_off(self) -> str:
        if not self._in_line:
            return ""
        self._in_line, self._broken = False, True
        return "\n"

    def _staying(self, text: str) -> str:
        if not text:
            return ""
        self._in_line = not text.endswith("\n")
        # Where the row broke a line off, the line's own end has nothing left to do.
        shown = text.removeprefix("\n") if self._broken else text
        self._broken = False
        return shown

    def _erased(self) -> str:
        blanks = " " * min(self._drawn, _columns() - 1)  # the window may be narrower by now
        return f"\r{blanks}\r" if blanks else ""


def _shown(piece: Piece) -> str:
    text = piece.text if piece.kind == "aside" else visible(piece.text)
    return text if piece.style is None else styled(text, piece.style)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or NARROW
    except OSError:
        return NARROW


def _write(text: str) -> None:
    """Write to the terminal, past buffers that could not be emptied once it is gone."""
    data = text.encode(sys.stdout.encoding, "backslashreplace")
    with suppress(OSError):  # a terminal that is gone says so where it is read
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
