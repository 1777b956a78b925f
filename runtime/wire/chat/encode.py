"""Writing a request for chat completions: pure functions from header and messages to bytes.

Each message becomes one wire message whose bytes depend on the message and the config alone, and
`messages` stands last in the body: so the bytes of a request's messages are a prefix of the next
request's, which is what provider caches live on.

Some values change how a body is written instead of standing in it. They are quirks of a provider
and travel in `config.extra` under the key `refold`, because whatever shapes the body is logged:

- `{"maxTokensKey": "max_completion_tokens"}`: the name under which `max_tokens` is sent;
- `{"replayReasoning": false}`: reasoning is not sent back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from refold.runtime.json import Json
from refold.runtime.json import encode as encode_json
from refold.runtime.messages import (
    Block,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    text_of,
    tool_calls,
)
from refold.runtime.request_header import EpochHeader, LlmCallConfig, ToolSchema
from refold.runtime.wire.format import QUIRKS, ExtraRefused

CLOSING = b"]}"

_OWNED = frozenset(
    ("model", "messages", "tools", "stream", "stream_options", "temperature", "max_tokens", "stop")
)
_QUIRKS: dict[str, object] = {
    "maxTokensKey": "max_completion_tokens",
    "replayReasoning": False,
}


def encode_opening(header: EpochHeader) -> bytes:
    """The body up to and including `"messages":[` and the system message, if there is one.

    Raises `ExtraRefused` and `NotLosslessJson`.
    """
    fields = encode_json(dict(_fields(header)))
    opening = fields.removesuffix(b"}") + b',"messages":['
    if header.system:
        opening += encode_json({"role": "system", "content": header.system})
    return opening


def first_separator(header: EpochHeader) -> bytes:
    """What stands between the opening and the first message."""
    return b"," if header.system else b""


def _written_by_refold(key: str, max_tokens_key: str) -> str:
    """What is wrong with a field that is refold's own, and where it is said instead."""
    name = "max_tokens" if key == max_tokens_key else key
    if name not in ("model", "tools", "temperature", "max_tokens", "stop"):
        return "is written by refold itself and cannot be set; leave it out"
    place = "an option of the agent" + ("" if name == "stop" else " and a setting of refold.toml")
    return f"is written by refold itself; give it as `{name}`, {place}"


def _fields(header: EpochHeader) -> Iterator[tuple[str, Any]]:
    config = header.config
    extra = _extra(config)
    quirks = _checked_quirks(extra)
    max_tokens_key = str(quirks.get("maxTokensKey", "max_tokens"))
    yield "model", config.model
    for key, value in extra.items():
        if key in _OWNED or key == max_tokens_key:
            raise ExtraRefused(key, _written_by_refold(key, max_tokens_key))
        if key != QUIRKS:
            yield key, value
    if config.temperature is not None:
        yield "temperature", config.temperature
    if config.max_tokens is not None:
        yield max_tokens_key, config.max_tokens
    if config.stop is not None:
        yield "stop", config.stop
    yield "stream", True
    yield "stream_options", {"include_usage": True}
    if header.tools:
        yield "tools", [_tool(tool) for tool in header.tools]


def _extra(config: LlmCallConfig) -> dict[str, Any]:
    extra = {} if config.extra is None else config.extra.thaw()
    if not isinstance(extra, dict):
        raise ExtraRefused("it", "holds no fields; give it an object")
    return extra


def _checked_quirks(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    quirks = extra.get(QUIRKS, {})
    if not isinstance(quirks, dict):
        raise ExtraRefused(QUIRKS, "holds quirks by name; give it an object")
    for name, value in quirks.items():
        if name not in _QUIRKS:
            raise ExtraRefused(QUIRKS, f"has no quirk {name!r}; it knows {', '.join(_QUIRKS)}")
        if value != _QUIRKS[name] or type(value) is not type(_QUIRKS[name]):
            raise ExtraRefused(f"{QUIRKS}.{name}", f"can only be {_QUIRKS[name]!r}; leave it out")
    return quirks


def _tool(tool: ToolSchema) -> dict[str, Any]:
    # The schema goes out as the bytes that were logged: its key order is part of the cache key.
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": orjson.Fragment(tool.parameters.encoded),
    }
    return {"type": "function", "function": function}


