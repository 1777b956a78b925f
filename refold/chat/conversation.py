"""The agent that is talked to, and what takes its place: a fork, another session, another model."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import trio

from refold.actors.agent import Agent
from refold.actors.runtime import Runtime
from refold.actors.turn.options import AgentOptions
from refold.chat.teller import Teller
from refold.cli.shared.exit_codes import CannotDo
from refold.cli.shared.logs import locate
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import RefoldError, RuleBroken
from refold.runtime.storage import NotFound, open_sessions


class Conversation:
    """One agent at a time, of which `teller` tells; `options` are what the next is opened with.

    `address` is the store's, in which other sessions are looked for.
    """

    def __init__(
        self, runtime: Runtime, address: str, agent: Agent, options: AgentOptions, teller: Teller
    ) -> None:
        self.agent, self.teller, self.runtime = agent, teller, runtime
        self.options: AgentOptions = {"tools": (), **options}  # earlier ones need their code
        self._address = address
        self._heard = ExitStack()
        self._hear()

    def _hear(self) -> None:
        # What an observer sees need not be durable yet. It comes in one order with the chunks,
        # which a subscription, being a reader of the file, cannot promise.
        self._heard.callback(self.agent.listen(self.teller.chunk))
        self._heard.callback(self.agent.log.observe(self.teller.event))

    async def fork(self, name: str | None, at: int | None = None) -> None:
        """Go on in a fork from the end of a turn, by default the last; the parent is closed.

        Raises what `Runtime.fork` does, and nothing has changed then.
        """
        parent = self.agent
        fork = self.runtime.fork(parent.session_id, at=at, name=name, **self.options)
        await self._leave_for(await fork)

    async def begin(self, name: str | None) -> None:
        """Go on in a new session; raises what `Runtime.start_agent` does."""
        await self._leave_for(await self.runtime.start_agent(name=name, **self._anew()))

    async def resume(self, session: str) -> None:
        """Go on in another session of the store, as it is, named as commands name one.

        Raises what `locate` and `Runtime.resume` do.
        """
        session = await trio.to_thread.run_sync(self._find, session)
        options: AgentOptions = {"tools": self.options.get("tools", ())}
        agent = await self.runtime.resume(session, **options)
        self.options = options
        await self._leave_for(agent)

    def _find(self, name: str) -> str:
        store = open_sessions(self._address)
        try:
            place = locate(store, name)
        finally:
            store.close()
        if place.store.address != store.address:
            raise CannotDo(f"{name} is in another store; leave, and say refold chat {name}")
        return place.session

    async def ask_another(self, model: str) -> None:
        """Go on in this session with another model; raises what opening it with that does.

        The session is open again with the model that it had then.
        """
        before = self.options
        session, said = self.agent.session_id, bool(self.events())
        self._heard.close()
        await self.agent.close()
        try:
            self.options = {**before, "model": model}
            self.agent = await self._opened(session, said=said)
        except RefoldError:
            self.options = before
            self.agent = await self._opened(session, said=said)
            raise
        finally:
            self._hear()

    async def _opened(self, session: str, *, said: bool) -> Agent:
        """The session open again; one in which nothing was said was not kept, and begins anew."""
        if not said:
            name = self.agent.header.name
            return await self.runtime.start_agent(session_id=session, name=name, **self.options)
        return await self.runtime.resume(session, **self.options)

    def _anew(self) -> AgentOptions:
        """The options of a session that begins as this one stands now."""
        header = self.agent.log.live.session.header
        anew: AgentOptions = {**self.options, "model": self.model}
        if header is not None:
            anew["system"] = header.system
            if header.config.max_tokens is not None:
                anew["max_tokens"] = header.config.max_tokens
            if header.config.temperature is not None:
                anew["temperature"] = header.config.temperature
        return anew

    async def _leave_for(self, agent: Agent) -> None:
        self._heard.close()
        before, self.agent = self.agent, agent
        self._hear()
        await before.close()

    @property
    def model(self) -> str:
        """Who answers, as PROVIDER/MODEL."""
        header = self.agent.log.live.session.header
        said = self.options.get("model")
        if said is not None:
            return said
        assert header is not None, "a session without a header was given its model"
        return f"{header.config.provider}/{header.config.model}"

    async def drop(self, seq: int) -> bool:
        """Take an entry back; False where a turn has taken it already."""
        with suppress(RuleBroken):
            await self.agent.remove(seq)
            return True
        return False

    async def cancel(self) -> None:
        """Cancel the turn that runs, and what was meant for it alone and not heard yet."""
        for entry in self.agent.pending():
            if entry.kind == "steer" and await self.drop(entry.seq):
                self.teller.note(f"the turn did not hear this any more: {entry.text}")
        await self.agent.cancel()

    def events(self) -> list[Event]:
        """The log so far, read anew; none before the first prompt."""
        try:
            reader = self.runtime.store.reader(self.agent.session_id)
        except NotFound:
            return []
        try:
            return [decode_line(record.encoded) for record in reader.read_new()]
        finally:
            reader.close()
