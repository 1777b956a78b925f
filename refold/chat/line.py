"""The line that is being typed: its text, its cursor, and the lines before it; pure."""

from __future__ import annotations

import unicodedata

import attrs

from refold.chat.keys import Key, Typed
from refold.render import visible_line

PROMPT = "> "


@attrs.define
class Line:
    """A line under the cursor; `cursor` counts characters from its start."""

    text: str = ""
    cursor: int = 0
    _history: list[str] = attrs.field(factory=list)
    _place: int = 0
    _draft: str = ""

    def take(self) -> str:
        """Empty the line and return its text, which the history then ends with."""
        text = self.text
        if text.strip() and self._history[-1:] != [text]:
            self._history.append(text)
        self._replace("")
        self._place = len(self._history)
        return text

    def clear(self) -> None:
        self._replace("")
        self._place = len(self._history)

    def press(self, key: Typed | Key) -> None:
        """Do what `key` does to a line; `enter` and `end-of-input` do nothing to it."""
        match key:
            case Typed(text):
                self._set(self._before + text, self._after)
            case "backspace":
                self._set(self._before[:-1], self._after)
            case "delete":
                self._set(self._before, self._after[1:])
            case "clear-before":
                self._set("", self._after)
            case "clear-after":
                self._set(self._before, "")
            case "clear-word":
                self._set(self._before.rstrip()[: self._word_start()], self._after)
            case "up" | "down":
                self._browse(-1 if key == "up" else 1)
            case _:
                self._move(key)

    @property
    def _before(self) -> str:
        return self.text[: self.cursor]

    @property
    def _after(self) -> str:
        return self.text[self.cursor :]

    def _set(self, before: str, after: str) -> None:
        self.text, self.cursor = before + after, len(before)

    def _replace(self, text: str) -> None:
        self._set(text, "")

    def _word_start(self) -> int:
        return self._before.rstrip().rfind(" ") + 1

    def _move(self, key: Key) -> None:
        last = len(self.text)
        places = {
            "left": max(0, self.cursor - 1),
            "right": min(last, self.cursor + 1),
            "home": 0,
            "end": last,
        }
        self.cursor = places.get(key, self.cursor)

    def _browse(self, by: int) -> None:
        place = self._place + by
        if not 0 <= place <= len(self._history):
            return
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        self._replace(self._draft if place == len(self._history) else self._history[place])


@attrs.frozen
class Row:
    """The part of a line that fits on one row of a terminal, split at the cursor."""

    before: str
    after: str

    @property
    def text(self) -> str:
        return self.before + self.after

    @property
    def cells(self) -> int:
        return cells(self.text)


def row(line: Line, columns: int) -> Row:
    """The row of a line, prompt and all, in less than `columns` cells so that it never wraps."""
    room = max(0, columns - len(PROMPT) - 1)
    before = _fitting(line.text[max(0, line.cursor - room) : line.cursor][::-1], room)
    before.reverse()
    room -= cells("".join(before))
    after = _fitting(line.text[line.cursor : line.cursor + room], room)
    return Row(PROMPT + "".join(before), "".join(after))


def _fitting(text: str, room: int) -> list[str]:
    """The characters of `text` as they are shown, as far as there is room."""
    shown = []
    for char in text:
        piece = visible_line(char)
        room -= cells(piece)
        if room < 0:
            break
        shown.append(piece)
    return shown


def cells(text: str) -> int:
    """How many cells of a terminal visible text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
