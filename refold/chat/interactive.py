"""A chat on a terminal: keys, signals and turns side by side."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import trio

from refold.actors.agent import Agent
from refold.actors.kernel import ActorCrashed
from refold.chat.commands import obey
from refold.chat.conversation import Conversation
from refold.chat.feed import Feed
from refold.chat.keys import Key, KeyReader, Typed
from refold.chat.line import Line
from refold.chat.screen import Screen
from refold.chat.terminal import key_by_key, keystrokes
from refold.runtime.storage.errors import PASSING


async def talk(
    conversation: Conversation, feed: Feed, screen: Screen, signals: AsyncIterator[int]
) -> int:
    """Talk to the person at the terminal until they leave; returns the exit code.

    A turn that still runs then is ended when the runtime is closed. Raises what ended the session.
    """
    fd = sys.stdin.fileno()
    with key_by_key(fd) as set_mode:
        try:
            async with trio.open_nursery() as nursery:
                conversation.teller.note("/help lists the commands; Ctrl-D leaves")
                desk = Interactive(conversation, feed, screen, nursery)
                nursery.start_soon(feed.show, screen.show)
                nursery.start_soon(desk.watch, signals, set_mode)
                await desk.read(fd)
                desk.leave(128 + signal.SIGHUP)
        finally:
            screen.show_row(None, feed.take())
    return desk.code


class Interactive:
    """One person's keys and signals, and what they do to a conversation.

    Every line is left in the agent's inbox, so one that is typed while a turn runs gets its turn
    afterwards.
    """

    def __init__(
        self, conversation: Conversation, feed: Feed, screen: Screen, nursery: trio.Nursery
    ) -> None:
        self.conversation, self.code = conversation, 0
        self._feed, self._screen, self._nursery = feed, screen, nursery
        self._line = Line()
        self._unanswered = 0
        self._interrupts = 0

    @property
    def busy(self) -> bool:
        """Whether a prompt still waits for the end of its turn."""
        return self._unanswered > 0

    def leave(self, code: int) -> None:
        """End the chat with this exit code; the first one stands."""
        if not self._nursery.cancel_scope.cancel_called:
            self.code = code
            self._nursery.cancel_scope.cancel()

    def interrupt(self) -> None:
        """What Ctrl-C does: cancel the turn, tell that this is under way, leave; or clear."""
        if not self.busy:
            self._clear()
            return
        self._interrupts += 1
        if self._interrupts == 1:
            self.conversation.teller.note("cancelling the turn")
            self._nursery.start_soon(self._cancel)
        elif self._interrupts == 2:
            self.conversation.teller.note(
                "still cancelling; Ctrl-C once more leaves as soon as the turn lets go"
            )
        else:
            self.leave(128 + signal.SIGINT)

    def _clear(self) -> None:
        if not self._line.text:
            self.conversation.teller.note("Ctrl-D or /quit leaves")
        self._line.clear()
        self._refresh()

    async def _cancel(self) -> None:
        await self.conversation.agent.cancel()
        self._interrupts = 0

    async def watch(self, signals: AsyncIterator[int], set_mode: Callable[[], None]) -> None:
        """Do what signals say; `set_mode` is called again after a stop."""
        async for number in signals:
            match number:
                case signal.SIGINT:
                    self.interrupt()
                case signal.SIGCONT:
                    set_mode()
                    self._refresh()
                case signal.SIGWINCH:
                    self._refresh()
                case _:
                    self.leave(128 + number)

    async def read(self, fd: int) -> None:
        """Take keys until the terminal is gone."""
        keys = KeyReader()
        self._refresh()
        async for data in keystrokes(fd):
            for key in keys.feed(data):
                await self._press(key)
            self._refresh()

    async def _press(self, key: Typed | Key) -> None:
        if key == "enter":
            self._refresh()
            await self._enter()
        elif key == "end-of-input" and not self._line.text:
            self.leave(0)
        else:
            self._line.press("delete" if key == "end-of-input" else key)

    def _refresh(self) -> None:
        line = self._line if self._line.text or not self.busy else None
        self._screen.show_row(line, self._feed.take())  # what came before a key stands before it

    async def _enter(self) -> None:
        text = self._line.take()
        if not text.strip():
            return
        self._screen.keep_row(text)
        if text.startswith("/"):
            await obey(self, text.rstrip())
        else:
            await self._prompt(text)

    async def _prompt(self, text: str) -> None:
        queued, self._unanswered = self.busy, self._unanswered + 1
        self._refresh()
        agent = self.conversation.agent
        if not await self._held(agent.prompt(text)):
            self._let_go()
            return
        if queued:
            self.conversation.teller.note("queued; it gets its turn after this one")
        self._nursery.start_soon(self._answered, agent)

    async def _answered(self, agent: Agent) -> None:
        await self._held(agent.wait_idle())
        self._let_go()

    async def _held(self, call: Awaitable[object]) -> bool:
        """Whether a call came through; what its store refuses for now is told."""
        try:
            await call
        except ActorCrashed as crash:
            if not isinstance(crash.__cause__, PASSING):
                raise
            self.conversation.teller.note(str(crash.__cause__))
            return False
        return True

    def _let_go(self) -> None:
        self._unanswered -= 1
        self._refresh()
