"""In which order the messages of a body stand.

Calls that run side by side end in any order, and each result is logged when it is there. A model
that is shown results without their ids (many chat templates print none) reads them by their place,
so on the wire they stand in the order of the calls: the log keeps what happened, the wire what it
means. A *run* is an assistant message's results: the messages behind it that hold one result each
of a call that it made, until every call has one or something else comes. What is written of a run
depends on nothing else, and once it is over nothing changes it.
"""

from __future__ import annotations

import attrs

from refold.runtime.messages import Message, ToolResultBlock, tool_calls
from refold.runtime.request_header import EpochHeader
from refold.runtime.wire.chat.encode import encode_message, first_separator


class InLogOrder:
    """Every message where it was logged, at once: `chat/1`."""

    def __init__(self, header: EpochHeader) -> None:
        self._config = header.config
        self._separator = first_separator(header)

    def add(self, message: Message) -> bytes:
        encoded = self._separator + encode_message(message, self._config)
        self._separator = b","
        return encoded

    def unfinished(self) -> bytes:
        return b""


@attrs.define(eq=False)
class _Place:
    """Where a call's result will stand, and its bytes once it is there."""

    call_id: str
    result: bytes = b""


class InCallOrder:
    """The results of a step in the order of its calls: `chat/2`."""

    def __init__(self, header: EpochHeader) -> None:
        self._log_order = InLogOrder(header)
        self._run: list[_Place] = []

    def add(self, message: Message) -> bytes:
        encoded = self._log_order.add(message)
        if self._run:
            place = self._place_of(message)
            if place is not None:
                place.result = encoded
                return self._end_run() if all(one.result for one in self._run) else b""
            encoded = self._end_run() + encoded
        if message.role == "assistant":
            self._run = [_Place(call.id) for call in tool_calls(message.content)]
        return encoded

    def unfinished(self) -> bytes:
        return b"".join([place.result for place in self._run])

    def _place_of(self, message: Message) -> _Place | None:
        """The open place of the call that `message` is the result of, if it is one."""
        match message:
            case Message(role="user", content=(ToolResultBlock(tool_call_id=call_id),)):
                waiting = (one for one in self._run if one.call_id == call_id and not one.result)
                return next(waiting, None)
        return None

    def _end_run(self) -> bytes:
        run = self.unfinished()
        self._run = []
        return run
