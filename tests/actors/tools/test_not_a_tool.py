"""What cannot become a tool is refused at its decoration, in a sentence that says what to do."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import attrs
import pytest

import refold
from refold.actors.tools import InvalidTool
from refold.runtime.messages import TextBlock


class Desk:
    def method(self, seat: str) -> str:
        """A method."""
        return seat

    @classmethod
    def of_class(cls, seat: str) -> str:
        """Of the class."""
        return seat

    @staticmethod
    def alone(seat: str) -> str:
        """Of nobody."""
        return seat


async def agen(seat: str) -> AsyncIterator[str]:
    """An async generator."""
    yield seat


def gen(seat: str) -> Iterator[str]:
    """A generator."""
    yield seat


def plain(seat: str) -> str:
    """Plain."""
    return seat


NO_TOOLS: dict[str, tuple[Any, str]] = {
    "an async generator": (agen, "agen yields; return one value, and tell what comes meanwhile by"),
    "a generator": (gen, "gen yields; return one value, and tell what comes meanwhile by"),
    "a built-in method": (str.upper, "str.upper is built in and is no function; write a `def`"),
    "a built-in function": (len, "builtins.len is built in and is no function; write a `def`"),
    "a method of built-in text": ("x".upper, "str.upper is built in and is no function; write"),
    "an undecorated method": (
        Desk.method,
        "method is a method of no object; make the tool of a bound one, as in refold.tool(obj.meth",
    ),
    "a lambda": (lambda seat: seat, "is a lambda and has no type hints; write a `def` with type"),
    "a lambda without a name": (
        lambda: "x",
        "would be the tool '<lambda>', which providers refuse",
    ),
    "a class": (Desk, "test_not_a_tool.Desk is a class and is no function; write a `def`"),
    "a staticmethod": (
        vars(Desk)["alone"],
        "is a staticmethod; write @staticmethod above @tool, not below",
    ),
    "a classmethod": (
        vars(Desk)["of_class"],
        "is a classmethod; make the tool of a bound one, as in refold.tool(Desk.of_class)",
    ),
    "a partial": (functools.partial(plain, seat="x"), "a value of type partial is no function; wr"),
    "an object": (Desk(), "a value of type Desk is no function; write a `def` with type hints"),
    "text": ("plain", "a value of type str is no function; write a `def` with type hints"),
    "None": (None, "a value of type NoneType is no function; write a `def` with type hints"),
}


@pytest.mark.parametrize("name", NO_TOOLS)
@pytest.mark.parametrize("way", ["tool", "options", "given"])
async def test_what_cannot_be_a_tool_is_told_so_in_one_sentence(name: str, way: str) -> None:
    given, said = NO_TOOLS[name]
    with pytest.raises(InvalidTool) as refused:
        if way == "given":
            async with refold.open("memory:", providers=[refold.Script([])]) as runtime:
                await runtime.start_agent(model="script/m", tools=[given])
        elif given is None:
            nothing: Any = None
            refold.tool()(nothing)
        else:
            refold.tool(given) if way == "tool" else refold.tool(timeout=3)(given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_bound_or_has_a_name_is_a_tool() -> None:
    assert refold.tool(Desk().method).name == "method"
    assert refold.tool(Desk.of_class).name == "of_class"
    assert refold.tool(Desk.alone).name == "alone"
    assert refold.tool(lambda: "x", name="it").name == "it"

    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return plain(*args, **kwargs)

    assert refold.tool(wrapper).schema == refold.tool(plain).schema


@attrs.frozen
class Seat:
    row: int


class Colour(Enum):
    RED = "red"


T = TypeVar("T")

NO_RESULTS: list[Any] = [
    dt.datetime,
    dt.date | None,
    bytes,
    complex,
    set[str],
    frozenset[int],
    Decimal,
    Desk,
    list[dt.datetime],
    dict[str, bytes],
    Mapping[str, Desk],
    tuple[int, bytes],
    tuple[Desk, ...],
    Annotated[bytes, "raw"],
    list[dict[str, list[Desk]]],
    Awaitable[Desk],
    type[Seat],
    Callable[[], str],
]


@pytest.mark.parametrize("hint", NO_RESULTS, ids=str)
def test_a_return_annotation_that_no_model_can_be_shown_is_refused(hint: Any) -> None:
    def it() -> None:
        """It."""

    it.__annotations__["return"] = hint
    with pytest.raises(InvalidTool, match=r"it returns .*, which no model can be shown; return t"):
        refold.tool(it)


RESULTS: list[Any] = [
    *(str, int, float, bool, None, Any, object, T, NoReturn, Seat, Colour, TextBlock),
    *(list, dict, tuple, list[Seat], dict[str, int], dict[int, str], tuple[int, ...]),
    *(str | None, Literal["a", 1], Mapping[str, Seat], Sequence[str], Collection[int]),
    *(Annotated[str, "said"], Awaitable[str], tuple[TextBlock, ...], list[Any], tuple[()]),
]


@pytest.mark.parametrize("hint", RESULTS, ids=str)
def test_any_other_return_annotation_is_taken(hint: Any) -> None:
    def it() -> None:
        """It."""

    it.__annotations__["return"] = hint
    assert refold.tool(it).name == "it"
