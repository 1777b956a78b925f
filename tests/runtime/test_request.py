"""What two requests that differ must differ in: their digests."""

from __future__ import annotations

from itertools import combinations

from refold.runtime.json import Json
from refold.runtime.messages import Message, Provenance, TextBlock, ToolResultBlock
from refold.runtime.request import Request
from refold.runtime.request_header import EpochHeader, LlmCallConfig, ToolSchema

SCHEMA = Json.of({"type": "object", "properties": {}})


def config(**more: object) -> LlmCallConfig:
    return LlmCallConfig("p", model="m", **more)  # type: ignore[arg-type]  # each of its own type


def head(settings: LlmCallConfig | None = None, **more: object) -> EpochHeader:
    return EpochHeader(settings or config(), **more)  # type: ignore[arg-type]  # each of its own


def tool(name: str, description: str = "d") -> ToolSchema:
    return ToolSchema(name, description, SCHEMA)


SAID = (Message("user", (TextBlock("hi"),)),)

HEADERS = {
    "plain": head(),
    "provider": head(LlmCallConfig("q", model="m")),
    "model": head(LlmCallConfig("p", model="n")),
    "temperature": head(config(temperature=0.5)),
    "tokens": head(config(max_tokens=5)),
    "stop": head(config(stop=("END",))),
    "extra": head(config(extra=Json.of({"refold": {"replayReasoning": True}}))),
    "extra, another value": head(config(extra=Json.of({"refold": {"replayReasoning": False}}))),
    "extra, another order": head(config(extra=Json.of({"a": 1, "b": 2}))),
    "extra, in this order": head(config(extra=Json.of({"b": 2, "a": 1}))),
    "system": head(system="S"),
    "tools": head(tools=(tool("a"), tool("b"))),
    "tools, in another order": head(tools=(tool("b"), tool("a"))),
    "tools, described otherwise": head(tools=(tool("a"), tool("b", "e"))),
    "prefix": head(message_prefix=SAID),
}

DERIVED: dict[str, tuple[Message, ...]] = {
    "nothing": (),
    "a prompt": SAID,
    "by the model": (Message("assistant", (TextBlock("hi"),), Provenance("p", "m")),),
    "by another model": (Message("assistant", (TextBlock("hi"),), Provenance("p", "n")),),
    "a result": (Message("user", (ToolResultBlock("c", (TextBlock("r"),), is_error=False),)),),
    "a failure": (Message("user", (ToolResultBlock("c", (TextBlock("r"),), is_error=True),)),),
    "twice": SAID * 2,
}


def test_headers_that_differ_in_anything_have_different_digests() -> None:
    digests = {name: Request(header, SAID).digest() for name, header in HEADERS.items()}
    same = [pair for pair in combinations(digests, 2) if digests[pair[0]] == digests[pair[1]]]
    assert same == []


def test_messages_that_differ_in_anything_have_different_digests() -> None:
    digests = {name: Request(head(), said).digest() for name, said in DERIVED.items()}
    same = [pair for pair in combinations(digests, 2) if digests[pair[0]] == digests[pair[1]]]
    assert same == []
