"""A display without an editor: answers on standard output, what is said of them beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from refold.chat.feed import Piece
from refold.render import is_terminal, visible


def show_in_pipe(pieces: Sequence[Piece]) -> None:
    """Write answers to standard output as they are, and all else to standard error, plain.

    Only where standard output is a terminal after all, what it could act on is escaped.
    Raises `BrokenPipeError` where nobody reads the answers any more.
    """
    for piece in pieces:
        if piece.kind == "answer":
            plain = not is_terminal(sys.stdout)
            sys.stdout.write(piece.text if plain else visible(piece.text))
            sys.stdout.flush()
        else:
            show_beside([piece])


def show_beside(pieces: Sequence[Piece]) -> None:
    """Write all but answers to standard error."""
    for piece in pieces:
        if piece.kind != "answer":
            text = visible(piece.text) if piece.kind == "thinking" else click.unstyle(piece.text)
            sys.stderr.write(text)
            sys.stderr.flush()
