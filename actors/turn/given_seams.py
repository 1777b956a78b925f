"""What may be given as a seam: an async function that can be called with what its kind is given.

One that is wrong would otherwise be met in the middle of a turn, where nobody can say whose it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from refold.actors.arguments import is_async, wrong
from refold.actors.context import context_parameters
from refold.runtime.errors import InvalidArgument, RefoldError

_GIVEN: Mapping[str, tuple[str, ...]] = {
    "session_start": ("log", "source"),
    "prompt_submit": ("view",),
    "session_prefix": ("log",),
    "pre_step": ("view",),
    "request": ("config",),
    "pre_tool": ("call",),
    "post_tool": ("call", "outcome"),
    "turn_continuation": ("view",),
    "turn_stop": ("view",),
}
"""What a seam of each kind is called with, in order."""


def check_kinds(unnamed: Sequence[object], named: Iterable[str], kinds: Sequence[str]) -> None:
    """Raise `InvalidArgument` for seams that are given without their kind, or under no such one."""
    if unnamed:
        raise InvalidArgument("a seam", "is given by its kind, as in Seams(pre_tool=(mine,))")
    for name in named:
        if name not in kinds:
            close = get_close_matches(name, kinds, n=1)
            meant = f"did you mean {close[0]}? There" if close else "there"
            raise InvalidArgument(name, f"is no kind of seam; {meant} are {', '.join(kinds)}")


def check_seams(kind: str, given: object) -> tuple[Callable[..., Any], ...]:
    """The seams of one kind as a tuple; raises `InvalidArgument` for what cannot be asked."""
    if not isinstance(given, list | tuple):
        raise wrong(kind, "a tuple of async functions, such as (mine,)", given)
    for seam in given:
        try:
            problem = _problem(seam) or _misfit(kind, seam)
        except RefoldError:
            raise
        except Exception as error:  # an object may answer questions as it likes
            problem = f"{type(seam).__name__}, which fails when it is looked at"
            raise InvalidArgument(kind, f"holds {problem}") from error
        if problem is not None:
            raise InvalidArgument(kind, f"holds {problem}")
    return tuple(given)


def _problem(seam: Any) -> str | None:
    if isinstance(seam, type):
        return f"the class {seam.__name__}; give it an async function"
    if not callable(seam):
        return f"{type(seam).__name__}, which is no function; give it an async function"
    if is_async(seam):
        return None
    name = name_of(seam)
    if inspect.isasyncgenfunction(seam):
        return f"{name}, which yields; let it return what it says"
    return f"{name}, which is no async function; write it as `async def`"


def _misfit(kind: str, seam: Callable[..., Any]) -> str | None:
    given = _GIVEN[kind]
    try:
        signature = inspect.signature(seam, follow_wrapped=False)
    except (TypeError, ValueError):  # some callables do not tell
        return None
    contexts = dict.fromkeys(context_parameters(seam))
    try:
        signature.bind(*given, **contexts)
    except TypeError:
        return (
            f"{name_of(seam)}, which cannot be called with what a seam of this kind is given, "
            f"({', '.join(given)}), and a refold.Context by name where a parameter is annotated so"
        )
    return None


def name_of(seam: object) -> str:
    """What errors call a seam."""
    while isinstance(seam, partial):
        seam = seam.func
    name = getattr(seam, "__qualname__", None)
    return name if isinstance(name, str) else type(seam).__qualname__
