"""Signs of life on standard error, if it is a terminal and the work takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import click

from refold.render import is_terminal, visible_line

PATIENCE = 1.0
"""Seconds of work after which progress is shown, and between two signs of it."""

T = TypeVar("T")


def watched(items: Sequence[T], doing: Callable[[T], str]) -> Iterator[T]:
    """The items, one by one; where they take long, `doing` says of one what is being done."""
    due, shown = time.monotonic() + PATIENCE, False
    try:
        for number, item in enumerate(items, 1):
            if time.monotonic() >= due and is_terminal(sys.stderr):
                due, shown = time.monotonic() + PATIENCE, True
                _say(f"{doing(item)}, {number} of {len(items)}")
            yield item
    finally:
        if shown:
            _say("")


def _say(text: str) -> None:
    click.echo(f"\r{visible_line(text)}\x1b[K", err=True, nl=False)
