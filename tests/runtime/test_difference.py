"""How two headers differ: tools by their names."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from refold.runtime.json import Json
from refold.runtime.json_diff import compare_headers
from refold.runtime.request_header import EpochHeader, LlmCallConfig, ToolSchema


def header(*tools: ToolSchema) -> EpochHeader:
    return EpochHeader(LlmCallConfig("p", model="m"), tools=tools)


def tool(name: str, description: str = "Does it.") -> ToolSchema:
    return ToolSchema(name, description, Json.of({"type": "object"}))


A, B, C = tool("tool_a"), tool("tool_b"), tool("tool_c")


def paths(one: Sequence[ToolSchema], other: Sequence[ToolSchema]) -> list[str]:
    return [found.path for found in compare_headers(header(*one), header(*other))]


def test_an_added_tool_is_told_as_added_wherever_it_stands() -> None:
    (found,) = compare_headers(header(B, C), header(A, B, C))
    assert (found.path, found.expected) == ("/tools/tool_a", "absent")
    assert '"name":"tool_a"' in found.got
    assert paths([A, C], [A, B, C]) == ["/tools/tool_b"]
    assert paths([], [A, B]) == ["/tools/tool_a", "/tools/tool_b"]


def test_a_removed_tool_is_told_as_removed() -> None:
    (found,) = compare_headers(header(A, B, C), header(A, C))
    assert (found.path, found.got) == ("/tools/tool_b", "absent")
    assert paths([A, B], [A, tool("zzz")]) == ["/tools/tool_b", "/tools/zzz"]


def test_each_edited_tool_is_named() -> None:
    edited = [attrs.evolve(one, description="Otherwise.") for one in (A, C)]
    assert paths([A, B, C], [edited[0], B, edited[1]]) == [
        "/tools/tool_a/description",
        "/tools/tool_c/description",
    ]


def test_another_order_is_told_as_that_and_as_nothing_else() -> None:
    (found,) = compare_headers(header(A, B, C), header(C, A, B))
    assert (found.path, found.expected, found.got) == (
        "/tools",
        '["tool_a","tool_b","tool_c"]',
        '["tool_c","tool_a","tool_b"]',
    )
    assert paths([A, B, C], [C, B]) == ["/tools/tool_a", "/tools"]


def test_names_that_other_programs_gave_twice_or_with_slashes_are_told_apart() -> None:
    assert paths([tool("a/b~c")], []) == ["/tools/a~1b~0c"]
    assert paths([A, tool("tool_a", "Another.")], [A]) == ["/tools/tool_a (2)"]
    assert paths([A, A], [A, A]) == []
