"""The scripted model: answers from a list or a function, for tests and demos.

It speaks the same chunks as a real provider and needs no network, no key and no clock but Trio's.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeAlias, cast

import attrs
import orjson
import trio
from attrs.validators import ge

from refold.actors.arguments import wrong
from refold.actors.bodies import call_plainly, run_body
from refold.actors.request.model import Pass, admit
from refold.runtime.errors import InvalidArgument, Refused
from refold.runtime.json import Json, encode
from refold.runtime.messages import ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.prefix import common_prefix
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishKind,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from refold.runtime.stream.failures import LASTING, RETRYABLE, Code, Failure, LlmFailure
from refold.runtime.wire.chat import CHAT
from refold.runtime.wire.format import WireFormat

BYTES_PER_TOKEN = 4


class Piece:
    """A piece of an answer: `Say`, `Think`, `Call`, `Delay`, `Hang`, `Fail` or `End`."""

    __slots__ = ()


@attrs.frozen
class Say(Piece):
    """A text block, streamed in about `pieces` deltas."""

    text: str
    pieces: int = attrs.field(default=1, validator=ge(1))


@attrs.frozen
class Think(Piece):
    """A reasoning block, streamed in about `pieces` deltas."""

    text: str
    pieces: int = attrs.field(default=1, validator=ge(1))


@attrs.frozen
class Call(Piece):
    """A tool call; text as `arguments` is sent as it is, so that it may be bad JSON.

    Without an `id` one is derived from the request, so it is the same whenever that is sent.
    """

    name: str
    arguments: Mapping[str, Any] | str = attrs.field(factory=dict)
    id: str | None = None
    pieces: int = attrs.field(default=1, validator=ge(1))

    @property
    def raw(self) -> str:
        """The arguments as the text that a model would have produced."""
        if isinstance(self.arguments, str):
            return self.arguments
        return encode(dict(self.arguments)).decode()


@attrs.frozen
class Delay(Piece):
    """Silence for some seconds of Trio's clock, which is virtual in tests."""

    seconds: float


@attrs.frozen
class Hang(Piece):
    """Silence until cancelled."""


def _plain_code(code: str) -> str:
    return code.value if isinstance(code, Code) else code


@attrs.frozen
class Fail(Piece):
    """The answer breaks off here with this failure, as a server's does.

    Raises `InvalidArgument` for a code that no failure has.
    """

    code: str = attrs.field(
        converter=_plain_code,
        validator=lambda _self, _field, code: _check_code(code),
    )
    message: str = "the script says so"
    status: int | None = None
    retry_after_ms: int | None = None


@attrs.frozen
class End(Piece):
    """The finish to report in place of the natural one, such as `max-tokens`.

    `replay_state` is what a model wants back with the next request, verbatim.
    """

    kind: FinishKind
    replay_state: Json | None = None


def _check_code(code: object) -> None:
    known = sorted(RETRYABLE | LASTING)
    if type(code) is not str:
        raise wrong("the code of a Fail", f"one of {', '.join(known)}", code)
    if code not in known:
        close = get_close_matches(code.upper(), known, n=1)
        meant = f"did you mean {close[0]}? The" if close else "the"
        raise InvalidArgument(
            "the code of a Fail", f"cannot be {code!r}; {meant} codes are {', '.join(known)}"
        )


Answer: TypeAlias = str | Piece | Sequence[str | Piece]
"""What a script answers to one request: text, a piece, or several of these."""

Answers: TypeAlias = Sequence[Answer] | Callable[[Any], Answer | Awaitable[Answer]]
"""A script's answers in their order, or a function, plain or async, from a body to an answer."""


@attrs.define(eq=False)
class ScriptExhausted(Refused):
    """A request for which the script has no answer left."""

    name: str
    answers: int

    def __str__(self) -> str:
        return (
            f"the script ends after {self.answers} and request {self.answers + 1} has no answer; "
            f"add one to Script(..., name={self.name!r}), or give it a function that answers each"
        )


