"""Bounds in `Annotated`: the keyword that a schema gets and the rule that a value is held to."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import attrs

from refold.actors.tools.argument_shapes import BadArguments, Shape


@attrs.frozen
class Ge:
    """In `Annotated[int, Ge(1)]` or of a float: the least value that is accepted."""

    limit: float


@attrs.frozen
class Le:
    """In `Annotated[int, Le(99)]` or of a float: the greatest value that is accepted."""

    limit: float


@attrs.frozen
class MinLen:
    """The least number of characters of a text, or of items of a list or tuple."""

    limit: int


@attrs.frozen
class MaxLen:
    """The greatest number of characters of a text, or of items of a list or tuple."""

    limit: int


@attrs.frozen
class Pattern:
    """A regular expression that must match somewhere in a text; anchor it with ^ and $."""

    regex: str = attrs.field(validator=lambda _self, _field, regex: re.compile(regex))


@attrs.frozen
class _Rule:
    keyword: str
    words: str
    holds: Callable[[Any, Any], bool]


_RULES = {
    (Ge, "integer"): _Rule("minimum", "be at least {}", operator.ge),
    (Ge, "number"): _Rule("minimum", "be at least {}", operator.ge),
    (Le, "integer"): _Rule("maximum", "be at most {}", operator.le),
    (Le, "number"): _Rule("maximum", "be at most {}", operator.le),
    (MinLen, "string"): _Rule(
        "minLength", "have at least {} characters", lambda text, n: len(text) >= n
    ),
    (MaxLen, "string"): _Rule(
        "maxLength", "have at most {} characters", lambda text, n: len(text) <= n
    ),
    (MinLen, "array"): _Rule(
        "minItems", "have at least {} items", lambda items, n: len(items) >= n
    ),
    (MaxLen, "array"): _Rule("maxItems", "have at most {} items", lambda items, n: len(items) <= n),
    (Pattern, "string"): _Rule(
        "pattern", "match the pattern {}", lambda text, regex: bool(re.search(regex, text))
    ),
}


def bounded(shape: Shape, mark: Any) -> Shape | None:
    """`shape` held to `mark` as well; None where it is no bound for values of that type."""
    rule = _RULES.get((type(mark), shape.schema.get("type", "")))
    return None if rule is None else _held(shape, rule, attrs.astuple(mark)[0])


def _held(shape: Shape, rule: _Rule, limit: Any) -> Shape:
    def read(value: Any, path: str) -> object:
        meaning = shape.read(value, path)
        if not rule.holds(value, limit):
            raise BadArguments(f"{path} must {rule.words.format(limit)}")
        return meaning

    return Shape({**shape.schema, rule.keyword: limit}, read)
