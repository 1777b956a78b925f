"""What a tool's return annotation may promise: what a model can be shown."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from refold.runtime.messages import BLOCKS

SHOWN = "text, a number, a bool, None, an attrs instance, or a list or dict of these"

_SHOWABLE: tuple[type, ...] = (
    str,
    int,
    float,
    NoneType,
    list,
    tuple,
    Mapping,
    Enum,
    *BLOCKS.values(),
)


def unshowable(hint: Any) -> str | None:
    """The part of a return annotation that can never be a tool's result; None where all can be."""
    origin = get_origin(hint)
    match get_args(hint):
        case (inner, *_) if origin is Annotated:
            return unshowable(inner)
        case parts if origin in (Union, UnionType, list, tuple):
            return _first(parts)
        case (_, *values) if origin is dict or _is_a(origin, Mapping):
            return _first(values)
        case parts if origin is not None and _is_a(origin, Awaitable):
            return unshowable(parts[-1])
    kind: Any = hint if origin is None else origin
    if not isinstance(kind, type) or origin is Literal:  # a TypeVar, Any, Never
        return None
    open_ended = kind in (Any, object) or (inspect.isabstract(kind) and kind is not Callable)
    if open_ended or _is_a(kind, *_SHOWABLE) or attrs.has(kind):
        return None
    return inspect.formatannotation(hint)


def _is_a(kind: Any, *classes: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, classes)


def _first(hints: Sequence[Any]) -> str | None:
    return next(filter(None, (unshowable(part) for part in hints if part is not ...)), None)
