"""Tool calls out of the pieces in which a stream of chat completions tells them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import orjson

from refold.runtime.messages import Block, ToolCallBlock
from refold.runtime.stream.chunks import Chunk, ToolCallDelta
from refold.runtime.wire.chat.event import as_object, as_string


@attrs.define(eq=False)
class Call:
    """A tool call as far as it is known; `given` is the provider's id, `id` is unique.

    `told` counts the pieces of its arguments that chunks have told, `named` says whether its name
    was among them.
    """

    index: int
    given: str = ""
    id: str = ""
    name: str = ""
    pieces: list[str] = attrs.Factory(list)
    extra: dict[str, Any] = attrs.Factory(dict)
    told: int = 0
    named: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def block(self) -> Block:
        return ToolCallBlock(self.id, self.name, self.arguments)


@attrs.frozen
class CallPiece:
    """What one delta says about one call; empty where it says nothing."""

    number: int | None
    given: str
    name: str
    arguments: str
    extra: dict[str, Any]

    @classmethod
    def of(cls, found: dict[str, Any]) -> CallPiece:
        function = as_object(found.get("function"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = orjson.dumps(arguments).decode()
        number = found.get("index")
        known = ("index", "id", "type", "function")
        return cls(
            number if type(number) is int else None,
            as_string(found.get("id")),
            as_string(function.get("name")),
            as_string(arguments),
            {key: value for key, value in found.items() if key not in known and value is not None},
        )

    def is_empty(self) -> bool:
        return not (self.given or self.name or self.arguments or self.extra)

    def begins_another(self, call: Call) -> bool:
        """Whether this starts a call of its own although it is addressed like `call`.

        Some servers number every call 0 or give them all no address. A second name tells: unless
        the ids settle it, it belongs to a new call if it differs or the arguments were whole.
        """
        if not (self.name and call.name):
            return False
        if self.given and call.given and self.given != call.given:
            return True
        if self.given and call.given and self.number is not None:
            return False
        return self.name != call.name or (bool(self.arguments) and _is_whole(call.arguments))


class Calls:
    """The tool calls of one answer, found by index, else by id, else as the newest."""

    def __init__(self) -> None:
        self.all: list[Call] = []
        self._by_number: dict[int, Call] = {}
        self._by_given: dict[str, Call] = {}
        self._ids: set[str] = set()

    def take(self, piece: CallPiece, free_index: int) -> Call:
        """The call that `piece` belongs to, with it taken in; a new one has `free_index`."""
        call = self._addressed(piece)
        if call is None or piece.begins_another(call):
            call = Call(free_index)
            self.all.append(call)
        self._note(call, piece)
        return call

    def _addressed(self, piece: CallPiece) -> Call | None:
        last = self.all[-1] if self.all else None
        if piece.number is not None:
            return self._by_number.get(piece.number)
        if not piece.given:
            return last
        waiting = last if last is not None and not last.given else None
        return self._by_given.get(piece.given, waiting)

    def _note(self, call: Call, piece: CallPiece) -> None:
        if piece.number is not None:
            self._by_number[piece.number] = call
        if piece.given and not call.given:
            call.given = piece.given
            self._by_given[piece.given] = call
            self.identify(call)
        call.name = call.name or piece.name
        call.extra |= piece.extra
        if piece.arguments:
            call.pieces.append(piece.arguments)

    def identify(self, call: Call) -> None:
        """Settle the id of `call`: the given one if nobody has it yet, else `call-<n>`."""
        if call.id:
            return
        number, call.id = self.all.index(call) + 1, call.given
        while not call.id or call.id in self._ids:
            call.id = f"call-{number}"
            number += 1
        self._ids.add(call.id)


def _is_whole(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except ValueError:
        return False


def untold(call: Call) -> Iterator[Chunk]:
    """What no chunk has told about `call` yet, once its id and its name are known."""
    text = "".join(call.pieces[call.told :])
    call.told = len(call.pieces)
    if text or not call.named:
        name = None if call.named else call.name or None
        call.named = True
        yield ToolCallDelta(call.index, call.id, text, name)
