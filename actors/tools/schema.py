"""From type hints to a JSON schema and back: what a model may pass to a tool (design 3.5).

Each hint becomes one `_Shape`: the schema that the model reads, beside the reader that holds a
parsed value to it, so that the two cannot disagree. Readers never coerce: `true` is no integer
and `"5"` is no number; only a whole number is taken where a `float` is wanted.
"""

from __future__ import annotations

import inspect
import operator
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import takewhile
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import orjson

from runtime.errors import Refused
from runtime.json import Json

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


@attrs.define(eq=False)
class BadArguments(Refused):
    """Arguments of a model that do not fit the tool's schema; the text is for the model."""

    problem: str

    def __str__(self) -> str:
        return f"the arguments do not fit: {self.problem}; correct this and call the tool again"


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


def schema_of(fn: Callable[..., Any]) -> tuple[Json, Callable[[str], dict[str, Any]]]:
    """The JSON schema of a function's parameters, and the reader of a model's argument text.

    The reader turns the raw text (empty counts as `{}`) into keyword arguments and raises
    `BadArguments`. Raises `InvalidTool` where the signature cannot be put into a schema.
    """
    shape = _object(_parameters(fn), lambda values, _path: values, _Place(_name_of(fn)))

    def read(text: str) -> dict[str, Any]:
        values: dict[str, Any] = shape.read(_parse(text), "$")
        return values

    return Json.of(shape.schema), read


def _parse(text: str) -> object:
    try:
        return orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"$ is not valid JSON ({error})") from None


@attrs.frozen
class _Shape:
    schema: dict[str, Any]
    read: Callable[[Any, str], Any]  # (parsed value, its JSON path) -> what the function gets


@attrs.frozen
class _Field:
    name: str
    hint: Any
    required: bool
    description: str | None = None


@attrs.frozen
class _Place:
    """Where a hint stands, and the attrs classes around it: one within itself has no end."""

    function: str
    parameter: str | None = None
    inside: tuple[type, ...] = ()

    def field(self, name: str) -> _Place:
        path = name if self.parameter is None else f"{self.parameter}.{name}"
        return attrs.evolve(self, parameter=path)

    def refusal(self, problem: str) -> InvalidTool:
        return InvalidTool(self.function, problem, self.parameter)


def _parameters(fn: Callable[..., Any]) -> Iterator[_Field]:
    at = _Place(_name_of(fn))
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        raise at.refusal("is no function; write a `def` with type hints that calls it")
    hints, docs = _hints(fn, at), _parameter_docs(inspect.getdoc(fn) or "")
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise at.field(name).refusal(
                "cannot be passed by name, as a model passes everything; "
                "declare each argument as a plain parameter"
            )
        required = parameter.default is parameter.empty
        yield _Field(name, hints.get(name, parameter.empty), required, docs.get(name))


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__qualname__", None)
    return repr(fn) if name is None else f"{fn.__module__}.{name}"


def _hints(owner: Any, at: _Place) -> dict[str, Any]:
    try:
        return get_type_hints(owner, include_extras=True)
    except Exception as error:  # noqa: BLE001  # hints are code: evaluating them raises anything
        raise at.refusal(
            f"has type hints that cannot be evaluated ({error}); "
            "import or define every name in them at module level"
        ) from None


_SECTION = re.compile(r"^Args:\s*$", re.MULTILINE)
_ENTRY = re.compile(r"(\w+)(?: *\([^)]*\))?:(.*)")


def _parameter_docs(doc: str) -> dict[str, str]:
    """The entries of a docstring's `Args:` section, each joined to one line."""
    _, *section = _SECTION.split(doc, maxsplit=1)
    rest = "".join(section).lstrip("\n").splitlines()
    block = takewhile(lambda line: not line or line[0].isspace(), rest)
    docs: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent("\n".join(block)).splitlines():
        if entry := _ENTRY.match(line):
            name, line = entry.groups()  # noqa: PLW2901  # the rest of the line starts the text
        docs[name] = f"{docs.get(name, '')} {line.strip()}".strip()
    return docs


def _shape(hint: Any, at: _Place) -> _Shape:
    origin = get_origin(hint)
    match get_args(hint):
        case (item,) if origin is list:
            return _array(_shape(item, at), list)
        case (item, end) if origin is tuple and end is ...:
            return _array(_shape(item, at), tuple)
        case (key, item) if origin is dict and key is str:
            return _mapping(_shape(item, at))
        case (inner, *marks) if origin is Annotated:
            return _annotated(_shape(inner, at), marks, at)
        case values if origin is Literal:
            return _literal(values, at)
        case arms if origin in (Union, UnionType):
            return _union([_shape(arm, at) for arm in arms])
    return _named(hint, at)


_SCALARS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}
_JSON_NAMES = {**_SCALARS, list: "array", dict: "object"}


def _named(hint: Any, at: _Place) -> _Shape:
    kind = NoneType if hint is None else hint
    if kind is inspect.Parameter.empty:
        raise at.refusal(f"has no type hint; give it one of {SUPPORTED}")
    if isinstance(kind, type):
        if kind in _SCALARS:
            return _scalar(kind)
        if issubclass(kind, Enum):
            return _enum(kind, at)
        if attrs.has(kind):
            return _attrs_class(kind, at)
    shown = inspect.formatannotation(hint)
    raise at.refusal(f"has the type hint {shown}, which is not supported; use {SUPPORTED}")


