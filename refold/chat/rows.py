"""Text in rows of a terminal: words are not broken, and cells are counted as shown; pure."""

from __future__ import annotations

import re
from typing import TypeAlias

import attrs
from wcwidth import iter_graphemes, width

from refold.render import Colour, styled

Row: TypeAlias = tuple["Fragment", ...]

TAB = 8

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # a row may end between any two of these
_TOKEN = re.compile(rf"\n|[ \t]+|[{_IDEOGRAPHS}]|[^ \t\n{_IDEOGRAPHS}]+")


@attrs.frozen
class Fragment:
    """A word, an ideograph or blanks, as far as it was said in one style."""

    text: str
    style: Colour | None

    @property
    def is_word(self) -> bool:
        return not self.text.isspace() and re.match(f"[{_IDEOGRAPHS}]", self.text) is None


class Rows:
    """Breaks text that comes in pieces into rows; the one that is not whole yet is `tail`.

    Only a word that is wider than a row is broken. Blanks where a row is broken are left out.
    """

    def __init__(self) -> None:
        self._row: list[Fragment] = []
        self._broken = False
        self._cut = False

    @property
    def tail(self) -> Row:
        return tuple(self._row)

    def add(self, text: str, style: Colour | None, columns: int) -> list[Row]:
        """The rows of `columns` cells that are whole now; `text` is safe to show."""
        whole: list[Row] = []
        for found in _TOKEN.findall(text):
            if found == "\n":
                if not self._cut:
                    whole.append(self._take())
                self._broken = self._cut = False
            elif found.isspace():
                self._blanks(found, style, columns, whole)
            else:
                self._word(Fragment(found, style), columns, whole)
        return whole

    def cut(self) -> list[Row]:
        """End the row here, whole or not; a line end that comes next has nothing left to do."""
        if not self._row:
            return []
        whole = [self._take()]
        self._broken = self._cut = True
        return whole

    def _take(self) -> Row:
        while self._row and self._row[-1].text.isspace():
            self._row.pop()
        row, self._row = tuple(self._row), []
        return row

    def _break(self, whole: list[Row]) -> None:
        whole.append(self._take())
        self._broken = True

    def _cells(self) -> int:
        return width("".join(fragment.text for fragment in self._row))

    def _blanks(self, token: str, style: Colour | None, columns: int, whole: list[Row]) -> None:
        self._cut = False
        if self._broken and not self._row:
            return
        cells = self._cells()
        blanks = f"{' ' * cells}{token}".expandtabs(TAB)[cells:]
        if cells + len(blanks) > columns:
            self._break(whole)
        else:
            self._row.append(Fragment(blanks, style))

    def _word(self, word: Fragment, columns: int, whole: list[Row]) -> None:
        self._cut = False
        if self._cells() + width(word.text) > columns:
            self._move_word(word, whole)
        while self._cells() + width(word.text) > columns:
            head = self._fitting(word.text, columns - self._cells())
            self._row.append(attrs.evolve(word, text=head))
            self._break(whole)
            word = attrs.evolve(word, text=word.text[len(head) :])
        if word.text:
            self._row.append(word)

    def _move_word(self, word: Fragment, whole: list[Row]) -> None:
        """Begin a row with the word that `word` ends, if anything else stands before it."""
        start = len(self._row)
        while word.is_word and start and self._row[start - 1].is_word:
            start -= 1
        if any(not fragment.text.isspace() for fragment in self._row[:start]):
            begun, self._row = self._row[start:], self._row[:start]
            self._break(whole)
            self._row = begun

    def _fitting(self, text: str, room: int) -> str:
        """The clusters of `text` that fit; at least one where the row is empty."""
        if text.isascii():
            return text[: max(room, 0 if self._row else 1)]
        fitting = ""
        for cluster in iter_graphemes(text):
            if width(fitting + cluster) > room and (fitting or self._row):
                break
            fitting += cluster
        return fitting


def as_text(row: Row) -> str:
    """A row as a terminal is sent it."""
    return "".join(f.text if f.style is None else styled(f.text, f.style) for f in row)
