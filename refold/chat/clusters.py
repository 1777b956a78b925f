"""Moving and deleting by what a person sees as one character."""

from __future__ import annotations

from prompt_toolkit.buffer import Buffer
from wcwidth import grapheme_boundary_before, iter_graphemes, width


def before(buffer: Buffer) -> int:
    """How many code points the cluster before the cursor has; 0 at the start."""
    text = buffer.document.text_before_cursor
    return len(text) - grapheme_boundary_before(text, len(text)) if text else 0


def after(buffer: Buffer) -> int:
    """How many code points the cluster behind the cursor has; 0 at the end."""
    return len(next(iter_graphemes(buffer.document.text_after_cursor), ""))


def settle(buffer: Buffer) -> None:
    """Take a cursor that came to stand inside a cluster to its start."""
    text, cursor = buffer.text, buffer.cursor_position
    if 0 < cursor < len(text) and not text[cursor].isascii():
        start = grapheme_boundary_before(text, cursor + 1)
        if start != cursor:
            buffer.cursor_position = start


def some_are_joined(text: str) -> bool:
    """Whether terminals differ in how many cells `text` takes: some join emoji, some do not."""
    return not text.isascii() and width(text) != sum(width(char) for char in text)
