"""The independent account of a session's requests, kept from stored events alone.

Its own folds (header, surface, pending calls, running hashes) and no messages: `expected` says
what a request must look like, and costs only what is new. The invariants actor and `refold
verify` are its two users.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from refold.runtime.envelope import Event
from refold.runtime.events import SURFACE, AssistantMessage, RequestSealed, StepStart, ToolResult
from refold.runtime.messages import Message, tool_calls
from refold.runtime.projection import derive_event_message
from refold.runtime.request_header import EpochHeader, RequestHeader
from refold.runtime.surface import SurfaceManager
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.known_formats import FORMATS
from refold.runtime.wire.request_encoder import Continued, Digests


@attrs.frozen
class OpenStep:
    """The step that the stored bytes have open, with its request's seal and place."""

    turn: int
    step: int
    boundary: int
    nodes: int
    generation: int
    seals: tuple[tuple[int, RequestSealed], ...] = ()


class Unexplained(Exception):
    """The stored events cannot explain any valid request here; the text says why."""


class RequestAudit:
    """Feed it every stored event in order; `reread` fetches one again by its seq."""

    def __init__(self, reread: Callable[[int], Event]) -> None:
        self._reread = reread
        self._surface = SurfaceManager()
        self._header: EpochHeader | None = None
        self._fresh: dict[int, Event] = {}
        self._running: _Running | None = None
        self.step: OpenStep | None = None
        self.next_seq = 0

    @property
    def provider(self) -> str:
        """Whom the header in force names; there is one where a request was `expected`."""
        assert self._header is not None, "its digests were expected"
        return self._header.config.provider

    def feed(self, event: Event) -> None:
        self.next_seq = event.seq + 1
        if event.surface_op is not None:
            self._surface.shadowed(event, event.seq)
            self._surface.apply(event)
            self._fresh[event.seq] = event
        elif event.type in _FOLLOWED:
            self._follow(event)

    def _follow(self, event: Event) -> None:
        match event.data:
            case RequestHeader(header=header):
                self._header = header
            case StepStart(turn=turn, step=step):
                nodes, generation = len(self._surface.nodes), self._surface.replace_generation
                self.step = OpenStep(turn, step, event.seq, nodes, generation)
            case RequestSealed() as seal if self.step is not None:
                seals = (*self.step.seals, (event.seq, seal))
                self.step = attrs.evolve(self.step, seals=seals)
            case _ if event.type in _ENDS:
                self.step = None

    def expected(self, codec: str) -> Digests:
        """The digests of the open step's request; raises `Unexplained`.

        `codec` must be one of `FORMATS`: bytes are a promise of the version that the seal names.
        """
        step, header = self.step, self._header
        if step is None:
            raise Unexplained("no step is open in the stored log")
        if header is None:
            raise Unexplained("no request/header stands before the request")
        surface = (len(self._surface.nodes), self._surface.replace_generation)
        if surface != (step.nodes, step.generation):
            raise Unexplained("the surface changed between step/start and the request")
        running, self._running = self._running, None  # kept again once it has the whole request
        if running is None or not running.continues(FORMATS[codec], header, step.generation):
            running = _Running(FORMATS[codec], header, step.generation)
        for node in self._surface.nodes[running.count :]:
            running.add(self._fresh.pop(node) if node in self._fresh else self._reread(node))
        self._fresh.clear()
        digests = running.digests()
        self._running = running
        return digests


_ENDS = ("step/end", "turn/end", "turn/start")

_FOLLOWED = frozenset({"request/header", "step/start", "request/sealed", *_ENDS})

FOLLOWED = frozenset({*SURFACE, "request/header"})
"""What an audit must be fed of the events before a log's last step; of later ones all."""


class _Running:
    """The hashes of one growing request, and whether its calls are answered so far."""

    def __init__(self, format_: WireFormat, header: EpochHeader, generation: int) -> None:
        self._generation = generation
        self._continued = Continued(format_, header, None)
        self._open_calls: list[str] = []
        self.count = 0

    def continues(self, format_: WireFormat, header: EpochHeader, generation: int) -> bool:
        return generation == self._generation and self._continued.continues(format_, header)

    def add(self, event: Event) -> None:
        self.count += 1
        message = derive_event_message(event)
        if message is not None:
            self._balance(event, message)
            self._continued.add(message)

    def _balance(self, event: Event, message: Message) -> None:
        result = event.data if isinstance(event.data, ToolResult) else None
        if result is not None and result.call_id in self._open_calls:
            self._open_calls.remove(result.call_id)
        elif result is not None:
            raise Unexplained(
                f"the tool/result at seq {event.seq} answers no call that is still open"
            )
        elif self._open_calls:
            raise Unexplained(f"call {self._open_calls[0]!r} has no result before seq {event.seq}")
        elif isinstance(event.data, AssistantMessage):
            self._open_calls = [call.id for call in tool_calls(message.content)]
            if len(set(self._open_calls)) < len(self._open_calls):
                raise Unexplained(f"the message at seq {event.seq} uses a call id twice")

    def digests(self) -> Digests:
        if self._open_calls:
            raise Unexplained(f"call {self._open_calls[0]!r} has no result")
        return self._continued.digests()
