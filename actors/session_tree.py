"""One session's tree: log writer, invariants, agent loop, started in order.

The writer is the first to start and the last to stop: what the others still have to say on their
way out goes into the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.bodies import Patience, patience
from refold.actors.context import Progress, Setting
from refold.actors.kernel import (
    ActorCrashed,
    ActorStopped,
    Ref,
    Spec,
    Supervisor,
    open_supervisor,
    sole_error,
)
from refold.actors.log.live_log import LiveLog, LogProgress
from refold.actors.log.log_writer import log_writer
from refold.actors.log.seam_log import SeamLog
from refold.actors.log.session_log import SessionLog
from refold.actors.request.dispatch import Dispatch, Invariants
from refold.actors.request.invariants import Clear, Evidence, InvariantViolation, Report, invariants
from refold.actors.request.model import Model
from refold.actors.request.retries import Retries
from refold.actors.stores import Grant, Store
from refold.actors.turn.agent_loop import AgentLoop, Request
from refold.actors.turn.consult import contained_seams
from refold.actors.turn.options import Given
from refold.actors.turn.seams import StartSource
from refold.actors.turn.step import LoopInstance
from refold.runtime.errors import RefoldError
from refold.runtime.events import CATALOGUE, EndReason, Owner
from refold.runtime.rules.soundness import refusal
from refold.runtime.storage.errors import PASSING, Fenced, LogFailed
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import Durability, SessionHeader
from refold.runtime.stream.chunks import Chunk
from refold.runtime.wire.providers import Provider

_log = logging.getLogger("refold")

UNDO_SECONDS = 5.0
"""How long it may take to remove what a refused fork has made."""


@attrs.frozen
class Host:
    """What a session needs of the runtime around it.

    `clock` gives epoch ms; `find` a provider's record (None for a scripted model), `find_model`
    the way to it, both by name. From `draining` on no turn begins and no input is taken.
    """

    store: Store
    owner: Owner
    clock: Callable[[], int]
    find: Callable[[str], Provider | None]
    find_model: Callable[[str], Model]
    draining: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen(eq=False)
class Recipe:
    """What the openings of one session have in common; `id` is the session's.

    `held` are the entries that an earlier life of it left pending, until somebody lets them go.
    """

    host: Host
    id: str
    given: Given
    feed: LogProgress
    listeners: list[Callable[[Chunk], None]] = attrs.field(factory=list)
    held: set[int] = attrs.field(factory=set)
    progress_listeners: list[Callable[[Progress], None]] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class RunningSession:
    """One session whose actors run; setting `stop` ends them, and `stopped` says that they have.

    `failure` holds what an actor failed with for good, or what the store refused for now.
    """

    header: SessionHeader
    log: SessionLog
    loop: AgentLoop
    ref: Ref[Request]
    tree: Supervisor
    durability: Durability
    stop: trio.Event
    stopped: trio.Event
    failure: list[BaseException]

    @property
    def can_go_on(self) -> bool:
        """Whether another opening may go on with the session once this one has stopped."""
        return all(isinstance(failure, PASSING) for failure in self.failure)

    @property
    def loop_ended(self) -> bool:
        """Whether the loop is gone for good, as against being restarted."""
        *_, loop = self.tree.snapshot()
        return loop.state == "ended"


@attrs.define(eq=False)
class SessionLife:
    """One life of a session, from the moment that it is asked for: the hold on it from outside.

    It is run by `run_session`, in a task that no Ctrl-C tears; whoever wants the session waits
    for `ready` and may be torn out of that wait, with `stop` to say that nobody wants it. After
    `ready` there is `opened`, or `refused` says why not. `stopped` is the end of either.
    `on_ready` and `on_stopped` are called at once, before anybody who waits.
    """

    session: str
    ready: trio.Event = attrs.field(factory=trio.Event)
    stop: trio.Event = attrs.field(factory=trio.Event)
    stopped: trio.Event = attrs.field(factory=trio.Event)
    opened: RunningSession | None = None
    refused: Exception | None = None
    failure: list[BaseException] = attrs.field(factory=list)
    unwanted: bool = False
    on_ready: Callable[[RunningSession], None] = lambda _opened: None
    on_stopped: Callable[[], None] = lambda: None
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    taking: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    tree: Supervisor | None = None
    patience: Patience = attrs.field(factory=Patience)

    @property
    def ended(self) -> bool:
        return self.stopped.is_set()

    def end_soon(self) -> None:
        """Stop it in order, or take no session if it has none yet; returns at once."""
        self.stop.set()
        self.taking.cancel(reason="this session is to be closed")

    def give_up(self) -> None:
        """Nobody waits for it to be ready any more: stop it and undo what it was."""
        self.unwanted = True
        self.end_soon()

    def hurry(self) -> None:
        """There is no time left: cancel its actors, where they are."""
        self.end_soon()
        if self.tree is not None:
            self.tree.cancel("there is no time left")
        self.scope.cancel(reason="there is no time left")

    def begin(self, opened: RunningSession) -> None:
        self.opened = opened
        self.on_ready(opened)
        self.ready.set()

    def end(self) -> None:
        self.stopped.set()
        self.on_stopped()
        self.ready.set()


@enable_ki_protection
async def run_session(
    recipe: Recipe,
    opening: SessionLife,
    take: Callable[[], Awaitable[Grant]],
    undo: Callable[[], Awaitable[object]] | None,
    *,
    continues: bool,
) -> None:
    """Take a session and run its actors until `opening.stop` is set or one fails for good.

    Shielded: nothing else ends it, so that the log is balanced and durable when it is over. The
    shield has no deadline of its own; every wait in it has one. Where the session was refused,
    or is not wanted any more by the time that it could begin, `undo` takes back what `take` made.
    A KeyboardInterrupt that strikes in code of users goes to `recipe.feed.interrupt`.
    """
    patience.set(opening.patience)
    try:
        with opening.scope:
            grant: Grant | None = None
            with opening.taking:
                grant = await take()
            if grant is not None:
                await _run_actors(recipe, opening, grant, continues=continues)
    except Exception as failure:  # noqa: BLE001 - whatever it is, other sessions go on
        cause = _cause_of(failure)
        if opening.opened is None:
            opening.refused = cause
        else:
            opening.failure.append(cause)
            if isinstance(cause, PASSING):
                _log.warning("session %s waits for its store: %s", recipe.id, cause)
                recipe.feed.interruption = cause
            else:
                _log.error("session %s has ended: %s", recipe.id, cause)
                recipe.feed.end(cause)
    except BaseException as ending:
        error = sole_error(ending)
        opening.failure.append(error)
        if not isinstance(error, KeyboardInterrupt):
            raise
        recipe.feed.interrupt(error)
    finally:
        if opening.opened is None and opening.refused is None:
            opening.refused = ActorStopped(recipe.id)
        if undo is not None and (opening.opened is None or opening.unwanted):
            with trio.move_on_after(UNDO_SECONDS, shield=True), suppress(RefoldError):
                await undo()
        opening.end()
        recipe.feed.wake()


async def _run_actors(
    recipe: Recipe, opening: SessionLife, grant: Grant, *, continues: bool
) -> None:
    header, host, given = grant.header, recipe.host, recipe.given
    live = LiveLog(header.id, header.seed_length or 0, recipe.feed, recipe.held)

    def open_reader() -> LogReader:
        return host.store.reader(header.id)

    async with open_supervisor(header.id) as tree:
        opening.tree = tree
        log = await _start_writer(tree, live, grant, given, host)
        report = partial(host.store.report, header.id)
        evidence = Evidence(header.id, open_reader, lambda: grant.durable_seq, report)
        clearance = await _start_invariants(tree, evidence, given.invariants)
        told = recipe.progress_listeners
        setting = Setting(SeamLog(log, open_reader), lambda: header.name, given.state, told)
        make = _instances(log, clearance, recipe, setting)
        source: StartSource = "startup" if live.session.header is None else "resume"
        loop = AgentLoop(
            log,
            make,
            source,
            continues=continues,
            draining=host.draining,
            recoveries=given.recoveries,
        )
        ref = await tree.start(loop.run, spec=_LOOP)
        life = (opening.stop, opening.stopped, opening.failure)
        opening.begin(RunningSession(header, log, loop, ref, tree, grant.durability, *life))
        await opening.stop.wait()
        await loop.cancel(EndReason("disposed"))


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
    run = partial(
        log_writer, live=live, grant=grant, owner=host.owner, clock=host.clock, check=check
    )
    return SessionLog(live, await tree.start(run, spec=spec))


async def _start_invariants(
    tree: Supervisor, evidence: Evidence, mode: Invariants
) -> Ref[Clear | Report] | None:
    if mode == "off":
        return None
    run = partial(invariants, evidence=evidence, full=mode == "full")
    return await tree.start(run, spec=Spec("invariants", mailbox=1))


def _instances(
    log: SessionLog,
    clearance: Ref[Clear | Report] | None,
    recipe: Recipe,
    setting: Setting,
) -> Callable[[StartSource], LoopInstance]:
    """How to make a loop instance of this session, as often as the loop is started."""
    given, host = recipe.given, recipe.host
    mode, retries = given.invariants, Retries(given.retries)

    def make(source: StartSource) -> LoopInstance:
        options = given.over(log.live.session.header, host.find)
        seams = contained_seams(options.seams, log.session_id)
        options = attrs.evolve(options, seams=seams)
        find_model, chunks = host.find_model, given.chunks
        dispatch = Dispatch(log, clearance, mode, find_model, chunks, retries, recipe.listeners)
        if log.live.sealed is not None:
            dispatch.continue_from(log.live.sealed)
        return LoopInstance(log, dispatch, options, source, setting)

    return make
