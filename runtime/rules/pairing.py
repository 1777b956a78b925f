"""Tool calls and their results on the surface: rule 6, and what may never be sent (design 2.9).

The surface is walked in order: a call opens, its result closes it. Ids are compared, not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import attrs

from runtime.envelope import Draft, Event, Replace
from runtime.events import AssistantMessage, ToolResult
from runtime.messages import tool_calls
from runtime.rules.structure import Problem
from runtime.surface import SurfaceManager


class Pairing:
    """Which surface events hold calls and which hold results, beside the live surface."""

    def __init__(self, surface: SurfaceManager) -> None:
        self._surface = surface
        self._calls: dict[int, tuple[str, ...]] = {}
        self._results: dict[int, ToolResult] = {}  # without their content

    def apply(self, event: Event) -> None:
        if event.surface_op is not None:
            calls, result = _tools(event)
            if calls:
                self._calls[event.seq] = calls
            if result is not None:
                self._results[event.seq] = result

    def restore(self, next_seq: int) -> None:
        """Forget every event from `next_seq` on."""
        for table in (self._calls, self._results):
            for seq in [seq for seq in reversed(table) if seq >= next_seq]:
                del table[seq]

    def problem(self, event: Draft | Event, op: Replace) -> Problem:
        """What is wrong with a replacement whose ends are known to stand on the surface."""
        nodes = list(self._surface.nodes)
        first, last = nodes.index(op.start), nodes.index(op.end)
        calls, result = _tools(event)
        if result is not None:
            shadowed = nodes[first : last + 1]
            if len(shadowed) != 1 or self._results.get(shadowed[0]) != result:
                return 6, "a replacing tool/result changes the content of one tool/result only"
        before, after = self._unpaired(nodes[:first]), nodes[last + 1 :]
        open_calls, lost = _walk(before, calls, result)
        open_calls, more_lost = self._walk_on(open_calls, after)
        if open_calls or lost or more_lost:
            return 6, "a replacement must leave every call with its result on the surface"
        return None

    def unbalanced(self, apart: Collection[str] = ()) -> tuple[int, ...]:
        """The seqs of surface events with a call, not in `apart`, that no later result answers."""
        holders: dict[str, int] = {}
        for node in self._surface.nodes:
            holders.update(dict.fromkeys(self._calls.get(node, ()), node))
            if node in self._results:
                holders.pop(self._results[node].call_id, None)
        left = {holder for call, holder in holders.items() if call not in apart}
        return tuple(sorted(left))

    def _unpaired(self, nodes: Iterable[int]) -> list[str]:
        return self._walk_on([], nodes)[0]

    def _walk_on(self, open_calls: list[str], nodes: Iterable[int]) -> tuple[list[str], bool]:
        lost = False
        for node in nodes:
            open_calls, missing = _walk(
                open_calls, self._calls.get(node, ()), self._results.get(node)
            )
            lost = lost or missing
        return open_calls, lost


def _tools(event: Draft | Event) -> tuple[tuple[str, ...], ToolResult | None]:
    match event.data:
        case AssistantMessage(content=content):
            return tuple(call.id for call in tool_calls(content)), None
        case ToolResult() as result:
            return (), attrs.evolve(result, content=())
    return (), None


def _walk(
    open_calls: list[str], calls: tuple[str, ...], result: ToolResult | None
) -> tuple[list[str], bool]:
    """The open calls after one node, and whether it is a result that nothing asked for."""
    if result is None:
        return [*open_calls, *calls] if calls else open_calls, False
    if result.call_id not in open_calls:
        return open_calls, True
    return [call for call in open_calls if call != result.call_id], False
