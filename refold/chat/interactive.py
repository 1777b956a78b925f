"""A chat on a terminal: a person, signals and turns side by side."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec

import trio

from refold.actors.agent import Agent
from refold.actors.kernel import ActorCrashed
from refold.chat.commands import COMMANDS, obey
from refold.chat.conversation import Conversation
from refold.chat.feed import Feed
from refold.chat.person import Entered, Heard, Person
from refold.runtime.storage.errors import PASSING

WITHOUT_EDITOR = (
    "the line editor is not installed (pip install 'refold[chat]'), so each line is a prompt, and "
    "one that is pasted cannot be told from one that is typed"
)


async def talk(conversation: Conversation, feed: Feed, signals: AsyncIterator[int]) -> int:
    """Talk to the person at the terminal until they leave; returns the exit code.

    A turn that still runs then is ended when the runtime is closed. Raises what ended the session.
    """
    desk = Interactive(conversation)
    conversation.teller.note("/help lists the commands; Ctrl-D leaves")
    desk.person.show(feed.take())  # it stands above the first prompt
    try:
        async with trio.open_nursery() as nursery:
            desk.nursery = nursery
            nursery.start_soon(feed.show, desk.person.show)
            nursery.start_soon(desk.watch, signals)
            nursery.start_soon(desk.listen)
            await desk.person.run()
            desk.leave(128 + signal.SIGHUP)
    finally:
        desk.person.show(feed.take())
    return desk.code


def _person(
    heard: Callable[[Heard], None], awaited: Callable[[], str | None], note: Callable[[str], None]
) -> Person:
    """Somebody with a line editor, where it is installed and the terminal can be drawn on."""
    installed = find_spec("prompt_toolkit") is not None and find_spec("wcwidth") is not None
    if installed and os.environ.get("TERM", "dumb") not in ("dumb", ""):
        from refold.chat.editor import Editor

        return Editor(heard, awaited, COMMANDS)
    from refold.chat.plain import Plain

    if not installed:
        note(WITHOUT_EDITOR)
    return Plain(heard, awaited)


class Interactive:
    """What one person types and signals, and what that does to a conversation.

    Every text is left in the agent's inbox, so one that is typed while a turn runs gets its turn
    afterwards.
    """

    nursery: trio.Nursery

    def __init__(self, conversation: Conversation) -> None:
        self.conversation, self.code = conversation, 0
        self._hears, self._heard = trio.open_memory_channel[Heard](math.inf)
        self.person = _person(self._hear, self._awaited, conversation.teller.note)
        self._unanswered = 0
        self._since = 0.0
        self._interrupts = 0

    @property
    def busy(self) -> bool:
        """Whether a prompt still waits for the end of its turn."""
        return self._unanswered > 0

    def _awaited(self) -> str | None:
        """What is waited for and for how long; also asked from the editor's thread."""
        if not self.busy:
            return None
        return f"{self.conversation.teller.awaited}, {time.monotonic() - self._since:.0f} s"

    def leave(self, code: int) -> None:
        """End the chat with this exit code; the first one stands."""
        if not self.nursery.cancel_scope.cancel_called:
            self.code = code
            self.nursery.cancel_scope.cancel()

    def interrupt(self) -> None:
        """What Ctrl-C does: cancel the turn, tell that this is under way, leave.

        A line that is being typed while nothing runs was cleared by then.
        """
        if not self.busy:
            self.conversation.teller.note("Ctrl-D or /quit leaves")
            self.person.refresh()
            return
        self._interrupts += 1
        if self._interrupts == 1:
            self.conversation.teller.note("cancelling the turn")
            self.nursery.start_soon(self._cancel)
        elif self._interrupts == 2:
            self.conversation.teller.note(
                "still cancelling; Ctrl-C once more leaves as soon as the turn lets go"
            )
        else:
            self.leave(128 + signal.SIGINT)

    async def _cancel(self) -> None:
        await self.conversation.cancel()
        self._interrupts = 0

    async def watch(self, signals: AsyncIterator[int]) -> None:
        """Do what signals say."""
        async for number in signals:
            match number:
                case signal.SIGINT:
                    self.interrupt()
                case signal.SIGCONT:
                    self.person.woken()
                case signal.SIGWINCH:
                    self.person.resized()
                case _:
                    self.leave(128 + number)

    def _hear(self, what: Heard) -> None:
        if what == "interrupt":
            self.interrupt()  # which waits for nothing that was said before
        else:
            self._hears.send_nowait(what)

    async def listen(self) -> None:
        """Do what the person says, one after the other."""
        async for heard in self._heard:
            match heard:
                case Entered(text, command):
                    await (obey(self, text.rstrip()) if command else self.prompt(text))
                case "leave":
                    self.leave(0)
                case "gone":
                    self.leave(128 + signal.SIGHUP)

    async def prompt(self, text: str) -> None:
        """Say a text to the agent; it gets its turn when it can."""
        queued, self._unanswered = self.busy, self._unanswered + 1
        self._since = self._since if queued else time.monotonic()
        self.person.refresh()
        agent = self.conversation.agent
        if not await self._held(agent.prompt(text)):
            self._let_go()
            return
        if queued:
            self.conversation.teller.note("queued; it gets its turn after this one")
        self.nursery.start_soon(self._answered, agent)

    async def release(self) -> None:
        """Let what an earlier life of the session left have its turns."""
        self._unanswered, self._since = self._unanswered + 1, time.monotonic()
        agent = self.conversation.agent
        await agent.release()
        self.nursery.start_soon(self._answered, agent)

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
        self._since = time.monotonic()
        self.person.refresh()
