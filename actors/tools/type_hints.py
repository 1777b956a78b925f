"""From a type hint to its shape, and what a hint may be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from refold.actors.tools.argument_bounds import bounded
from refold.actors.tools.argument_shapes import (
    SCALARS,
    BadArguments,
    Shape,
    array,
    choice,
    described,
    mapping,
    record,
    scalar,
    union,
)
from refold.runtime.errors import Refused

SUPPORTED = (
    "str, int, float, bool, None, list[T], dict[str, T], tuple[T, ...], unions, Literal, "
    "Enum with text values, attrs classes, and Annotated with a description or a bound"
)


@attrs.define(eq=False)
class InvalidTool(Refused):
    """A function that cannot become a tool; `parameter` is the one at fault, where there is one."""

    function: str
    problem: str
    parameter: str | None = None

    def __str__(self) -> str:
        where = "" if self.parameter is None else f"parameter {self.parameter!r} of "
        return f"{where}{self.function} {self.problem}"


@attrs.frozen
class Field:
    """A parameter of a function or a field of an attrs class, by the name it is passed with."""

    name: str
    hint: Any
    required: bool
    description: str | None = None


@attrs.frozen
class Place:
    """Where a hint stands, and the attrs classes around it: one within itself has no end."""

    function: str
    parameter: str | None = None
    inside: tuple[type, ...] = ()

    def field(self, name: str) -> Place:
        """The place of the field `name` of what stands here."""
        path = name if self.parameter is None else f"{self.parameter}.{name}"
        return attrs.evolve(self, parameter=path)

    def refusal(self, problem: str) -> InvalidTool:
        """The error that says `problem` of this place."""
        return InvalidTool(self.function, problem, self.parameter)


def hints_of(owner: Any, at: Place) -> dict[str, Any]:
    """The evaluated hints of a function or class, by name; raises `InvalidTool`."""
    try:
        return get_type_hints(owner, include_extras=True)
    except Exception as error:  # noqa: BLE001 - hints are code: evaluating them raises anything
        raise at.refusal(
            f"has type hints that cannot be evaluated ({error}); "
            "import or define every name in them at module level"
        ) from None


def shape_of(hint: Any, at: Place) -> Shape:
    """The shape of values of `hint`; raises `InvalidTool` where it is not one of `SUPPORTED`."""
    origin = get_origin(hint)
    match get_args(hint):
        case (item,) if origin is list:
            return array(shape_of(item, at), list)
        case (item, end) if origin is tuple and end is ...:
            return array(shape_of(item, at), tuple)
        case (key, item) if origin is dict and key is str:
            return mapping(shape_of(item, at))
        case (inner, *marks) if origin is Annotated:
            return _annotated(shape_of(inner, at), marks, at)
        case values if origin is Literal:
            return _literal(values, at)
        case arms if origin in (Union, UnionType):
            return union([shape_of(arm, at) for arm in arms])
    return _named(hint, at)


def _named(hint: Any, at: Place) -> Shape:
    kind = NoneType if hint is None else hint
    if kind is inspect.Parameter.empty:
        raise at.refusal(f"has no type hint; give it one of {SUPPORTED}")
    if isinstance(kind, type):
        if kind in SCALARS:
            return scalar(kind)
        if issubclass(kind, Enum):
            return _enum(kind, at)
        if attrs.has(kind):
            return _attrs_class(kind, at)
    shown = inspect.formatannotation(hint)
    raise at.refusal(f"has the type hint {shown}, which is not supported; use {SUPPORTED}")


def _literal(values: Sequence[Any], at: Place) -> Shape:
    if not all(type(value) in (str, int, bool, NoneType) for value in values):
        raise at.refusal("has a Literal with other values than text, int, bool and None; use those")
    return choice([(value, value) for value in values])


def _enum(kind: type[Enum], at: Place) -> Shape:
    if not all(type(member.value) is str for member in kind):
        raise at.refusal(f"has the Enum {kind.__name__} with values that are not text; use text")
    return choice([(member.value, member) for member in kind])


def _attrs_class(kind: type[attrs.AttrsInstance], at: Place) -> Shape:
    if kind in at.inside:
        raise at.refusal(f"holds {kind.__name__} within itself; flatten it to a list of items")
    hints = hints_of(kind, at)
    fields = [
        Field(
            field.alias or field.name,
            hints.get(field.name, inspect.Parameter.empty),
            field.default is attrs.NOTHING,
        )
        for field in attrs.fields(kind)
        if field.init
    ]

    def build(values: dict[str, Any], path: str) -> object:
        try:
            return kind(**values)
        except Exception as error:  # validators of users raise what they like
            reason = error.args[0] if error.args else type(error).__name__
            raise BadArguments(f"{path} is refused: {reason}") from error

    return object_of(fields, build, attrs.evolve(at, inside=(*at.inside, kind)))


def object_of(
    fields: Iterable[Field], build: Callable[[dict[str, Any], str], Any], at: Place
) -> Shape:
    """The shape of an object of `fields`, of whose values `build` makes what the function gets.

    `build` is given the object's path too. Raises `InvalidTool`.
    """
    shapes, required = {}, []
    for field in fields:
        shape = shape_of(field.hint, at.field(field.name))
        shapes[field.name] = described(shape, field.description)
        if field.required:
            required.append(field.name)
    return record(shapes, required, build)


def _annotated(shape: Shape, marks: Sequence[Any], at: Place) -> Shape:
    for mark in marks:
        if isinstance(mark, str):
            shape = attrs.evolve(shape, schema={**shape.schema, "description": mark})
            continue
        held = bounded(shape, mark)
        if held is None:
            raise at.refusal(
                f"has {mark!r} on a hint that cannot carry it; use Ge and Le on numbers, "
                "MinLen and MaxLen on text and lists, Pattern on text, each beside its own type"
            )
        shape = held
    return shape
