"""Plain text for terminals: what came from a log is shown and never obeyed."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Literal, TypeAlias

import click
import orjson

Colour: TypeAlias = Literal["dim", "bold", "red", "green", "yellow", "cyan"]


def visible(text: str) -> str:
    """`text` with every character that a terminal could act on, or that deceives, as an escape.

    Those are controls, bidi embeddings, overrides and isolates, line and paragraph separators,
    tags, surrogates, and format characters that no script needs. What people write stays: joiners
    in Persian, Hindi and emoji, variation selectors, characters that are newer than this Python.
    Newlines and tabs stay.
    """
    return _rewritten(text, "\n\t", _escape)


def visible_line(text: str) -> str:
    """Like `visible`, for places that have one line: newlines and tabs are escaped too."""
    return _rewritten(text, "", _escape)


def visible_json(encoded: bytes) -> str:
    """JSON text that means the same, with each character that does not print as a JSON escape."""
    text = encoded.decode("utf-8", "replace")
    return "".join(c if _prints(c) or c == "\n" else _json_escape(c) for c in text)


def to_json(value: object) -> str:
    """One line of JSON, safe on any terminal."""
    return visible_json(orjson.dumps(value))


def to_pretty_json(encoded: bytes) -> str:
    """JSON bytes indented, in their own order."""
    return visible_json(orjson.dumps(orjson.loads(encoded), option=orjson.OPT_INDENT_2))


def _rewritten(text: str, kept: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(char if char in kept or _is_plain(char) else escape(char) for char in text)


def _prints(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


_JOINERS = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060"
"""Soft hyphen, marks of direction, and what joins or parts letters: they reorder nothing."""


def _is_plain(char: str) -> bool:
    if _prints(char) or char in _JOINERS:
        return True
    # Private use and what Python has no name for yet, such as new emoji, have a glyph or a box.
    return unicodedata.category(char) in ("Co", "Cn") and not _is_tag(char)


def _is_tag(char: str) -> bool:
    """Whether it stands in the plane of characters that are never seen."""
    return ord(char) >> 16 == 0xE


def _escape(char: str) -> str:
    named = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def styled(text: str, colour: Colour) -> str:
    """`text` in a colour, if there `has_colour`."""
    if not has_colour():
        return text
    match colour:
        case "bold":
            return click.style(text, bold=True)
        case "dim":
            return click.style(text, dim=True)
        case _:
            return click.style(text, fg=colour)


def has_colour() -> bool:
    """Whether standard output is a terminal and NO_COLOR is unset or empty."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")


def is_terminal(stream: IO[str]) -> bool:
    return stream.isatty()


def indented(text: str, by: str = "  ") -> Iterable[str]:
    """The lines of a text from a log, made visible and indented."""
    return (f"{by}{line}" for line in visible(text).split("\n"))


def shortened(text: str, limit: int) -> str:
    """`text` on one line of at most `limit` characters."""
    line = visible_line(text if len(text) <= limit else text[:limit])
    return line if len(line) <= limit and len(text) <= limit else f"{line[: limit - 3]}..."


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(milliseconds: int) -> str:
    """A time in its largest unit, such as `12 min`."""
    for name, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= size:
            return f"{milliseconds // size} {name}"
    return f"{milliseconds} ms"


def percent(share: float | None) -> str:
    """A share in percent, rounded down: 100.0 % means all of it. Unknown is `-`, never 0."""
    return "-" if share is None else f"{int(share * 1000) / 10:.1f} %"


def number(count: int | None) -> str:
    """A count, with `-` for unknown."""
    return "-" if count is None else str(count)


def bar(share: float | None, width: int = 10) -> str:
    """A share as a bar, full only at 1; unknown is `-`."""
    if share is None:
        return "-"
    filled = int(share * width)
    return "#" * filled + "." * (width - filled)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: frozenset[int]) -> str:
    """Columns aligned to the right, but for those in `left`."""
    cells = [list(map(visible_line, row)) for row in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(_table_row(row, widths, left) for row in cells)


def _table_row(row: Sequence[str], widths: Sequence[int], left: frozenset[int]) -> str:
    padded = (
        cell.ljust(width) if at in left else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(padded).rstrip()
