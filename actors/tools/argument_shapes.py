"""Shapes: the schema that a model reads, beside the reader that holds a parsed value to it.

One made of others takes both from them, so that schema and reader cannot disagree.
Readers never coerce: `true` is no integer and `"5"` is no number; only a whole number is taken
where a `float` is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import attrs
import orjson

from refold.runtime.errors import Refused


@attrs.define(eq=False)
class BadArguments(Refused):
    """Arguments of a model that do not fit the tool's schema; the text is for the model."""

    problem: str

    def __str__(self) -> str:
        return f"the arguments do not fit: {self.problem}; correct this and call the tool again"


@attrs.frozen
class Shape:
    """What one value of the arguments has to be, once for the model and once for the reader."""

    schema: dict[str, Any]
    read: Callable[[Any, str], Any]  # (parsed value, its JSON path) -> what the function gets


SCALARS: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}
"""The types without parts, each with its name in JSON schema."""

_JSON_NAMES = {**SCALARS, list: "array", dict: "object"}


def _wrong_type(path: str, wanted: str, value: object) -> BadArguments:
    return BadArguments(f"{path} must be of type {wanted}, got {_JSON_NAMES[type(value)]}")


def scalar(kind: type) -> Shape:
    """A value of one of `SCALARS`."""
    wanted = SCALARS[kind]
    accepted = (float, int) if kind is float else (kind,)

    def read(value: Any, path: str) -> object:
        if type(value) not in accepted:
            raise _wrong_type(path, wanted, value)
        return float(value) if kind is float else value

    return Shape({"type": wanted}, read)


def array(item: Shape, build: Callable[[Iterable[Any]], Any]) -> Shape:
    """Any number of items of one shape; `build` makes of them what the function gets."""

    def read(value: Any, path: str) -> Any:
        if type(value) is not list:
            raise _wrong_type(path, "array", value)
        return build(item.read(part, f"{path}[{index}]") for index, part in enumerate(value))

    return Shape({"type": "array", "items": item.schema}, read)


def mapping(item: Shape) -> Shape:
    """An object of any keys, with values of one shape."""

    def read(value: Any, path: str) -> object:
        if type(value) is not dict:
            raise _wrong_type(path, "object", value)
        return {key: item.read(part, f"{path}.{key}") for key, part in value.items()}

    return Shape({"type": "object", "additionalProperties": item.schema}, read)


def union(arms: Sequence[Shape]) -> Shape:
    """A value of the first of `arms` that takes it."""

    def read(value: Any, path: str) -> object:
        problems = []
        for arm in arms:
            try:
                return arm.read(value, path)
            except BadArguments as misfit:
                problems.append(misfit.problem)
        raise BadArguments(", or ".join(problems))

    return Shape({"anyOf": [arm.schema for arm in arms]}, read)


def choice(options: Sequence[tuple[Any, Any]]) -> Shape:
    """One of some JSON values, each beside what the function gets for it."""
    values = [value for value, _ in options]
    shown = ", ".join(orjson.dumps(value).decode() for value in values)

    def read(value: Any, path: str) -> object:
        for option, meaning in options:
            if type(option) is type(value) and option == value:  # True == 1
                return meaning
        raise BadArguments(f"{path} must be one of {shown}")

    kinds = {type(value) for value in values}
    named = {"type": SCALARS[kinds.pop()]} if len(kinds) == 1 else {}
    return Shape({**named, "enum": values}, read)


def record(
    fields: Mapping[str, Shape],
    required: Sequence[str],
    build: Callable[[dict[str, Any], str], Any],
) -> Shape:
    """An object of exactly these fields; `build` is given their values and the object's path."""

    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _wrong_type(path, "object", value)
        _check_names(value, fields, required, path)
        return build({k: fields[k].read(part, f"{path}.{k}") for k, part in value.items()}, path)

    schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in fields.items()},
        "required": required,
        "additionalProperties": False,
    }
    return Shape(schema, read)


def _check_names(
    value: Mapping[str, Any], known: Mapping[str, Any], required: Sequence[str], path: str
) -> None:
    problems = []
    if missing := [name for name in required if name not in value]:
        problems.append(f"lacks {', '.join(missing)}")
    if unknown := [name for name in value if name not in known]:
        problems.append(f"has no field {', '.join(unknown)}")
    if problems:
        names = ", ".join(known) or "none"
        raise BadArguments(f"{path} {' and '.join(problems)} (the fields are: {names})")


def described(shape: Shape, text: str | None) -> Shape:
    """`shape` with a description, unless its hint brought one."""
    if not text or "description" in shape.schema:
        return shape
    return attrs.evolve(shape, schema={**shape.schema, "description": text})
