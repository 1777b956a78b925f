"""From the bytes that a terminal sends to text and keys; pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs

Key: TypeAlias = Literal[
    "enter",
    "end-of-input",
    "backspace",
    "delete",
    "left",
    "right",
    "home",
    "end",
    "up",
    "down",
    "clear-before",
    "clear-after",
    "clear-word",
]


@attrs.frozen
class Typed:
    """Text that was typed or pasted, without a line end."""

    text: str


_CONTROLS: dict[str, Key] = {
    "\r": "enter",
    "\n": "enter",
    "\x01": "home",
    "\x04": "end-of-input",
    "\x05": "end",
    "\x08": "backspace",
    "\x0b": "clear-after",
    "\x0e": "down",
    "\x10": "up",
    "\x15": "clear-before",
    "\x17": "clear-word",
    "\x7f": "backspace",
}

_SEQUENCES: dict[str, Key] = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "F": "end",
    "H": "home",
    "1~": "home",
    "3~": "delete",
    "4~": "end",
    "7~": "home",
    "8~": "end",
}
"""What stands behind ESC [ or ESC O; every other sequence is passed over."""


class KeyReader:
    """Decodes UTF-8 and key sequences, wherever the reads cut them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._sequence: str | None = None

    def feed(self, data: bytes) -> list[Typed | Key]:
        """What `data` completes, in order; runs of text come as one."""
        found: list[Typed | Key] = []
        run: list[str] = []
        for item in self._items(self._decoder.decode(data)):
            if isinstance(item, Typed):
                run.append(item.text)
                continue
            if run:
                found.append(Typed("".join(run)))
                run = []
            found.append(item)
        return [*found, Typed("".join(run))] if run else found

    def _items(self, text: str) -> Iterator[Typed | Key]:
        for char in text:
            if self._sequence is not None:
                yield from self._in_sequence(char)
            else:
                yield from self._plain(char)

    def _plain(self, char: str) -> Iterator[Typed | Key]:
        if char == "\x1b":
            self._sequence = ""
        elif char in _CONTROLS:
            yield _CONTROLS[char]
        elif char >= " " or char == "\t":
            yield Typed(char)

    def _in_sequence(self, char: str) -> Iterator[Typed | Key]:
        if not self._sequence:
            self._sequence = char if char in "[O" else None
            if self._sequence is None:  # the escape key, and another one after it
                yield from self._plain(char)
        elif "@" <= char <= "~":
            key = _SEQUENCES.get(self._sequence[1:] + char)
            self._sequence = None
            if key is not None:
                yield key
        else:
            self._sequence += char
