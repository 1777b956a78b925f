"""Agents on the real engine, and what their logs say of every request that they sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

import attrs
import orjson
import pytest

import refold
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import AssistantChunk, AssistantMessage, RequestSealed, SessionOwner
from refold.runtime.request import rebuild_request
from refold.runtime.storage import JsonlFolder
from refold.runtime.stream.chunks import Finish, Usage
from refold.runtime.wire.chat import CHAT
from refold.runtime.wire.providers import BUILT_IN
from refold.runtime.wire.request_encoder import encode_request
from refold.testing import Engine

if os.environ.get("CI") != "true":  # there a missing wheel must not pass for a success
    pytest.importorskip("xllamacpp", reason="needs pip install 'refold[engine]'")

SYSTEM = "You are a careful agent. " * 10
MAX_TOKENS = 400


def options(**more: Unpack[refold.AgentOptions]) -> refold.AgentOptions:
    """What every agent here starts from, and `more`; one slot, so that counts are exact."""
    common: refold.AgentOptions = {
        "model": "local/tiny",
        "system": SYSTEM,
        "temperature": 0.7,
        "max_tokens": MAX_TOKENS,
        "extra": {"seed": 11, "id_slot": 0, "parallel_tool_calls": False},
        "invariants": "full",
    }
    return {**common, **more}


def local(base_url: str) -> refold.Provider:
    """The built-in provider of this name at the address of an engine."""
    return attrs.evolve(BUILT_IN["local"], base_url=base_url)


@attrs.frozen
class Exchange:
    """A request and its answer, from the log; `life` counts the openings of the log, from 1."""

    life: int
    boundary: int
    seal: RequestSealed
    finish: str = ""
    usage: Usage | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens that the engine found in its cache."""
        assert self.usage is not None
        assert self.usage.cache_read_tokens is not None
        return self.usage.cache_read_tokens

    @property
    def prompt(self) -> int:
        """Prompt tokens."""
        assert self.usage is not None
        return self.usage.total_input

    @property
    def total(self) -> int:
        """Tokens of the prompt and the answer."""
        assert self.usage is not None
        assert self.usage.output_tokens is not None
        return self.usage.total_input + self.usage.output_tokens


def events_in(store: Path, session_id: str) -> list[Event]:
    """The events that stand in a session's file."""
    return [decode_line(record.encoded) for record in JsonlFolder(store).read(session_id).records]


def exchanges(events: Iterable[Event]) -> list[Exchange]:
    """Every sealed request of a log, in order."""
    found: list[Exchange] = []
    life = boundary = 0
    for event in events:
        match event.data:
            case SessionOwner():
                life += 1
            case RequestSealed() as seal:
                found.append(Exchange(life, boundary, seal))
            case AssistantChunk(chunk=Finish(reason=reason)):
                found[-1] = attrs.evolve(found[-1], finish=reason.kind)
            case AssistantMessage(usage=usage):
                found[-1] = attrs.evolve(found[-1], usage=usage)
            case _ if event.type == "step/start":
                boundary = event.seq
    return found


def assert_nothing_was_read_twice(found: Sequence[Exchange]) -> None:
    """Each request found all tokens of the one before it cached, but for the last sampled one.

    That one is never in a cache: it was chosen and not fed to the model again.
    """
    assert len(found) > 1
    assert [one.cached for one in found[1:]] == [one.total - 1 for one in found[:-1]]


def wire_body(events: Sequence[Event], exchange: Exchange) -> dict[str, Any]:
    """The body of a request, rebuilt from the log."""
    request = rebuild_request(events, exchange.boundary)
    body: dict[str, Any] = orjson.loads(encode_request(request, CHAT).body)
    return body


async def prompt_tokens(engine: Engine, events: Sequence[Event], exchange: Exchange) -> list[int]:
    """The prompt that the engine makes of a rebuilt request, as its own token ids."""
    return await engine.tokenize(await engine.apply_template(wire_body(events, exchange)))
