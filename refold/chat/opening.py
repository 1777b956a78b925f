"""Opening the agent that is talked to, and what is logged meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
import trio

from refold.actors.agent import Agent
from refold.actors.request.script import Script
from refold.actors.runtime import Runtime
from refold.actors.turn.options import AgentOptions
from refold.runtime.errors import RefoldError
from refold.runtime.wire.providers import Provider


@attrs.frozen
class Wanted:
    """What is opened to talk to; without `session` it is a new one, for which `name` is.

    `again` are the options to say behind its id when it is to go on another time.
    """

    store: str
    session: str | None
    name: str | None
    options: AgentOptions
    providers: Sequence[Provider | Script]
    again: str

    async def open(self, runtime: Runtime) -> Agent:
        """Raises what `start_agent` and `resume` do."""
        if self.session is None:
            return await runtime.start_agent(name=self.name, **self.options)
        options = AgentOptions(tools=())  # those that the session had before need code
        options.update(self.options)
        return await runtime.resume(self.session, **options)


def one_reason(group: BaseExceptionGroup) -> BaseException:
    """The refusal that stands for all of a group; the group itself where it holds anything else.

    Everybody who waited for a session that failed was told so; one of them is enough.
    """
    refused, others = group.split(RefoldError)
    return group if refused is None or others is not None else next(_leaves(refused))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)


@contextmanager
def log_lines(note: Callable[[str], None]) -> Iterator[None]:
    """Say what refold logs in one line, where a traceback would tear up the screen."""
    token, here = trio.lowlevel.current_trio_token(), threading.get_ident()

    def instead(record: logging.LogRecord) -> bool:
        if threading.get_ident() == here:
            note(record.getMessage())
        else:  # of a store's committer
            token.run_sync_soon(note, record.getMessage())
        return False

    logger = logging.getLogger("refold")
    logger.addFilter(instead)
    try:
        yield
    finally:
        logger.removeFilter(instead)
