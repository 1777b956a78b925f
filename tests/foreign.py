"""Logs that refold would not write, as the bytes of their events, for whoever meets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson

from refold.runtime.storage import SessionHeader, open_sessions

USER = {"kind": "user"}
TRIGGER = {"kind": "message", "source": USER}
TEXT = [{"type": "text", "text": "so"}]


@attrs.frozen
class Line:
    """An event without its place: its type, its data and further fields of its envelope."""

    type: str
    data: Mapping[str, Any]
    fields: Mapping[str, Any] = attrs.field(factory=dict)

    def having(self, **data: object) -> Line:
        """The same with other or more fields in its data; None takes one out."""
        changed = {**self.data, **data}
        kept = {key: value for key, value in changed.items() if data.get(key, key) is not None}
        return attrs.evolve(self, data=kept)


def event(type_: str, **data: object) -> Line:
    return Line(type_, data)


def surface(type_: str, **data: object) -> Line:
    return Line(type_, data, {"surfaceOp": "append"})


def begin(turn: int) -> list[Line]:
    """The start of a turn with a prompt."""
    trigger = event("turn/start", turn=turn, trigger=TRIGGER)
    return [trigger, surface("user/message", content=TEXT, source=USER)]


def end(turn: int) -> Line:
    return event("turn/end", turn=turn, reason={"kind": "completed"})


def asks(turn: int, *ids: str, step: int = 1) -> list[Line]:
    """A step that starts and whose message asks for calls with these ids."""
    call = {"type": "tool-call", "name": "read_file", "arguments": "{}"}
    calls = [{**call, "id": id_} for id_ in ids]
    message = surface("assistant/message", turn=turn, step=step, content=[*TEXT, *calls])
    return [event("step/start", turn=turn, step=step), message]


def answers(turn: int, *ids: str, step: int = 1) -> list[Line]:
    """Results of calls with these ids."""
    call = {"turn": turn, "step": step, "content": TEXT, "isError": False}
    return [surface("tool/result", callId=id_, **call) for id_ in ids]


def over(turn: int, step: int = 1) -> Line:
    return event("step/end", turn=turn, step=step)


def turn(number: int, *ids: str) -> list[Line]:
    """A whole turn, whose calls with these ids have their results."""
    called = [*asks(number, *ids), *answers(number, *ids), over(number)]
    last = [*asks(number, step=2), over(number, step=2)]
    return [*begin(number), *called, *last, end(number)]


def encoded(lines: Sequence[Line]) -> list[bytes]:
    return [
        orjson.dumps(
            {
                "type": line.type,
                "seq": seq,
                "time": 1_760_000_000_000 + seq,
                "data": line.data,
                **line.fields,
            }
        )
        for seq, line in enumerate(lines)
    ]


def write(address: str | Path, lines: Sequence[Line], session: str = "odd") -> None:
    """A closed session of these events in a store; each is a batch, so that it can be forked."""
    store = open_sessions(address)
    log = store.create(SessionHeader(session, 0))
    log.append(*([one] for one in encoded(lines)))
    log.close()
    store.close()


def import_file(path: Path, lines: Sequence[Line], session: str = "odd") -> Path:
    """A foreign log's file: no line has a checksum."""
    header = orjson.dumps({"type": "session", "version": 0, "id": session, "createdAt": 0})
    path.write_bytes(b"".join(line + b"\n" for line in (header, *encoded(lines))))
    return path
