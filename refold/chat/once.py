"""One prompt from its sending to the end of its turn: `refold prompt`."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping

import attrs
import trio

from refold.actors.agent import Agent
from refold.actors.runtime import open_runtime
from refold.chat.feed import Feed
from refold.chat.opening import Wanted, log_lines, one_reason
from refold.chat.pipe import show_beside, show_in_pipe
from refold.chat.refusal import opening_code
from refold.chat.teller import Teller
from refold.cli.shared.exit_codes import DIFFERENT, FINE, say
from refold.render import visible_json
from refold.runtime.errors import RefoldError

LEAVE_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MAX_TOKENS, BUDGET, NOT_OVER = 5, 6, 7
CODES: Mapping[str, int] = {
    "completed": FINE,
    "error": DIFFERENT,
    "rejected": DIFFERENT,
    "max-tokens": MAX_TOKENS,
    "budget": BUDGET,
}
"""The exit code of each way in which a turn ends; of every other one it is `NOT_OVER`."""


async def ask_once(wanted: Wanted, prompt: str, as_json: bool) -> int:
    """Send a prompt to the agent that is wanted and show its answer; returns the exit code.

    What keeps the session from being opened is said on standard error. Raises what ends an open
    one. A signal cancels the turn; the log is balanced and durable then.
    """
    feed = Feed()
    show = show_beside if as_json else show_in_pipe
    try:
        with trio.open_signal_receiver(*LEAVE_ON) as signals:
            return await _opened(wanted, prompt, feed, signals, as_json=as_json)
    except BaseExceptionGroup as group:
        raise one_reason(group) from None
    finally:
        show(feed.take())


async def _opened(
    wanted: Wanted, prompt: str, feed: Feed, signals: AsyncIterator[int], *, as_json: bool
) -> int:
    teller, show = Teller(feed), show_beside if as_json else show_in_pipe
    async with open_runtime(wanted.store, providers=wanted.providers, park_after=None) as runtime:
        try:
            agent = await wanted.open(runtime)
        except RefoldError as error:
            say(str(error))
            return opening_code(error)
        teller.note(f"session {agent.session_id}")
        agent.listen(teller.chunk)
        agent.log.observe(teller.event)
        printer = _Printer(agent, agent.log.live.session.next_seq)
        with log_lines(teller.note):
            async with trio.open_nursery() as nursery:
                caught: list[int] = []
                nursery.start_soon(feed.show, show)
                nursery.start_soon(_cancel_on, signals, agent, caught.append)
                if as_json:
                    nursery.start_soon(printer.print)
                turn = await agent.ask(prompt)
                nursery.cancel_scope.cancel()
        if as_json and printer.next_seq <= turn.end_seq:
            await printer.print(turn.end_seq)
    if caught and turn.reason.kind == "aborted":
        return 128 + caught[0]
    return CODES.get(turn.reason.kind, NOT_OVER)


async def _cancel_on(
    signals: AsyncIterator[int], agent: Agent, caught: Callable[[int], None]
) -> None:
    async for number in signals:
        caught(number)
        await agent.cancel()


@attrs.define
class _Printer:
    """Prints a session's events as they are written, from `next_seq` on."""

    _agent: Agent
    next_seq: int

    async def print(self, last: int | None = None) -> None:
        """Go on until the event at `last`, without it until cancelled."""
        async for event in self._agent.events(self.next_seq):
            sys.stdout.write(f"{visible_json(event.encoded)}\n")
            sys.stdout.flush()
            self.next_seq = event.seq + 1
            if event.seq == last:
                return