@attrs.define(eq=False)
class Script:
    """A model that answers its n-th request with the n-th of `answers`, or by calling them.

    A function, plain or async, is given the parsed body of each request and returns an answer:
    text, a piece, or several of these. `bodies` records every request as it was received. Usage is
    computed from the bytes: four make a token, and what a body has in common with the one before it
    counts as cached. Raises `InvalidArgument` for what is no answer, at once or, of a function, at
    its request.
    """

    answers: Answers
    name: str = attrs.field(default="script", kw_only=True)
    bodies: list[bytes] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        given: object = self.answers
        if callable(given):
            return
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise wrong("the answers of a Script", "a list of answers or a function", given)
        for number, answer in enumerate(given, 1):
            _pieces(answer, number)

    @property
    def provider_name(self) -> str:
        return self.name

    @property
    def format(self) -> WireFormat:
        return CHAT

    @asynccontextmanager
    async def open(self, body: bytes, clearance: Pass) -> AsyncIterator[ScriptStream]:
        """Begin the answer to `body`; raises `ScriptExhausted`, and `NotAdmitted` as any model."""
        await trio.lowlevel.checkpoint()
        admit(clearance, self.provider_name, body)
        answer, number = self._answer(body), len(self.bodies) + 1
        previous = self.bodies[-1] if self.bodies else b""
        self.bodies.append(body)
        if inspect.isawaitable(answer):
            awaited = answer  # of the narrower type
            answer = await run_body(lambda: awaited, f"the script {self.name!r}")
        yield ScriptStream(_play(_pieces(answer, number), body, previous))

    def _answer(self, body: bytes) -> object:
        if callable(self.answers):
            return call_plainly(partial(self.answers, orjson.loads(body)))
        if len(self.bodies) >= len(self.answers):
            raise ScriptExhausted(self.name, len(self.answers))
        return self.answers[len(self.bodies)]


def _pieces(answer: object, number: int) -> tuple[Piece, ...]:
    """The pieces of the answer to the request with this number; raises `InvalidArgument`."""
    several = isinstance(answer, Sequence) and not isinstance(answer, str | bytes)
    pieces: list[Piece] = []
    for given in cast("Sequence[object]", answer) if several else (answer,):
        if not isinstance(given, str | Piece):
            name = f"a script's answer to request {number}"
            wanted = "text, Say, Think, Call, Delay, Hang, Fail, End, or a list of these"
            raise wrong(name, wanted, given)
        pieces.append(Say(given) if isinstance(given, str) else given)
    return tuple(pieces)


@attrs.define(eq=False)
class ScriptStream:
    """The stream of one scripted answer."""

    _steps: Iterator[Chunk | Delay | Hang | Fail]

    async def receive(self) -> list[Chunk]:
        """The next chunk, or [] once the answer is complete; raises `LlmFailure` at a `Fail`.

        Cancelling it loses no chunk; it only ends a `Delay` or a `Hang` early.
        """
        await trio.lowlevel.checkpoint()
        for step in self._steps:
            match step:
                case Delay(seconds):
                    await trio.sleep(seconds)
                case Hang():
                    await trio.sleep_forever()
                case Fail(code, message, status, retry_after_ms):
                    raise LlmFailure(Failure(code, message, status, retry_after_ms))
                case _:
                    return [step]
        return []


def _play(
    pieces: tuple[Piece, ...], body: bytes, previous: bytes
) -> Iterator[Chunk | Delay | Hang | Fail]:
    kind: FinishKind = "tool-calls" if any(isinstance(p, Call) for p in pieces) else "stop"
    index, replay_state = 0, None
    for piece in pieces:
        match piece:
            case Say() | Think() | Call():
                yield from _block(index, piece, body)
                index += 1
            case End():
                kind, replay_state = piece.kind, piece.replay_state
            case Delay() | Hang() | Fail():
                yield piece
    yield UsageChunk(_usage(pieces, body, previous))
    yield Finish(FinishReason(kind), replay_state)


def _block(index: int, piece: Say | Think | Call, body: bytes) -> Iterator[Chunk]:
    match piece:
        case Say(text):
            yield BlockStart(index, "text")
            yield from (TextDelta(index, part) for part in _split(text, piece.pieces))
            yield BlockEnd(index, TextBlock(text))
        case Think(text):
            yield BlockStart(index, "reasoning")
            yield from (ReasoningDelta(index, part) for part in _split(text, piece.pieces))
            yield BlockEnd(index, ReasoningBlock(text))
        case Call():
            yield from _call(index, piece, body)


def _call(index: int, call: Call, body: bytes) -> Iterator[Chunk]:
    call_id = call.id or f"call_{hashlib.sha256(body).hexdigest()[:12]}_{index}"
    first, *rest = _split(call.raw, call.pieces) or [""]
    yield BlockStart(index, "tool-call")
    yield ToolCallDelta(index, call_id, first, call.name)
    yield from (ToolCallDelta(index, call_id, part) for part in rest)
    yield BlockEnd(index, ToolCallBlock(call_id, call.name, call.raw))


def _split(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _usage(pieces: tuple[Piece, ...], body: bytes, previous: bytes) -> Usage:
    total = len(body) // BYTES_PER_TOKEN
    cached = common_prefix(body, previous) // BYTES_PER_TOKEN
    thought = sum(len(p.text.encode()) for p in pieces if isinstance(p, Think))
    said = sum(len(p.text.encode()) for p in pieces if isinstance(p, Say))
    called = sum(len((p.name + p.raw).encode()) for p in pieces if isinstance(p, Call))
    return Usage(
        input_tokens=total - cached,
        output_tokens=(thought + said + called) // BYTES_PER_TOKEN,
        cache_read_tokens=cached,
        reasoning_tokens=thought // BYTES_PER_TOKEN if thought else None,
    )