def encode_message(message: Message, config: LlmCallConfig) -> bytes:
    """One wire message, compact; raises what `encode_opening` raises.

    A user message with tool results answers the call of the first one, with the role `tool`; what
    else it holds follows as text, further results behind a line that names their call. Likewise a
    tool call of a user and a tool result of an assistant become text: whatever has no place of its
    own on this wire is still read by the model. Reasoning blocks are for people and are not sent.
    """
    wire = _assistant(message, config) if message.role == "assistant" else _user(message)
    return encode_json(wire)


def _user(message: Message) -> dict[str, Any]:
    answered = next((b for b in message.content if isinstance(b, ToolResultBlock)), None)
    if answered is None:
        return {"role": "user", "content": _joined(message.content)}
    parts = (
        _joined(answered.content) if block is answered else _as_text(block)
        for block in _sent(message.content)
    )
    return {"role": "tool", "tool_call_id": answered.tool_call_id, "content": "\n".join(parts)}


def _joined(content: tuple[Block, ...]) -> str:
    return "\n".join(map(_as_text, _sent(content)))


def _sent(content: tuple[Block, ...]) -> list[TextBlock | ToolCallBlock | ToolResultBlock]:
    return [block for block in content if not isinstance(block, ReasoningBlock)]


def _as_text(block: TextBlock | ToolCallBlock | ToolResultBlock) -> str:
    match block:
        case TextBlock(text):
            return text
        case ToolCallBlock(call_id, name, arguments):
            return f"Call {call_id} of {name}: {arguments}"
        case ToolResultBlock(call_id, content):
            return f"Result of call {call_id}:\n{_joined(content)}"


def _assistant(message: Message, config: LlmCallConfig) -> dict[str, Any]:
    replayed = _replayed(message, config)
    results = tuple(block for block in message.content if isinstance(block, ToolResultBlock))
    parts = (text_of(message.content), _joined(results))
    wire: dict[str, Any] = {"role": "assistant", "content": "\n".join(filter(None, parts))}
    reasoning = replayed.get("reasoning_content")
    if reasoning and _replays_reasoning(config):
        wire["reasoning_content"] = reasoning
    calls = tool_calls(message.content)
    if calls:
        extra = replayed.get("tool_calls", {})
        wire["tool_calls"] = [_call(call, extra.get(call.id, {})) for call in calls]
    return wire


def _call(call: ToolCallBlock, extra: Mapping[str, Any]) -> dict[str, Any]:
    wire = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    return wire | {key: value for key, value in extra.items() if key not in wire}


def _replayed(message: Message, config: LlmCallConfig) -> dict[str, Any]:
    """What the maker of a message wants back, if it is the one that is asked now."""
    made = message.provenance
    if made is None or made.replay_state is None:
        return {}
    if (made.provider, made.model) != (config.provider, config.model):
        return {}
    return _of_this_wire(made.replay_state)


def _of_this_wire(state: Json) -> dict[str, Any]:
    """The parts of a replay state that this wire wrote; one that another wire wrote has none."""
    value = state.thaw()
    if not isinstance(value, dict):
        return {}
    found: dict[str, Any] = {}
    if isinstance(value.get("reasoning_content"), str):
        found["reasoning_content"] = value["reasoning_content"]
    if isinstance(value.get("tool_calls"), dict):
        calls = value["tool_calls"].items()
        found["tool_calls"] = {key: extra for key, extra in calls if isinstance(extra, dict)}
    return found


def _replays_reasoning(config: LlmCallConfig) -> bool:
    return "replayReasoning" not in _checked_quirks(_extra(config))
