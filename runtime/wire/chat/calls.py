"""Tool calls out of the pieces in which a stream of chat completions tells them.

A call is told in fragments, or whole, or in fragments and then whole, or in pieces that each hold
all that was said before, or behind an empty placeholder; its name may come in pieces; a gateway
may tell the finished call again under another index. One call must come out of each, for it is run
once. Two things keep that apart from several calls and from fragments that happen to be equal:

- what arguments mean is decided when all pieces are there, and fragments that make an object when
  they are put end to end are just that. Only where they make none were they told again;
- a call that is given an id that another one has is told to nobody until the end: if it says the
  same it is the same, else it is a call of its own under an id of its own. Equal calls without
  ids, or under ids that differ, stay several.

What was told already cannot be taken back, so nothing is told of arguments from the first piece on
that may be one told again.
"""

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

    `told` is what chunks have told of its arguments, in characters, `named` says whether its name
    was among it.
    """

    index: int
    given: str = ""
    id: str = ""
    name: str = ""
    pieces: list[str] = attrs.Factory(list)
    extra: dict[str, Any] = attrs.Factory(dict)
    told: int = 0
    named: bool = False
    _length: int = 0
    _last: str = ""
    _doubtful: bool = False

    @property
    def arguments(self) -> str:
        """What the pieces so far mean."""
        return meant(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are an object by now."""
        return self._last.endswith("}") and _is_object(self.arguments)

    def add(self, piece: str) -> None:
        """Take a piece of the arguments."""
        bare = piece.strip()
        first_is_whole = not self._length and (_looks_whole(piece) or bare in _PLACEHOLDERS)
        begins_anew = self._last.endswith("}") and bare.startswith("{")
        if first_is_whole or begins_anew or self._repeats(piece):
            self._doubtful = True
        self.pieces.append(piece)
        self._length += len(piece)
        self._last = bare or self._last

    def _repeats(self, piece: str) -> bool:
        """Whether a piece begins with all that is there; longer ones alone are worth a look."""
        if not self._length or len(piece) < self._length:
            return False
        return piece.startswith("".join(self.pieces))

    def untold(self, *, over: bool = False) -> Iterator[Chunk]:
        """What no chunk has told yet; while it is not `over`, only what is beyond doubt."""
        if over:
            text = self.arguments[self.told :]
        elif self._doubtful or self.told == self._length:
            return
        else:
            text = "".join(self.pieces)[self.told :]
        if text or not self.named:
            name = None if self.named else self.name or None
            self.named = True
            self.told += len(text)
            yield ToolCallDelta(self.index, self.id, text, name)

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

        Some servers number every call 0 or give them all no address. A second name tells, unless
        the ids settle it: behind whole arguments that do not go on it belongs to a new call, and
        where no id holds the pieces together so does another name.
        """
        if not (self.name and call.name):
            return False
        if self.given and call.given:
            if self.given != call.given:
                return True
            return call.is_whole and not self._says_again(call)
        if call.is_whole:
            return bool(self.arguments) or self.name != call.name
        return self.name != call.name and not (self.given or call.given)

    def _says_again(self, call: Call) -> bool:
        """Whether this says what `call` says already, or no more than a blank."""
        if not self.arguments.strip():
            return self.name == call.name
        return self.name == call.name and _is_object(meant([call.arguments, self.arguments]))


class Calls:
    """The tool calls of one answer, found by index, else by id, else as the newest.

    `all` are those that are told of; `settle` adds those that turn out to be calls of their own.
    """

    def __init__(self) -> None:
        self.all: list[Call] = []
        self._perhaps_again: list[Call] = []
        self._by_number: dict[int, Call] = {}
        self._by_given: dict[str, Call] = {}
        self._ids: set[str] = set()
        self._last: Call | None = None

    def take(self, piece: CallPiece, free_index: int) -> Call | None:
        """The call that `piece` belongs to, with it taken in; a new one has `free_index`.

        None for one that nothing may be told of yet.
        """
        call = self._addressed(piece)
        if call is None or piece.begins_another(call):
            call = Call(free_index)
            again = piece.given in self._by_given
            (self._perhaps_again if again else self.all).append(call)
        self._note(call, piece)
        return call if call in self.all else None

    def _addressed(self, piece: CallPiece) -> Call | None:
        if piece.number is not None:
            return self._by_number.get(piece.number)
        if not piece.given:
            return self._last
        waiting = self._last if self._last is not None and not self._last.given else None
        return self._by_given.get(piece.given, waiting)

    def _note(self, call: Call, piece: CallPiece) -> None:
        self._last = call
        if piece.number is not None:
            self._by_number[piece.number] = call
        if piece.given and not call.given:
            call.given = piece.given
            if piece.given not in self._by_given:
                self._by_given[piece.given] = call
                self.identify(call)
        if piece.name.startswith(call.name):  # the first, or all of it so far
            call.name = piece.name
        elif piece.name != call.name:
            call.name += piece.name
        call.extra |= piece.extra
        if piece.arguments:
            call.add(piece.arguments)

    def settle(self, free_index: int) -> list[Call]:
        """Every piece is there: the calls that were held back and are not one told again.

        The first of them has `free_index`.
        """
        found: list[Call] = []
        for call in self._perhaps_again:
            if not any(_same(call, other) for other in self.all):
                call.index = free_index + len(found)
                found.append(call)
                self.all.append(call)
        self._perhaps_again = []
        for call in self.all:
            self.identify(call)
        return found

    def identify(self, call: Call) -> None:
        """Settle the id of `call`: the given one if nobody has it yet, else `call-<n>`."""
        if call.id:
            return
        number, call.id = self.all.index(call) + 1, call.given
        while not call.id or call.id in self._ids:
            call.id = f"call-{number}"
            number += 1
        self._ids.add(call.id)


def _same(again: Call, call: Call) -> bool:
    if again.given != call.given or again.name not in ("", call.name):
        return False
    one, other = again.arguments, call.arguments
    return one == other or (_is_object(one) and _value(one) == _value(other))


def meant(pieces: list[str]) -> str:
    """The arguments that pieces tell: their sum, where that is an object, else what was told last.

    For example: `{"q":` and `"1"}` are fragments; `{}` and `{"q":"1"}` are a placeholder and what
    it stood for; `{"q":"1"}` and `{"q": "1"}` are one object, told twice. What makes no sense is
    put end to end as it came.
    """
    joined = "".join(pieces)
    if len(pieces) < 2 or _is_object(joined):
        return joined
    text, objects = "", 0
    for piece in pieces:
        if text.strip() in _PLACEHOLDERS or (len(piece) >= len(text) and piece.startswith(text)):
            text = piece
            continue
        found = _value(piece) if _looks_whole(piece) and objects < LOOKED_AT else None
        so_far = _value(text) if isinstance(found, dict) and _looks_whole(text) else None
        objects += isinstance(found, dict)
        if not (isinstance(found, dict) and isinstance(so_far, dict)):
            text += piece
        elif _grown(so_far, found):
            text = text if found == so_far else piece
        elif found:
            return joined
    return text if _is_object(text) else joined


LOOKED_AT = 256
"""How many whole objects among the pieces of one call are compared: more are somebody's joke."""

_PLACEHOLDERS = ("", "{}", "null")


def _looks_whole(text: str) -> bool:
    """Whether it may be an object, at a glance."""
    bare = text.strip()
    return bare.startswith("{") and bare.endswith("}")


def _value(text: str) -> object:
    """The JSON of a text; None for what is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def _grown(before: object, now: object) -> bool:
    """Whether `now` is `before`, or a later state of it while it was still being written."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and _grown(value, now[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(before) <= len(now) and all(map(_grown, before, now))
    if isinstance(before, str) and isinstance(now, str):
        return now.startswith(before)
    return type(before) is type(now) and before == now


def _is_object(text: str) -> bool:
    return isinstance(_value(text), dict)
