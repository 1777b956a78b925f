"""One session's tree: log writer, invariants, agent loop, started in order (design 3.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import trio

from actors.agent import Agent
from actors.agent_loop import AgentLoop
from actors.dispatch import Dispatch, Invariants
from actors.invariants import invariants
from actors.kernel import Ref, Spec, Supervisor, open_supervisor
from actors.log_writer import log_writer
from actors.options import AgentOptions, configure
from actors.retries import Retries
from actors.session_log import LiveLog, SessionLog
from actors.step import LoopInstance
from actors.stores import Grant, Store
from actors.wire import Model
from runtime.envelope import decode_line
from runtime.errors import HistoryUnbalanced
from runtime.events import EndReason, Owner
from runtime.llm.providers import Provider
from runtime.llm.wires import CHAT
from runtime.request import last_sealed_request
from runtime.storage.reader import LogReader

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


async def open_session(
    host: Host, grant: Grant, options: AgentOptions, *, task_status: trio.TaskStatus[Agent]
) -> None:
    """Run one session until its agent is closed or one of its actors fails.

    Shielded: only `Agent.close` ends it, so that the log is balanced and durable when it is over.
    """
    header, agent = grant.header, None
    live = LiveLog(header.id, header.seed_length or 0)

    def open_reader() -> LogReader:
        return host.store.reader(header.id)

    try:
        with trio.CancelScope(shield=True):
            async with open_supervisor(header.id) as tree:
                log = await _start_writer(tree, live, grant, host)
                mode = options.get("invariants", "enforce")
                clearance = await _start_invariants(tree, host.store, open_reader, mode)
                instance = _instance(log, clearance, options, host, open_reader)
                loop = AgentLoop(instance)
                ref = await tree.start(loop.run, spec=Spec("agent loop", mailbox=64))
                agent = Agent(header, log, loop, ref, open_reader)
                task_status.started(agent)
                await agent.stop.wait()
                await loop.cancel(EndReason("disposed"))
    except Exception as failure:
        if agent is None:
            raise
        _log.error("session %s has ended: %s", header.id, failure)
    finally:
        if agent is not None:
            agent.stopped.set()


async def _start_writer(tree: Supervisor, live: LiveLog, grant: Grant, host: Host) -> SessionLog:
    spec = Spec("log writer", mailbox=64, shutdown=30)
    writer = await tree.start(log_writer, live, grant, host.owner, host.clock, spec=spec)
    unanswered = live.rules.pairing.unbalanced()
    if unanswered:
        raise HistoryUnbalanced(unanswered)
    return SessionLog(live, writer)


async def _start_invariants(
    tree: Supervisor, store: Store, open_reader: Callable[[], LogReader], mode: Invariants
) -> Ref[Any] | None:
    if mode == "off":
        return None

    def keep_report(name: str, content: bytes) -> str | None:
        return store.report(tree.name, name, content)

    checks = "full" if mode == "full" else "enforce"
    spec = Spec("invariants", mailbox=1)
    return await tree.start(invariants, tree.name, open_reader, keep_report, checks, spec=spec)


def _instance(
    log: SessionLog,
    clearance: Ref[Any] | None,
    options: AgentOptions,
    host: Host,
    open_reader: Callable[[], LogReader],
) -> LoopInstance:
    folded = log.live.session.header
    configured = configure(options, folded, host.find)
    mode, chunks = options.get("invariants", "enforce"), options.get("chunks", "coalesced")
    retries = Retries(options.get("retries", 5))
    dispatch = Dispatch(log, clearance, mode, host.find_model, CHAT, chunks, retries)
    if folded is not None:
        _continue(dispatch, open_reader)
    return LoopInstance(log, dispatch, configured)


def _continue(dispatch: Dispatch, open_reader: Callable[[], LogReader]) -> None:
    reader = open_reader()
    try:
        found = last_sealed_request([decode_line(r.encoded) for r in reader.read_new()])
    finally:
        reader.close()
    if found is not None:
        dispatch.continue_from(*found)
