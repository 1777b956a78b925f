"""Type hints become a schema, and argument text is held to exactly that schema."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, List, Literal  # noqa: UP035 - the bare old name is a case here

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.actors.tools import (
    BadArguments,
    Ge,
    InvalidTool,
    Le,
    MaxLen,
    MinLen,
    Pattern,
    schema_of,
)


class Unit(Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


class Level(Enum):
    LOW = 1


@attrs.frozen
class Line:
    sku: str
    amount: Annotated[int, Ge(1)] = 1


def _positive(_self: object, _field: object, value: float) -> None:
    if value <= 0:
        raise ValueError("a total is above 0")


@attrs.frozen
class Order:
    lines: list[Line]
    total: float = attrs.field(validator=_positive)
    _note: str | None = None
    seen: int = attrs.field(init=False, default=0)


@attrs.frozen
class Tree:
    children: list[Tree]


Untyped = attrs.make_class("Untyped", ["x"])


def _of(hint: Any) -> Callable[..., Any]:
    def fn(x: Any) -> None: ...

    fn.__annotations__["x"] = hint
    return fn


def _schema(hint: Any) -> Any:
    return schema_of(_of(hint))[0].thaw()["properties"]["x"]


def _read(hint: Any, text: str) -> Any:
    return schema_of(_of(hint))[1](f'{{"x":{text}}}')["x"]


def test_parameters_stand_in_signature_order_with_those_without_default_required() -> None:
    def fn(zeta: str, alpha: int, *, beta: bool = False) -> None: ...

    schema, _ = schema_of(fn)
    assert schema.encoded == (
        b'{"type":"object","properties":{"zeta":{"type":"string"},"alpha":{"type":"integer"},'
        b'"beta":{"type":"boolean"}},"required":["zeta","alpha"],"additionalProperties":false}'
    )


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (None, {"type": "null"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Unit, {"type": "string", "enum": ["metric", "imperial"]}),
        (Annotated[int, Ge(1), Le(99)], {"type": "integer", "minimum": 1, "maximum": 99}),
        (Annotated[float, Ge(0.5)], {"type": "number", "minimum": 0.5}),
        (
            Annotated[str, "a name", MinLen(1), MaxLen(24), Pattern("^a")],
            {
                "type": "string",
                "description": "a name",
                "minLength": 1,
                "maxLength": 24,
                "pattern": "^a",
            },
        ),
        (
            Annotated[list[str], MinLen(1), MaxLen(2)],
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        ),
    ],
)
def test_each_supported_hint_has_its_schema(hint: Any, schema: object) -> None:
    assert _schema(hint) == schema


def test_an_attrs_class_is_a_nested_object_of_its_init_names() -> None:
    found = _schema(Order)
    assert list(found["properties"]) == ["lines", "total", "note"]
    assert found["required"] == ["lines", "total"]
    assert found["additionalProperties"] is False
    assert found["properties"]["lines"]["items"]["required"] == ["sku"]


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "5", 5),
        (float, "5", 5.0),
        (bool, "true", True),
        (None, "null", None),
        (list[int], "[1,2]", [1, 2]),
        (tuple[str, ...], '["a"]', ("a",)),
        (dict[str, int], '{"k":1}', {"k": 1}),
        (int | str, '"a"', "a"),
        (Literal[1, True], "true", True),
        (Unit, '"metric"', Unit.METRIC),
        (Annotated[Unit, "the unit"], '"imperial"', Unit.IMPERIAL),
        (Annotated[int, Ge(1), Le(99)], "99", 99),
        (
            Order,
            '{"total":2,"lines":[{"sku":"a"}],"note":"n"}',
            Order([Line("a", 1)], 2.0, "n"),
        ),
    ],
)
def test_a_fitting_value_becomes_what_the_hint_says(hint: Any, text: str, value: object) -> None:
    found = _read(hint, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("hint", "text", "problem"),
    [
        (int, "true", "$.x must be of type integer, got boolean"),
        (int, "1.0", "$.x must be of type integer, got number"),
        (int, '"5"', "$.x must be of type integer, got string"),
        (float, "true", "$.x must be of type number, got boolean"),
        (str, "null", "$.x must be of type string, got null"),
        (bool, "1", "$.x must be of type boolean, got integer"),
        (list[int], "{}", "$.x must be of type array, got object"),
        (list[int], '[1,"a"]', "$.x[1] must be of type integer, got string"),
        (dict[str, int], '{"k":[]}', "$.x.k must be of type integer, got array"),
        (dict[str, int], "[]", "$.x must be of type object, got array"),
        (
            int | None,
            '"a"',
            "$.x must be of type integer, got string, or $.x must be of type null, got string",
        ),
        (Literal[1, "a"], "true", '$.x must be one of 1, "a"'),
        (Unit, '"METRIC"', '$.x must be one of "metric", "imperial"'),
        (Annotated[int, Ge(1)], "0", "$.x must be at least 1"),
        (Annotated[int, Le(9)], "10", "$.x must be at most 9"),
        (Annotated[str, MinLen(1)], '""', "$.x must have at least 1 characters"),
        (Annotated[str, MaxLen(2)], '"abc"', "$.x must have at most 2 characters"),
        (Annotated[list[int], MinLen(1)], "[]", "$.x must have at least 1 items"),
        (Annotated[list[int], MaxLen(1)], "[1,2]", "$.x must have at most 1 items"),
        (Annotated[str, Pattern("^a$")], '"ba"', "$.x must match the pattern ^a$"),
        (Line, '{"amount":0}', "$.x lacks sku (the fields are: sku, amount)"),
        (Line, '{"sku":"a","amount":0}', "$.x.amount must be at least 1"),
        (Order, '{"lines":[],"total":-1}', "$.x is refused: a total is above 0"),
        (Line, "3", "$.x must be of type object, got integer"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_path(
    hint: Any, text: str, problem: str
) -> None:
    with pytest.raises(BadArguments) as caught:
        _read(hint, text)
    assert caught.value.problem == problem
    assert str(caught.value).endswith("; correct this and call the tool again")


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_empty_argument_text_counts_as_no_arguments(text: str) -> None:
    def fn(x: int = 1) -> None: ...

    assert schema_of(fn)[1](text) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"x":', "$ is not valid JSON (unexpected end of data"),
        ('{"x":NaN}', "$ is not valid JSON"),
        ('{"x":"\\ud800"}', "$ is not valid JSON"),
        ("\ud800", "$ is not valid JSON"),
        ("[" * 5000, "$ is not valid JSON"),
        ("[1]", "$ must be of type object, got array"),
        ('{"y":1}', "$ lacks x and has no field y (the fields are: x)"),
    ],
)
def test_text_that_is_no_object_of_the_parameters_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadArguments) as caught:
        schema_of(_of(int))[1](text)
    assert caught.value.problem.startswith(problem)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        schema_of(_of(list[int | str]))[1](text)
    except BadArguments:
        return


def test_the_args_section_describes_parameters_unless_the_hint_does() -> None:
    def fn(city: str, unit: Annotated[str, "from the hint"], days: int = 1) -> None:
        """Forecast.

        Args:
            city (str): where to look,
                with its country: always
            unit: from the docstring

            days: how far

        Returns:
            nothing: at all
        """

    found = schema_of(fn)[0].thaw()["properties"]
    assert found["city"]["description"] == "where to look, with its country: always"
    assert found["unit"]["description"] == "from the hint"
    assert found["days"]["description"] == "how far"


@pytest.mark.parametrize(
    "hint",
    [
        set[int],
        Any,
        bytes,
        list,
        List,  # noqa: UP006 - the bare old name is the case
        tuple[int, str],
        dict[int, str],
        Callable[[], int],
        list[bytes],
        Literal[b"a"],
        Level,
    ],
)
def test_an_unsupported_hint_is_refused_with_what_is_supported(hint: Any) -> None:
    with pytest.raises(InvalidTool) as caught:
        schema_of(_of(hint))
    assert str(caught.value).startswith(f"parameter 'x' of {__name__}._of.<locals>.fn has ")
    assert "; use " in str(caught.value)


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, Ge(1)],
        Annotated[int, MaxLen(1)],
        Annotated[int | None, Ge(1)],
        Annotated[int, object()],
    ],
)
def test_a_bound_that_would_not_be_enforced_is_refused(hint: Any) -> None:
    with pytest.raises(InvalidTool, match="on a hint that cannot carry it; use Ge and Le on"):
        schema_of(_of(hint))


def test_a_missing_hint_is_refused() -> None:
    def fn(x): ...  # type: ignore[no-untyped-def]  # the missing hint is the case

    with pytest.raises(InvalidTool, match=r"parameter 'x' of .*fn has no type hint; give it one"):
        schema_of(fn)


def test_a_field_of_an_attrs_class_is_named_with_its_parameter() -> None:
    with pytest.raises(InvalidTool, match=r"parameter 'x\.x' of .* has no type hint"):
        schema_of(_of(Untyped))


def test_a_class_within_itself_is_refused() -> None:
    with pytest.raises(InvalidTool, match=r"'x\.children' of .* holds Tree within itself"):
        schema_of(_of(Tree))


def test_parameters_that_cannot_be_passed_by_name_are_refused() -> None:
    def many(*args: int) -> None: ...
    def more(**kwargs: int) -> None: ...
    def first(x: int, /) -> None: ...

    for fn, name in ((many, "args"), (more, "kwargs"), (first, "x")):
        with pytest.raises(InvalidTool, match=f"parameter '{name}' .* cannot be passed by name"):
            schema_of(fn)


def test_a_hint_that_names_nothing_is_refused() -> None:
    def fn(x: Missing) -> None: ...  # type: ignore[name-defined] # pyright: ignore[reportUndefinedVariable] # noqa: F821 - the case

    with pytest.raises(InvalidTool, match="'Missing' is not defined"):
        schema_of(fn)


def test_something_that_is_no_function_is_refused() -> None:
    for value in (functools.partial(_of, int), len, Line):
        with pytest.raises(InvalidTool, match="is no function; write a `def`"):
            schema_of(value)


def test_a_bound_method_leaves_its_self_out() -> None:
    class Shop:
        def price(self, sku: str) -> int:
            return len(sku)

    assert list(schema_of(Shop().price)[0].value["properties"]) == ["sku"]


def test_a_broken_pattern_is_refused_where_it_is_written() -> None:
    with pytest.raises(Exception, match="unterminated"):
        Pattern("(")
