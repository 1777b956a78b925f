"""Tool calls and their results on the surface: what a provider takes, and rule 6.

A result answers a call of the assistant message before it, with nothing but results between. Ids
are compared with that message's alone, since servers number their calls anew in each answer: over
the whole surface an id says nothing. The surface is walked once, in order; appending goes on with
the walk and only a replacement begins it anew.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from refold.runtime.envelope import Draft, Event, Replace
from refold.runtime.events import AssistantMessage, ToolResult
from refold.runtime.messages import tool_calls
from refold.runtime.projection import derive_event_message
from refold.runtime.rules.table import Problem
from refold.runtime.standing import Standing
from refold.runtime.surface import SurfaceManager


@attrs.frozen
class Node:
    """What counts of a surface event here; a `silent` one projects to no message."""

    calls: tuple[str, ...] = ()
    result: ToolResult | None = None
    """Without its content."""
    silent: bool = False


_PLAIN = Node()


@attrs.frozen
class Faults:
    """Surface events, by their seqs, that keep a history from being sent.

    `unanswered` messages hold a call without its result, `orphans` are results that answer no
    call of the message before them, `doubled` messages use a call id twice.
    """

    unanswered: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unanswered or self.orphans or self.doubled)


@attrs.frozen
class Walk:
    """How calls and results stand at a place: what was wrong, and which calls are `left`.

    `holder` is the message that holds those.
    """

    faults: Faults = Faults()
    holder: int = -1
    left: tuple[str, ...] = ()

    def after(self, seq: int, node: Node) -> Walk:
        if node.silent:
            return self
        if node.result is not None:
            return self._after_result(seq, node.result.call_id)
        if not node.calls:
            return Walk(self.ended()) if self.left else self
        faults = self.ended()
        if len(set(node.calls)) < len(node.calls):
            faults = attrs.evolve(faults, doubled=(*faults.doubled, seq))
        return Walk(faults, seq, tuple(dict.fromkeys(node.calls)))

    def _after_result(self, seq: int, call_id: str) -> Walk:
        if call_id in self.left:
            left = tuple(call for call in self.left if call != call_id)
            return Walk(self.faults, self.holder, left)
        faults = attrs.evolve(self.faults, orphans=(*self.faults.orphans, seq))
        return Walk(faults, self.holder, self.left)

    def ended(self) -> Faults:
        """What is wrong if no more results come."""
        if not self.left:
            return self.faults
        return attrs.evolve(self.faults, unanswered=(*self.faults.unanswered, self.holder))


class Pairing:
    """Which surface events hold calls and which hold results, beside the live surface."""

    def __init__(self, surface: SurfaceManager) -> None:
        self._surface = surface
        self._nodes: dict[int, Node] = {}  # of those that are not plain
        self.walk = Walk()

    def apply(self, event: Event) -> None:
        """Fold an event that the surface holds already."""
        if event.surface_op is None:
            return
        node = _node(event)
        if node is not _PLAIN:
            self._nodes[event.seq] = node
        if isinstance(event.surface_op, Replace):
            self.walk = self._walk_on(Walk(), self._surface.nodes)
        else:
            self.walk = self.walk.after(event.seq, node)

    def restore(self, walk: Walk, next_seq: int) -> None:
        """Forget every event from `next_seq` on; `walk` is what it was then."""
        for seq in [seq for seq in reversed(self._nodes) if seq >= next_seq]:
            del self._nodes[seq]
        self.walk = walk

    def faults(self, standing: Standing) -> Faults:
        """What keeps the history from being sent, once the open step's calls have results."""
        step = standing.step
        if step is not None and standing.turn_open and step.start < self.walk.holder:
            will_have_results = set(step.waiting) == set(self.walk.left)
            return self.walk.faults if will_have_results else self.walk.ended()
        return self.walk.ended()

    def problem(self, event: Draft | Event, op: Replace) -> Problem:
        """What is wrong with a replacement whose ends are known to stand on the surface."""
        nodes = list(self._surface.nodes)
        first, last = nodes.index(op.start), nodes.index(op.end)
        new = _node(event)
        if new.result is not None:
            replaced = self._nodes.get(op.start, _PLAIN).result
            if first != last or replaced != new.result:
                return 6, "a replacing tool/result changes the content of one tool/result only"
        walk = self._walk_on(Walk(), nodes[:first]).after(_NEW, new)
        if self._walk_on(walk, nodes[last + 1 :]).ended():
            return 6, "a replacement must leave every call with its result on the surface"
        return None

    def _walk_on(self, walk: Walk, nodes: Iterable[int]) -> Walk:
        for node in nodes:
            walk = walk.after(node, self._nodes.get(node, _PLAIN))
        return walk


_NEW = -1
"""The place of an event that has no seq yet."""


def _node(event: Draft | Event) -> Node:
    match event.data:
        case AssistantMessage(content=content):
            calls = tuple(call.id for call in tool_calls(content))
            if calls:
                return Node(calls)
            at = event.at(0, 0) if isinstance(event, Draft) else event
            return _PLAIN if derive_event_message(at) is not None else Node(silent=True)
        case ToolResult() as result:
            return Node(result=attrs.evolve(result, content=()))
    return _PLAIN
