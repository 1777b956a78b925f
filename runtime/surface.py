"""The surface: the ordered seqs that project to model messages.

One array of ints, changed by one transition. `fold_surface` is the same transition over a whole
log. Replacements work by position, because after one of them a head node can have a higher seq
than its follower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from refold.runtime.envelope import Draft, Event, Replace
from refold.runtime.errors import SurfaceRefused


@attrs.frozen
class Surface:
    """A surface at one moment: its nodes in order, and how many replacements made it."""

    nodes: tuple[int, ...]
    replace_generation: int


@attrs.frozen
class SurfaceMark:
    """A moment of a live surface."""

    nodes: list[int]
    length: int
    generation: int


class SurfaceManager:
    """The live surface of one log; `nodes` is read-only to everybody else."""

    def __init__(self) -> None:
        self._nodes: list[int] = []
        self._generation = 0

    @property
    def nodes(self) -> Sequence[int]:
        return self._nodes

    @property
    def replace_generation(self) -> int:
        """Grows by one for each replacement and never otherwise."""
        return self._generation

    def snapshot(self) -> Surface:
        return Surface(tuple(self._nodes), self._generation)

    def shadowed(self, event: Draft | Event, seq: int) -> tuple[int, ...]:
        """The nodes that `event` would replace at `seq`; changes nothing.

        Raises `SurfaceRefused` unless the event may enter the surface: its citations are earlier,
        the ends of a replacement are on the surface in order, and every shadowed node is cited.
        """
        cited = event.source_event_seqs or ()
        late = [source for source in cited if source >= seq]
        if late:
            raise SurfaceRefused(seq, f"cites seq {late[0]}, which is not earlier than itself")
        if not isinstance(event.surface_op, Replace):
            return ()
        first, last = self._range(event.surface_op, seq)
        shadowed = tuple(self._nodes[first : last + 1])
        missing = set(shadowed).difference(cited)
        if missing:
            missing_text = ", ".join(map(str, sorted(missing)))
            raise SurfaceRefused(seq, f"must cite every node that it replaces; add {missing_text}")
        return shadowed

    def apply(self, event: Event) -> slice | None:
        """Let a surface event that `shadowed` accepted change the surface.

        Returns the positions that it replaced, None where it was appended.
        """
        if not isinstance(event.surface_op, Replace):
            self._nodes.append(event.seq)
            return None
        first, last = self._range(event.surface_op, event.seq)
        self._nodes = [*self._nodes[:first], event.seq, *self._nodes[last + 1 :]]
        self._generation += 1
        return slice(first, last + 1)

    def mark(self) -> SurfaceMark:
        """This moment, for `restore`; a replacement makes a new list, so nothing is copied."""
        return SurfaceMark(self._nodes, len(self._nodes), self._generation)

    def restore(self, mark: SurfaceMark) -> None:
        """Forget every event since `mark`."""
        self._nodes, self._generation = mark.nodes, mark.generation
        del self._nodes[mark.length :]

    def _range(self, op: Replace, seq: int) -> tuple[int, int]:
        first, last = self._position(op.start, "start", seq), self._position(op.end, "end", seq)
        if first > last:
            raise SurfaceRefused(
                seq, f"replaces from seq {op.start} to {op.end}, but they stand in the other order"
            )
        return first, last

    def _position(self, node: int, side: str, seq: int) -> int:
        try:
            return self._nodes.index(node)
        except ValueError:
            raise SurfaceRefused(
                seq, f"names {side} seq {node}, which is not on the surface"
            ) from None


def fold_surface(events: Iterable[Event]) -> Surface:
    """The surface of a whole log; raises `SurfaceRefused` where the live one would."""
    manager = SurfaceManager()
    for event in events:
        if event.surface_op is not None:
            manager.shadowed(event, event.seq)
            manager.apply(event)
    return manager.snapshot()
