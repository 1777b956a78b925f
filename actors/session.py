"""One session's tree: log writer, invariants, agent loop, started in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import trio

from actors.agent_loop import AgentLoop
from actors.dispatch import Dispatch, Invariants
from actors.invariants import Evidence, InvariantViolation, invariants
from actors.kernel import (
    ActorCrashed,
    ActorStopped,
    Ref,
    Spec,
    Supervisor,
    open_supervisor,
)
from actors.log_writer import log_writer
from actors.model import Model
from actors.options import Given
from actors.retries import Retries
from actors.seams import StartSource
from actors.session_log import Feed, LiveLog, SessionLog
from actors.step import LoopInstance
from actors.stores import Grant, Store
from runtime.events import CATALOGUE, EndReason, Owner
from runtime.rules.soundness import refusal
from runtime.storage.errors import PASSING, Fenced, LogFailed
from runtime.storage.reader import LogReader
from runtime.storage.session_header import Durability
from runtime.stream.chunks import Chunk
from runtime.wire.providers import Provider

_log = logging.getLogger("refold")


@attrs.frozen
class Host:
    """What a session needs of the runtime around it.

    `clock` gives epoch ms; `find` a provider's record (None for a scripted model), `find_model`
    the way to it, both by name.
    """

    store: Store
    owner: Owner
    clock: Callable[[], int]
    find: Callable[[str], Provider | None]
    find_model: Callable[[str], Model]


@attrs.frozen(eq=False)
class Opened:
    """One session whose actors run; setting `stop` ends them, and `stopped` says that they have.

    `failure` holds what an actor failed with for good, or what the store refused for now.
    """

    log: SessionLog
    loop: AgentLoop
    ref: Ref[Any]
    tree: Supervisor
    durability: Durability
    stop: trio.Event = attrs.field(factory=trio.Event)
    stopped: trio.Event = attrs.field(factory=trio.Event)
    failure: list[Exception] = attrs.field(factory=list)

    @property
    def can_go_on(self) -> bool:
        """Whether another opening may go on with the session once this one has stopped."""
        return all(isinstance(failure, PASSING) for failure in self.failure)

    @property
    def loop_ended(self) -> bool:
        """Whether the loop is gone for good, as against being restarted."""
        *_, loop = self.tree.snapshot()
        return loop.state == "ended"


async def open_session(
    host: Host,
    grant: Grant,
    feed: Feed,
    listeners: list[Callable[[Chunk], None]],
    given: Given,
    *,
    continues: bool,
    task_status: trio.TaskStatus[Opened],
) -> None:
    """Run one session's actors until `Opened.stop` is set or one of them fails for good.

    Shielded: nothing else ends it, so that the log is balanced and durable when it is over.
    """
    header = grant.header
    live = LiveLog(header.id, header.seed_length or 0, feed)
    opened: Opened | None = None

    def open_reader() -> LogReader:
        return host.store.reader(header.id)

    try:
        with trio.CancelScope(shield=True):
            async with open_supervisor(header.id) as tree:
                log = await _start_writer(tree, live, grant, given, host)
                evidence = Evidence(
                    header.id,
                    open_reader,
                    lambda: grant.durable_seq,
                    partial(host.store.report, header.id),
                )
                clearance = await _start_invariants(tree, evidence, given.invariants)
                make = _instances(log, clearance, given, host, open_reader, listeners)
                source: StartSource = "startup" if live.session.header is None else "resume"
                loop = AgentLoop(log, make, source, continues=continues)
                ref = await tree.start(loop.run, spec=_LOOP)
                opened = Opened(log, loop, ref, tree, grant.durability)
                task_status.started(opened)
                await opened.stop.wait()
                await loop.cancel(EndReason("disposed"))
    except Exception as failure:
        if opened is None:
            raise
        cause = _cause_of(failure)
        opened.failure.append(cause)
        if isinstance(cause, PASSING):
            _log.warning("session %s waits for its store: %s", header.id, cause)
            feed.interruption = cause
        else:
            _log.error("session %s has ended: %s", header.id, cause)
            feed.end(cause)
    finally:
        if opened is not None:
            opened.stopped.set()
            feed.wake()


def _cause_of(failure: Exception) -> Exception:
    """What failed first: an actor that only met another one's end is not the cause."""
    if not isinstance(failure, ExceptionGroup):
        return failure
    _, others = failure.split((ActorCrashed, ActorStopped))
    found: Exception = others or failure
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


_LOOP = Spec(
    "agent loop",
    mailbox=64,
    shutdown=15,
    restart="on-failure",
    limit=3,
    period=60,
    backoff=(1.0, 30.0),
    fatal=(InvariantViolation, Fenced, LogFailed, *PASSING, ActorCrashed, ActorStopped),
)
"""A loop is restarted from what the log says, unless it is the log or the checks that failed."""


def _check_history(live: LiveLog, grant: Grant, given: Given, host: Host) -> None:
    """Refuse what cannot go on before anything is written; the open step's calls get results."""
    refused = refusal(live.rules, lambda: grant.events(CATALOGUE))
    if refused is not None:
        raise refused
    given.over(live.session.header, host.find)


async def _start_writer(
    tree: Supervisor, live: LiveLog, grant: Grant, given: Given, host: Host
) -> SessionLog:
    spec = Spec("log writer", mailbox=64, shutdown=30)
    check = partial(_check_history, live, grant, given, host)
    writer = await tree.start(log_writer, live, grant, host.owner, host.clock, check, spec=spec)
    return SessionLog(live, writer)


async def _start_invariants(
    tree: Supervisor, evidence: Evidence, mode: Invariants
) -> Ref[Any] | None:
    if mode == "off":
        return None
    spec = Spec("invariants", mailbox=1)
    return await tree.start(invariants, evidence, mode == "full", spec=spec)


def _instances(
    log: SessionLog,
    clearance: Ref[Any] | None,
    given: Given,
    host: Host,
    open_reader: Callable[[], LogReader],
    listeners: list[Callable[[Chunk], None]],
) -> Callable[[StartSource], LoopInstance]:
    """How to make a loop instance of this session, as often as the loop is started."""
    mode, retries = given.invariants, Retries(given.retries)

    def make(source: StartSource) -> LoopInstance:
        options = given.over(log.live.session.header, host.find)
        find_model, chunks = host.find_model, given.chunks
        dispatch = Dispatch(log, clearance, mode, find_model, chunks, retries, listeners)
        if log.live.sealed is not None:
            dispatch.continue_from(log.live.sealed)
        return LoopInstance(log, dispatch, options, source, open_reader)

    return make
