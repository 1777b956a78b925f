"""One run of `refold chat`: open an agent, talk, close it."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator

import trio

from refold.actors.runtime import open_runtime
from refold.chat.conversation import Conversation
from refold.chat.feed import Feed
from refold.chat.interactive import talk
from refold.chat.opening import Wanted, log_lines, one_reason
from refold.chat.pipe import show_in_pipe
from refold.chat.piped import answer_lines
from refold.chat.refusal import opening_code
from refold.chat.screen import Screen
from refold.chat.teller import Teller
from refold.cli.shared.exit_codes import say
from refold.cli.shared.transcript import transcript
from refold.render import is_terminal, plural
from refold.runtime.errors import RefoldError
from refold.runtime.events import SessionOwner

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT)


async def chat(wanted: Wanted) -> int:
    """Run a chat from its opening to its end; returns the exit code.

    What keeps the session from being opened is said on standard error. Raises what ends an open
    one. However it ends, the log is balanced and durable.
    """
    feed = Feed()
    terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    screen = Screen() if terminal else None
    try:
        with trio.open_signal_receiver(*WATCHED) as signals:
            return await _opened(wanted, feed, screen, signals)
    except BaseExceptionGroup as group:
        raise one_reason(group) from None
    finally:
        # What closing the session had to tell came after the display had ended.
        (screen.show if screen else show_in_pipe)(feed.take())


async def _opened(
    wanted: Wanted, feed: Feed, screen: Screen | None, signals: AsyncIterator[int]
) -> int:
    teller = Teller(feed)
    # A parked agent would come back without the observers of its log.
    opened = open_runtime(wanted.store, providers=wanted.providers, park_after=None)
    async with opened as runtime:
        try:
            agent = await wanted.open(runtime)
        except RefoldError as error:
            say(str(error))
            return opening_code(error)
        conversation = Conversation(runtime, agent, wanted.options, teller)
        _introduce(conversation, wanted)
        with log_lines(teller.note):
            if screen is None:
                code = await answer_lines(conversation, feed, signals)
            else:
                code = await talk(conversation, feed, screen, signals)
        if not conversation.events():
            session = conversation.agent.session_id
            teller.note(f"nothing was said, so session {session} was not kept")
        return code


def _introduce(conversation: Conversation, wanted: Wanted) -> None:
    """Name the session, and tell what opening it again had to mend."""
    teller, agent = conversation.teller, conversation.agent
    if wanted.session is None:
        teller.note(f"session {agent.session_id}, {wanted.options.get('model')}")
        return
    events = conversation.events()
    turns = sum(event.type == "turn/start" for event in events)
    teller.note(f"session {agent.session_id} goes on after {plural(turns, 'turn')}")
    opened_at = max(event.seq for event in events if isinstance(event.data, SessionOwner))
    for line in transcript(events, opened_at):
        teller.lines(line)
