"""A chat without a terminal: each line of standard input is a prompt."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator

import attrs
import trio

from refold.chat.conversation import Conversation
from refold.chat.feed import Feed
from refold.chat.screen import show_in_pipe
from refold.chat.terminal import lines
from refold.cli.shared.exit_codes import DIFFERENT, FINE

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
            if line.strip():
                turn = await conversation.agent.ask(line)
                if turn.reason.kind == "error":
                    self.code = DIFFERENT

    async def watch(self, signals: AsyncIterator[int], chat: trio.CancelScope) -> None:
        async for number in signals:
            if number in LEAVE_ON:
                self.code = 128 + number
                chat.cancel()
