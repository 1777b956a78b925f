"""Functions become tools, and an agent's tools have one order and no doubles."""

from __future__ import annotations

import math

import pytest

from refold.actors.tools import DuplicateTool, InvalidTool, Tool, as_tool, collect, tool


def add(a: int, b: int) -> int:
    """Add two
    numbers.

    Slowly.
    """
    return a + b


def subtract(a: int, b: int) -> int:
    return a - b


def test_bare_and_called_decorators_make_the_same_tool() -> None:
    assert tool(add) == tool()(add)
    assert tool(add) != tool(timeout=5)(add)


def test_a_tool_takes_name_and_description_from_its_function() -> None:
    made = tool(add)
    assert (made.name, made.description) == ("add", "Add two numbers.")
    assert (made.isolation, made.effects, made.parallel, made.timeout) == ("task", True, False, 60)
    assert made.schema.parameters.value["required"] == ("a", "b")
    assert tool(subtract).description == ""


def test_options_of_the_decorator_are_kept() -> None:
    made = tool(name="plus", effects=False, parallel=True, timeout=math.inf)(add)
    assert (made.name, made.effects, made.parallel, made.timeout) == ("plus", False, True, math.inf)


def test_an_unknown_option_is_named_beside_those_there_are() -> None:
    with pytest.raises(InvalidTool, match="unknown option 'time_out'; there are name, effects"):
        tool(time_out=5)(add)  # type: ignore[call-overload]  # wrong on purpose


def test_a_tool_is_called_like_its_function() -> None:
    assert tool(add)(1, b=2) == 3


async def test_an_async_tool_is_awaited_like_its_function() -> None:
    @tool
    async def shout(text: str) -> str:
        return text.upper()

    assert await shout("a") == "A"


def test_as_tool_keeps_a_tool_and_makes_one_of_a_function() -> None:
    made = tool(add)
    assert as_tool(made) is made
    assert isinstance(as_tool(add), Tool)


def test_tools_are_ordered_by_name_whatever_order_they_came_in() -> None:
    upper = tool(add, name="Zoo")
    assert [made.name for made in collect([subtract, upper, add])] == ["Zoo", "add", "subtract"]
    assert collect([add, subtract]) == collect([tool(subtract), add])


def test_two_tools_of_one_name_are_refused_with_both_named() -> None:
    with pytest.raises(DuplicateTool) as caught:
        collect([add, tool(subtract, name="add")])
    assert str(caught.value) == (
        f"{__name__}.add and {__name__}.subtract are both offered as the tool 'add'; "
        "leave one out, or give it another name with @tool(name=...)"
    )


@pytest.mark.parametrize("name", ["a b", "a.b", "x" * 65, "é", "a\n"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(InvalidTool, match="pass a name of 1 to 64 of the characters"):
        tool(add, name=name)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(InvalidTool, match="would be the tool '<lambda>'"):
        collect([lambda: None])
    assert tool(lambda: None, name="nothing").name == "nothing"


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_timeout_that_is_no_duration_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidTool, match="a number of seconds above 0"):
        tool(add, timeout=timeout)
