"""Who sits at the terminal: what a chat hears of them, and what it shows them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

import attrs

from refold.chat.feed import Piece
from refold.render import styled, visible

PROMPT, MORE = "> ", "  "
"""What stands before a text that is typed, and before each further line of it."""


@attrs.frozen
class Entered:
    """A text that was typed to its end; `command` if it begins with a slash that was typed."""

    text: str
    command: bool


Heard: TypeAlias = Entered | Literal["interrupt", "leave", "gone"]


class Person(Protocol):
    """A person at a terminal, with a line editor or without; all is called from Trio's thread."""

    async def run(self) -> None:
        """Take keys until `leave` is called or the terminal is gone. Cancelling it is leaving."""

    def show(self, pieces: Sequence[Piece]) -> None:
        """Show text as soon as it can be; after `run`, at once."""

    def refresh(self) -> None:
        """What is waited for has changed."""

    def woken(self) -> None:
        """The process went on after a stop, in which the terminal may have been used otherwise."""

    def resized(self) -> None:
        """The terminal has another size."""

    def leave(self) -> None:
        """End `run`."""


def write(text: str) -> None:
    """Write to the terminal, past buffers that could not be emptied once it is gone."""
    data = text.encode(sys.stdout.encoding, "backslashreplace")
    with suppress(OSError):  # a terminal that is gone says so where it is read
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def show_at_once(pieces: Sequence[Piece]) -> None:
    """Write pieces to the terminal as they come, which breaks the lines by itself."""
    for piece in pieces:
        text = piece.text if piece.kind == "aside" else visible(piece.text)
        write(text if piece.style is None else styled(text, piece.style))
