"""Chat completions, the wire that most servers speak; `wire.format` says what a format is.

- `chat/1` writes the results of a step in the order in which they were logged;
- `chat/2` writes them in the order of the calls.
"""

from __future__ import annotations

from refold.runtime.wire.chat.decode import ChatDecoder
from refold.runtime.wire.chat.encode import CLOSING, encode_opening
from refold.runtime.wire.chat.order import InCallOrder, InLogOrder
from refold.runtime.wire.format import WireFormat

__all__ = ["CHAT", "CHAT_1"]


def _headers(key: str | None) -> dict[str, str]:
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        # A compressing proxy would hold back events until its block is full.
        "accept-encoding": "identity",
    }
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers


_PATH = "/chat/completions"

CHAT_1 = WireFormat("chat/1", _PATH, _headers, encode_opening, InLogOrder, CLOSING, ChatDecoder)
CHAT = WireFormat("chat/2", _PATH, _headers, encode_opening, InCallOrder, CLOSING, ChatDecoder)
"""The newest version: what requests are written in."""
