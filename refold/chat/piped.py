"""A chat without a terminal: each line of standard input is a prompt."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator

import attrs
import trio

from refold.actors.kernel import ActorCrashed
from refold.chat.conversation import Conversation
from refold.chat.feed import Feed
from refold.chat.pipe import show_in_pipe
from refold.chat.terminal import lines
from refold.cli.shared.exit_codes import DIFFERENT, FINE
from refold.runtime.storage.errors import PASSING

LEAVE_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def answer_lines(conversation: Conversation, feed: Feed, signals: AsyncIterator[int]) -> int:
    """Ask line by line until the input ends; returns the exit code.

    That is 1 if a turn ended in an error, and 128 and the signal's number after a signal. Raises
    what ended the session, and `BrokenPipeError`.
    """
    asked = _Asked()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.show, show_in_pipe)
        nursery.start_soon(asked.watch, signals, nursery.cancel_scope)
        await asked.ask(conversation)
        nursery.cancel_scope.cancel()
    return asked.code


@attrs.define
class _Asked:
    code: int = FINE

    async def ask(self, conversation: Conversation) -> None:
        async for line in lines(sys.stdin.fileno()):
            if line.strip() and not await _answered(conversation, line):
                self.code = DIFFERENT

    async def watch(self, signals: AsyncIterator[int], chat: trio.CancelScope) -> None:
        async for number in signals:
            if number in LEAVE_ON:
                self.code = 128 + number
                chat.cancel()


async def _answered(conversation: Conversation, line: str) -> bool:
    """Whether a turn answered it; what the store refuses for now is told instead."""
    try:
        turn = await conversation.agent.ask(line)
    except ActorCrashed as crash:
        if not isinstance(crash.__cause__, PASSING):
            raise
        conversation.teller.note(str(crash.__cause__))
        return False
    return turn.reason.kind != "error"
