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
from refold.chat.introduction import introduce, introduce_new, part
from refold.chat.opening import Wanted, log_lines, one_reason
from refold.chat.person import show_at_once
from refold.chat.pipe import show_in_pipe
from refold.chat.piped import answer_lines
from refold.chat.refusal import opening_code
from refold.chat.teller import Teller
from refold.cli.shared.exit_codes import say
from refold.render import is_terminal
from refold.runtime.errors import RefoldError

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT)


async def chat(wanted: Wanted) -> int:
    """Run a chat from its opening to its end; returns the exit code.

    What keeps the session from being opened is said on standard error. Raises what ends an open
    one. However it ends, the log is balanced and durable.
    """
    feed = Feed()
    terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    try:
        with trio.open_signal_receiver(*WATCHED) as signals:
            return await _opened(wanted, feed, signals, terminal=terminal)
    except BaseExceptionGroup as group:
        raise one_reason(group) from None
    finally:
        # What closing the session had to tell came after the display had ended.
        (show_at_once if terminal else show_in_pipe)(feed.take())


async def _opened(
    wanted: Wanted, feed: Feed, signals: AsyncIterator[int], *, terminal: bool
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
        conversation = Conversation(runtime, wanted.store, agent, wanted.options, teller)
        introduce_new(conversation) if wanted.session is None else introduce(conversation)
        with log_lines(teller.note):
            if terminal:
                code = await talk(conversation, feed, signals)
            else:
                code = await answer_lines(conversation, feed, signals)
        part(conversation, wanted.again)
        return code
