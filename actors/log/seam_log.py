"""A session's log as the code of users holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType

import trio

from refold.actors.arguments import check_seq
from refold.actors.log.session_log import SessionLog
from refold.actors.log.subscription import Subscription
from refold.runtime.envelope import Draft, Event, Replace
from refold.runtime.errors import InvalidArgument
from refold.runtime.events import BUILT_IN, InboxQueued
from refold.runtime.messages import Message
from refold.runtime.request_header import EpochHeader
from refold.runtime.storage.reader import LogReader

PLUGIN_TYPES = frozenset(
    {
        *("context/message", "inbox/queued", "inbox/removed", "todo/write"),
        *("compact/start", "compact/summary", "compact/end"),
    }
)
"""The built-in types that the code of users may append."""


def _may_write(made: Draft) -> bool:
    own = made.type not in BUILT_IN
    return own or made.type in PLUGIN_TYPES or isinstance(made.surface_op, Replace)


class _UpTo:
    """The events that a subscription gives, as far as `last`."""

    def __init__(self, found: Subscription, next_seq: int, last: int) -> None:
        self._found, self._next_seq, self._last = found, next_seq, last

    def __aiter__(self) -> _UpTo:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        if self._next_seq > self._last:
            self._found.close()
            raise StopAsyncIteration
        self._next_seq += 1
        return await anext(self._found)


class SeamLog:
    """Append to a session's log and read it. Given to seams by refold.

    Whoever reads gets values that never change and no live fold, so that nothing which a seam does
    with them can harm the session. Drafts are checked in the task that appends them.
    """

    def __init__(self, log: SessionLog, open_reader: Callable[[], LogReader]) -> None:
        self._log, self._open_reader = log, open_reader

    @property
    def session_id(self) -> str:
        return self._log.session_id

    def append(self, *drafts: Draft, flush: bool = False) -> Awaitable[tuple[Event, ...]]:
        """Commit all drafts or none, and return the events; with `flush`, once they are durable.

        `refold.draft` makes drafts: of context, input for the inbox and its removal, the to-do
        list, a compaction, types of one's own, and what takes the place of other nodes. Raises
        `InvalidArgument` at the call for what refold alone writes, and for what is no draft; the
        awaitable raises the refusal of the first draft that a rule forbids (nothing of the batch
        is in the log then), and that the session has ended. Cancelled before the drafts are on
        their way, nothing was appended; after that the events stand.
        """
        for made in drafts:
            if type(made) is Draft and not _may_write(made):
                raise InvalidArgument(
                    "what is appended",
                    f"is of the type {made.type}, which refold alone writes; a tool or seam may "
                    f"append {', '.join(sorted(PLUGIN_TYPES))}, types of its own, and replacements",
                )
        return self._log.append(*drafts, flush=flush)

    async def flush(self) -> int:
        """Wait until everything appended before this call is durable; returns the durable seq.

        Cancelling it withdraws nothing. Raises `LogFailed` when the store cannot make it so.
        """
        return await self._log.flush()

    def events(self, from_seq: int = 0) -> AsyncIterator[Event]:
        """The events from `from_seq` on that stand in the log at this call; for `async for`.

        They come from the store, a part at a time; the last of them may not be durable yet.
        """
        check_seq("from_seq", from_seq)
        feed, last = self._log.live.feed, self._log.live.session.next_seq - 1
        run = trio.lowlevel.current_trio_token()
        found = Subscription(feed, self._open_reader, from_seq, durable=False, run=run)
        return _UpTo(found, from_seq, last)

    async def pending(self) -> Mapping[int, InboxQueued]:
        """The input that no message cites and nobody took back yet, by seq, as it is now."""
        await trio.lowlevel.checkpoint()
        return MappingProxyType(dict(self._log.live.rules.inbox.pending))

    async def header(self) -> EpochHeader | None:
        """The latest request header, None before the first request."""
        await trio.lowlevel.checkpoint()
        return self._log.live.session.header

    async def messages(self) -> tuple[Message, ...]:
        """The derived messages as they are now: those of the next request before new input."""
        await trio.lowlevel.checkpoint()
        return self._log.live.session.derive_messages()
