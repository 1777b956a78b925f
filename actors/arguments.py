"""What a caller may give: each argument is looked at as soon as it is given.

Python checks no types. What is wrong would otherwise be met where nobody can say whose it was: in
the log writer, at a replay, in the middle of a turn.
"""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import Any, TypeGuard

from refold.runtime.errors import InvalidArgument
from refold.runtime.json import check


def wrong(name: str, wanted: str, value: object) -> InvalidArgument:
    """The refusal of `value` as the argument `name`, which must be `wanted`."""
    return InvalidArgument(name, f"must be {wanted}, not {type(value).__name__}")


def check_text(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless `value` is text, `NotLosslessJson` for a lone surrogate."""
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    check(value, f"$.{name}")


def check_optional_text(name: str, value: object) -> None:
    """As `check_text`, but None is nothing said."""
    if value is not None:
        if not isinstance(value, str):
            raise wrong(name, "text or None", value)
        check(value, f"$.{name}")


def check_seq(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless `value` is the seq of an event."""
    if type(value) is not int:
        raise wrong(name, "a seq, which is an integer from 0", value)
    if value < 0:
        raise InvalidArgument(name, "must be a seq, which is an integer from 0")


def check_switch(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless `value` is True or False."""
    if type(value) is not bool:
        raise wrong(name, "True or False", value)


def check_callback(name: str, value: object) -> None:
    """Raise `InvalidArgument` unless `value` is a function that is over when it returns."""
    if not callable(value):
        raise wrong(name, "a function", value)
    if is_async(value):
        raise InvalidArgument(name, "must be a plain function; nobody awaits an async one")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a finite number; True and False are none."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def unwrapped(function: Any) -> Any:
    """The function that runs in the end: what is wrapped, a method's, an object's `__call__`."""
    while isinstance(function, partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return getattr(type(function), "__call__", None)  # noqa: B004 - asked for as a function


def is_async(function: Any) -> bool:
    """Whether calling `function` gives something to await, as far as it can be told.

    That is an async function, what wraps one, and an object whose `__call__` is one.
    """
    try:
        return any(map(inspect.iscoroutinefunction, (function, unwrapped(function))))
    except Exception:  # noqa: BLE001 - an object may answer such questions as it likes
        return False
