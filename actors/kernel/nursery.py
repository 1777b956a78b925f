"""Nurseries out of which one error comes as itself.

Trio wraps whatever leaves a nursery in a group, also a single error. Everywhere here a block that
failed in one way is to fail with that error, so that its caller can catch it by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

PROGRAM_ENDS = (KeyboardInterrupt, SystemExit)
"""What ends the program whatever else went wrong beside it."""


@asynccontextmanager
async def open_flat_nursery() -> AsyncIterator[trio.Nursery]:
    """As `trio.open_nursery`, but a group of one error is raised as that error."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        error = sole_error(group)
        if error is group:
            raise
        raise error from error.__cause__


def sole_error(error: BaseException) -> BaseException:
    """The one error in a group that is no cancellation, else the group; an error is itself.

    A KeyboardInterrupt or SystemExit stands for the whole group.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    ends, _ = error.split(PROGRAM_ENDS)
    found = _first_leaf(ends) if ends is not None else error.split(trio.Cancelled)[1]
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return error if found is None else found


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
