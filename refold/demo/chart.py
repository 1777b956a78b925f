"""The cache chart of the tour, in plain text: what each request kept of the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from refold.demo.account import RequestRow

WIDTH = 40
"""Characters of the longest bar."""


def draw(rows: Sequence[RequestRow], *, tokens: bool) -> Iterator[str]:
    """The lines of the chart: bytes of the bodies, or with `tokens` the engine's own counts."""
    yield _line("request", "sent", "kept", "new", "# kept  . new")
    sizes = [_sizes(row, tokens=tokens) for row in rows]
    most = max((sum(size) for size in sizes), default=0)
    for row, (kept, new) in zip(rows, sizes, strict=True):
        bar = "#" * _scaled(kept, most)
        bar += "." * (_scaled(kept + new, most) - len(bar))
        yield _line(row.name, str(kept + new), str(kept), str(new), bar)


def _line(*cells: str) -> str:
    name, *numbers, bar = cells
    return f"  {name:<8}" + "".join(f"{number:>7}" for number in numbers) + f"   {bar}"


def _sizes(row: RequestRow, *, tokens: bool) -> tuple[int, int]:
    if not tokens:
        return row.kept_bytes, row.wire_bytes - row.kept_bytes
    if row.usage is None:
        return 0, 0
    return row.usage.cache_read_tokens or 0, row.usage.input_tokens or 0


def _scaled(size: int, most: int) -> int:
    return round(WIDTH * size / most) if most else 0


def equalities(rows: Sequence[RequestRow]) -> Iterator[str]:
    """A line for each request after the first: what the engine should have cached, and had."""
    for previous, row in pairwise(rows):
        cached = None if row.usage is None else row.usage.cache_read_tokens
        verdict = "equal" if row.is_cached_after(previous) else "NOT EQUAL"
        yield (
            f"  {row.name:<8} cached {_number(cached):>5}   all tokens of {previous.name} "
            f"but the last: {_number(_less_one(previous.total_tokens)):>5}   {verdict}"
        )


def _less_one(total: int | None) -> int | None:
    return None if total is None else total - 1


def _number(count: int | None) -> str:
    return "-" if count is None else str(count)