def _wrong_type(path: str, wanted: str, value: object) -> BadArguments:
    return BadArguments(f"{path} must be of type {wanted}, got {_JSON_NAMES[type(value)]}")


def _scalar(kind: type) -> _Shape:
    wanted = _SCALARS[kind]
    accepted = (float, int) if kind is float else (kind,)

    def read(value: Any, path: str) -> object:
        if type(value) not in accepted:
            raise _wrong_type(path, wanted, value)
        return float(value) if kind is float else value

    return _Shape({"type": wanted}, read)


def _array(item: _Shape, build: Callable[[Iterable[Any]], Any]) -> _Shape:
    def read(value: Any, path: str) -> Any:
        if type(value) is not list:
            raise _wrong_type(path, "array", value)
        return build(item.read(part, f"{path}[{index}]") for index, part in enumerate(value))

    return _Shape({"type": "array", "items": item.schema}, read)


def _mapping(item: _Shape) -> _Shape:
    def read(value: Any, path: str) -> object:
        if type(value) is not dict:
            raise _wrong_type(path, "object", value)
        return {key: item.read(part, f"{path}.{key}") for key, part in value.items()}

    return _Shape({"type": "object", "additionalProperties": item.schema}, read)


def _union(arms: Sequence[_Shape]) -> _Shape:
    def read(value: Any, path: str) -> object:
        problems = []
        for arm in arms:
            try:
                return arm.read(value, path)
            except BadArguments as misfit:
                problems.append(misfit.problem)
        raise BadArguments(", or ".join(problems))

    return _Shape({"anyOf": [arm.schema for arm in arms]}, read)


def _literal(values: Sequence[Any], at: _Place) -> _Shape:
    if not all(type(value) in (str, int, bool, NoneType) for value in values):
        raise at.refusal("has a Literal with other values than text, int, bool and None; use those")
    return _choice([(value, value) for value in values])


def _enum(kind: type[Enum], at: _Place) -> _Shape:
    if not all(type(member.value) is str for member in kind):
        raise at.refusal(f"has the Enum {kind.__name__} with values that are not text; use text")
    return _choice([(member.value, member) for member in kind])


def _choice(options: Sequence[tuple[Any, Any]]) -> _Shape:
    values = [value for value, _ in options]
    shown = ", ".join(orjson.dumps(value).decode() for value in values)

    def read(value: Any, path: str) -> object:
        for option, meaning in options:
            if type(option) is type(value) and option == value:  # True == 1
                return meaning
        raise BadArguments(f"{path} must be one of {shown}")

    kinds = {type(value) for value in values}
    named = {"type": _SCALARS[kinds.pop()]} if len(kinds) == 1 else {}
    return _Shape({**named, "enum": values}, read)


def _attrs_class(kind: type[attrs.AttrsInstance], at: _Place) -> _Shape:
    if kind in at.inside:
        raise at.refusal(f"holds {kind.__name__} within itself; flatten it to a list of items")
    hints = _hints(kind, at)
    fields = [
        _Field(
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

    return _object(fields, build, attrs.evolve(at, inside=(*at.inside, kind)))


def _object(
    fields: Iterable[_Field], build: Callable[[dict[str, Any], str], Any], at: _Place
) -> _Shape:
    shapes, required = {}, []
    for field in fields:
        shape = _shape(field.hint, at.field(field.name))
        shapes[field.name] = _described(shape, field.description)
        if field.required:
            required.append(field.name)

    def read(value: Any, path: str) -> Any:
        if type(value) is not dict:
            raise _wrong_type(path, "object", value)
        _check_names(value, shapes, required, path)
        return build({k: shapes[k].read(part, f"{path}.{k}") for k, part in value.items()}, path)

    schema = {
        "type": "object",
        "properties": {name: shape.schema for name, shape in shapes.items()},
        "required": required,
        "additionalProperties": False,
    }
    return _Shape(schema, read)


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


def _described(shape: _Shape, text: str | None) -> _Shape:
    """`shape` with a description, unless its hint brought one."""
    if not text or "description" in shape.schema:
        return shape
    return attrs.evolve(shape, schema={**shape.schema, "description": text})


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


def _annotated(shape: _Shape, marks: Sequence[Any], at: _Place) -> _Shape:
    for mark in marks:
        if isinstance(mark, str):
            shape = attrs.evolve(shape, schema={**shape.schema, "description": mark})
            continue
        rule = _RULES.get((type(mark), shape.schema.get("type", "")))
        if rule is None:
            raise at.refusal(
                f"has {mark!r} on a hint that cannot carry it; use Ge and Le on numbers, "
                "MinLen and MaxLen on text and lists, Pattern on text, each beside its own type"
            )
        shape = _bounded(shape, rule, attrs.astuple(mark)[0])
    return shape


def _bounded(shape: _Shape, rule: _Rule, limit: Any) -> _Shape:
    def read(value: Any, path: str) -> object:
        meaning = shape.read(value, path)
        if not rule.holds(value, limit):
            raise BadArguments(f"{path} must {rule.words.format(limit)}")
        return meaning

    return _Shape({**shape.schema, rule.keyword: limit}, read)
