"""The agent that is talked to, and what a fork puts in its place."""

from __future__ import annotations

from contextlib import ExitStack

from refold.actors.agent import Agent
from refold.actors.runtime import Runtime
from refold.actors.turn.options import AgentOptions
from refold.chat.teller import Teller
from refold.runtime.envelope import Event, decode_line
from refold.runtime.storage import NotFound


class Conversation:
    """One agent at a time, of which `teller` tells; `options` are what a fork is opened with."""

    def __init__(
        self, runtime: Runtime, agent: Agent, options: AgentOptions, teller: Teller
    ) -> None:
        self.agent, self.teller = agent, teller
        self._runtime, self._options = runtime, options
        self._heard = ExitStack()
        self._hear()

    def _hear(self) -> None:
        # What an observer sees need not be durable yet. It comes in one order with the chunks,
        # which a subscription, being a reader of the file, cannot promise.
        self._heard.callback(self.agent.listen(self.teller.chunk))
        self._heard.callback(self.agent.log.observe(self.teller.event))

    async def fork(self, name: str | None) -> None:
        """Go on in a fork from the last finished turn; the parent is closed.

        Raises what `Runtime.fork` does, and nothing has changed then.
        """
        parent = self.agent
        options = AgentOptions(tools=())
        options.update(self._options)
        agent = await self._runtime.fork(parent.session_id, name=name, **options)
        self._heard.close()
        self.agent = agent
        self._hear()
        await parent.close()

    def events(self) -> list[Event]:
        """The log so far, read anew; none before the first prompt."""
        try:
            reader = self._runtime.store.reader(self.agent.session_id)
        except NotFound:
            return []
        try:
            return [decode_line(record.encoded) for record in reader.read_new()]
        finally:
            reader.close()
