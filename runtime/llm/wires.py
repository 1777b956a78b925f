"""The wire codecs by name; a version stays callable for ever (design 2.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from runtime.header import EpochHeader, LlmCallConfig
from runtime.llm import chat
from runtime.messages import Message


@attrs.frozen
class Wire:
    """The pure encoding half of a codec: a body is head + joined messages + tail.

    `separator` is what stands between the head and the first message.
    """

    name: str
    head: Callable[[EpochHeader], bytes]
    separator: Callable[[EpochHeader], bytes]
    message: Callable[[Message, LlmCallConfig], bytes]
    tail: bytes


CHAT = Wire(chat.NAME, chat.encode_head, chat.first_separator, chat.encode_message, chat.TAIL)

WIRES: Mapping[str, Wire] = {CHAT.name: CHAT}
