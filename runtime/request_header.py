"""The request header: the request's state that is not history."""

from __future__ import annotations

from typing import Literal

import attrs

from refold.runtime.json import Json
from refold.runtime.messages import Message


@attrs.frozen
class LlmCallConfig:
    """Which model is called and how; `extra` holds every provider-specific value.

    Logs older than the format have no provider: there it is empty, which is left out.
    """

    provider: str = ""
    model: str = attrs.field(kw_only=True)
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    extra: Json | None = None


@attrs.frozen
class ToolSchema:
    """One tool as the model sees it; `parameters` is a JSON schema with its key order kept."""

    name: str
    description: str
    parameters: Json


@attrs.frozen
class EpochHeader:
    """A full snapshot of the header; an empty system, tool list or prefix is absent.

    Two headers are equal when their canonical bytes are: tool order and the key order inside a
    schema count, because the provider's cache sees them.
    """

    config: LlmCallConfig
    system: str = ""
    tools: tuple[ToolSchema, ...] = ()
    message_prefix: tuple[Message, ...] = ()


@attrs.frozen
class RequestHeader:
    """The data of a `request/header` event: the snapshot and why it was written."""

    header: EpochHeader
    reason: Literal["initial", "resume", "change"]
