"""Streams of chat completions written by hand, and what comes out of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from refold.runtime.messages import ToolCallBlock, tool_calls
from refold.runtime.stream.assembler import Assembled, Assembler
from refold.runtime.stream.chunk_order import ChunkOrder
from refold.runtime.stream.chunks import Chunk
from refold.runtime.stream.failures import LlmFailure
from refold.runtime.wire.chat.decode import ChatDecoder

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 3}


def event(payload: object) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def said(text: str) -> bytes:
    return delta(content=text)


def call(**fields: Any) -> dict[str, Any]:
    """One entry of `tool_calls`; name and arguments go into its function."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**fields, "function": function}


def decode(*pieces: bytes) -> list[Chunk]:
    """All chunks of a stream, checked against the grammar."""
    decoder, grammar = ChatDecoder(), ChunkOrder()
    chunks = [chunk for piece in pieces for chunk in decoder.feed(piece)]
    chunks += decoder.close()
    for chunk in chunks:
        grammar.check(chunk)
    assert decoder.done
    return chunks


def assemble(chunks: Iterable[Chunk]) -> Assembled:
    assembler = Assembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.finished()


def answer(*pieces: bytes) -> Assembled:
    return assemble(decode(*pieces))


def calls(*entries: dict[str, Any]) -> tuple[ToolCallBlock, ...]:
    """The calls of a stream in which each entry has a delta of its own."""
    stream = [delta(tool_calls=[entry]) for entry in entries]
    return tool_calls(answer(*stream, delta("tool_calls"), DONE).content)


def failure_of(*pieces: bytes) -> tuple[list[Chunk], str]:
    """The chunks before a failure, and its code."""
    decoder = ChatDecoder()
    chunks: list[Chunk] = []
    with pytest.raises(LlmFailure) as caught:
        for piece in pieces:
            chunks += decoder.feed(piece)
        chunks += decoder.close()
    assert not decoder.done
    return chunks, caught.value.failure.code
