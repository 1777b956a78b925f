"""An agent as its users hold it: a session with a loop that answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.arguments import (
    check_callback,
    check_optional_text,
    check_seq,
    check_switch,
    check_text,
    wrong,
)
from refold.actors.bodies import refuse_waiting_for_itself
from refold.actors.context import Progress
from refold.actors.kernel import ActorCrashed, ActorSnapshot, ActorStopped, Ask, MailboxFull
from refold.actors.kernel.same_run import check_same_run
from refold.actors.log.log_writer import PARKED
from refold.actors.log.session_log import SessionLog
from refold.actors.log.subscription import Subscription
from refold.actors.session_tree import Recipe, RunningSession, SessionLife
from refold.actors.turn.agent_loop import Loop, Wake, WhenIdle
from refold.actors.turn.ask_cycles import Waits
from refold.actors.turn.prompt_wait import NoSuchPrompt, PromptWait
from refold.runtime.envelope import Draft, decode_line, draft
from refold.runtime.errors import InvalidArgument, check_position
from refold.runtime.events import EndReason, InboxQueued, InboxRemoved
from refold.runtime.history import History
from refold.runtime.messages import USER, Message, Source, TextBlock
from refold.runtime.prompt_ledger import Turn
from refold.runtime.storage.errors import PASSING
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import Durability
from refold.runtime.stream.chunks import Chunk

R = TypeVar("R")


@attrs.frozen
class AgentSnapshot:
    """An agent at one moment; parked, it has no actors.

    `durability` is what its acknowledged events survive: `power`, `process` or `none`.
    """

    session_id: str
    actors: tuple[ActorSnapshot, ...]
    running: bool
    pending: int
    durable_seq: int
    observer_errors: int
    abandoned_threads: int
    durability: Durability


class Agent:
    """One agent. Made by `Runtime.start_agent`, `resume` and `fork`.

    Idle, it may be parked: its actors end and its log is closed, until the next call wakes it. So
    it is where the store has no room or is busy: who waited gets `ActorCrashed` with `StoreFull` or
    `StoreBusy` as its cause, the log stands as it was, the turn in hand ends in `error`, and the
    next call tries again. Every method raises `ActorStopped` once the agent is closed, and
    `ActorCrashed` (with the cause) once its session has failed.
    """

    def __init__(
        self,
        opening: SessionLife,
        recipe: Recipe,
        reopen: Callable[[], SessionLife],
        open_reader: Callable[[], LogReader],
        waits: Waits,
        run: trio.lowlevel.TrioToken,
    ) -> None:
        assert opening.opened is not None, "it is ready"
        self.header = opening.opened.header
        self.given = recipe.given
        self._waits, self._run = waits, run
        self.last_used = trio.current_time()
        self._feed, self._listeners = recipe.feed, recipe.listeners
        self._progress_listeners = recipe.progress_listeners
        self._reopen, self._open_reader = reopen, open_reader
        self._users = 0
        self._closed = False
        self._opened = opening.opened
        self._follow(opening)

    def _follow(self, opening: SessionLife) -> None:
        self._opening = opening
        opening.on_ready, opening.on_stopped = self._begun, self._ended
        if opening.ended:
            self._ended()

    def _begun(self, opened: RunningSession) -> None:
        self._opened = opened

    def _ended(self) -> None:
        """An opening is over: for good, or parked; said at once, whoever waits for it or not."""
        if self._closed or not self._opened.can_go_on:
            self._feed.end(self._why())
        else:
            self._opened.loop.let_go()

    @property
    def session_id(self) -> str:
        return self.header.id

    @property
    def log(self) -> SessionLog:
        """The log as the last opening holds it; a parked agent's takes nothing."""
        return self._opened.log

    @property
    def stopped(self) -> trio.Event:
        """Happens when the actors of this opening are gone: parked, closed or failed."""
        return self._opened.stopped

    @property
    def closed(self) -> bool:
        return self._closed and self._opened.stopped.is_set()

    @property
    def usable(self) -> bool:
        """Whether it takes calls: it is not closed or closing, and its session has not failed."""
        return not self._closed and (not self._opened.stopped.is_set() or self._opened.can_go_on)

    @property
    def parked(self) -> bool:
        return self._opened.stopped.is_set() and not self._closed and self._opened.can_go_on

    @property
    def idle(self) -> bool:
        """Nobody waits for this agent, no turn runs and nothing pending starts one.

        A log without events has no file that it could be woken from, so it stays open.
        """
        empty = self.log.live.session.next_seq == 0
        return not (empty or self._users or self._opened.loop.busy)

    @enable_ki_protection
    async def ask(self, text: str, *, idempotency_key: str | None = None) -> Turn:
        """Send a prompt and wait for the turn that answers it; its end is durable by then.

        A key that the log knows already gets the first prompt's turn; for another text it raises
        `KeyConflict`. Cancelled, the wait ends
        and the turn goes on: `cancel` ends the turn. Raises `PromptRemoved` for a prompt that is
        removed or edited before a turn takes it, and `AskCycle` where agents would wait in a
        circle.
        """
        entry = _entry("prompt", text, USER, idempotency_key)
        async with self._awake() as opened:
            with self._waits.on(opened.ref.actor):
                seq = await self._say(opened, entry, asked=True)
                return await self._answers(opened).of(seq)

    @enable_ki_protection
    async def prompt(
        self, text: str, *, idempotency_key: str | None = None, source: Source = USER
    ) -> int:
        """Leave a prompt and return its seq once it is durable; it starts a turn when it can.

        A key that the log knows already gets the first prompt's seq; for another text it raises
        `KeyConflict`.
        """
        entry = _entry("prompt", text, source, idempotency_key)
        async with self._awake() as opened:
            return await self._say(opened, entry)

    @enable_ki_protection
    async def answer(self, seq: int) -> Turn:
        """Wait for the turn that answers the prompt at `seq`; as `ask` does.

        Raises `NoSuchPrompt` where no prompt of this session stands.
        """
        check_seq("seq", seq)
        async with self._awake() as opened:
            if not opened.log.live.answers.knows(seq):
                raise NoSuchPrompt(seq)
            with self._waits.on(opened.ref.actor):
                return await self._answers(opened).of(seq)

    @enable_ki_protection
    async def steer(self, text: str, *, idempotency_key: str | None = None) -> int:
        """Say something to the turn that runs, for its next step; idle, it is a prompt."""
        prompt = _entry("prompt", text, USER, idempotency_key)
        steering = _entry("steer", text, USER, idempotency_key)
        async with self._awake() as opened:
            return await self._say(opened, steering if opened.loop.running else prompt)

    @enable_ki_protection
    async def inject(
        self, text: str, *, plugin: str = "user", idempotency_key: str | None = None
    ) -> int:
        """Leave context for the next step and return its seq once it is durable; wakes nothing."""
        check_text("plugin", plugin)
        source = Source("plugin", plugin=plugin)
        entry = _entry("inject", text, source, idempotency_key)
        async with self._awake() as opened:
            return await self._say(opened, entry, wakes=False)

    @enable_ki_protection
    async def edit(self, seq: int, text: str) -> int:
        """Put another text in the place of a pending entry; returns the new entry's seq.

        Raises `RuleBroken` when it is not pending any more.
        """
        check_seq("seq", seq)
        content = _content(text)
        async with self._awake() as opened:
            entry = opened.log.live.rules.inbox.pending.get(seq)
            drafts = [draft(InboxRemoved((seq,), "edited"))]
            if entry is not None:
                edited = attrs.evolve(entry, content=content, idempotency_key=None)
                drafts.append(draft(edited))
            events = await opened.log.append(*drafts, flush=True)
            self._wake(opened)
            return events[-1].seq

    @enable_ki_protection
    async def remove(self, seq: int) -> None:
        """Take a pending entry back; raises `RuleBroken` when it is not pending any more."""
        check_seq("seq", seq)
        async with self._awake() as opened:
            await opened.log.append(draft(InboxRemoved((seq,), "cancelled")), flush=True)

    async def send(self, other: Agent, text: str) -> int:
        """Leave a prompt with another agent, in this one's name; returns its seq there."""
        if not isinstance(other, Agent):
            raise wrong("other", "an agent", other)
        return await other.prompt(text, source=Source("agent", session=self.session_id))

    @enable_ki_protection
    async def cancel(self, reason: str = "user") -> None:
        """Cancel the turn in hand and wait until the log is balanced and durable again.

        Without one it does nothing; the first reason stands. A tool or seam that does not stop is
        left behind. Raises `NotLosslessJson`, and `AskCycle` inside a tool or seam of this agent
        that is shielded: cancelling could not reach it, and the wait would be for itself.
        """
        check_same_run(self._run)
        check_text("reason", reason)
        refuse_waiting_for_itself(self._opened.ref.actor)
        await self._opened.loop.cancel(EndReason("aborted", reason=reason))

    @enable_ki_protection
    async def wait_idle(self) -> None:
        """Wait until every turn is over and every prompt had one."""
        async with self._awake() as opened:
            with self._waits.on(opened.ref.actor):
                await self._ask_loop(opened, WhenIdle())

    def listen(self, callback: Callable[[Chunk], None]) -> Callable[[], None]:
        """Call `callback` with each chunk of each answer as it streams; returns how to stop it.

        Undelayed and ephemeral: nothing here is durable yet, and an `llm/retry` event makes what
        an attempt streamed void. `events` is the account that lasts.
        """
        check_callback("callback", callback)
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def on_progress(self, callback: Callable[[Progress], None]) -> Callable[[], None]:
        """Call `callback` with what `Context.progress` tells; returns how to stop it.

        Ephemeral, as what `listen` tells: a `Progress` names turn, step and call.
        """
        check_callback("callback", callback)
        self._progress_listeners.append(callback)
        return lambda: self._progress_listeners.remove(callback)

    def messages(self) -> tuple[Message, ...]:
        """The derived messages right now: what the next request would hold before new input."""
        if not self.parked:
            return self.log.live.session.derive_messages()
        reader = self._open_reader()
        try:
            events = (decode_line(record.encoded) for record in reader.read_new())
            return History(events, retain=False).derive_messages()
        finally:
            reader.close()

    def events(self, from_seq: int = 0, *, durable: bool = True) -> Subscription:
        """Every event from `from_seq` on, without gap or double, as long as you listen.

        Only what is durable, unless `durable=False`. Raises `NoSuchPosition` where the log does not
        reach `from_seq` yet.
        """
        check_position(from_seq, self.log.live.session.next_seq)
        check_switch("durable", durable)
        return Subscription(self._feed, self._open_reader, from_seq, durable=durable, run=self._run)

    def snapshot(self) -> AgentSnapshot:
        """The agent at this moment."""
        live, loop = self.log.live, self._opened.loop
        return AgentSnapshot(
            self.session_id,
            () if self.parked else self._opened.tree.snapshot(),
            loop.running and not self.parked,
            len(live.rules.inbox.pending),
            live.durable_seq,
            self._feed.observer_errors,
            loop.abandoned_threads,
            self._opened.durability,
        )

    @enable_ki_protection
    async def park(self) -> None:
        """Let an idle agent's actors end and its log be closed; anybody's next call wakes it."""
        check_same_run(self._run)
        while self._opened.loop.finishing:
            await self._feed.changed.wait()
        if self.idle and not self._opening.stop.is_set():
            # A full mailbox is not idle; who is gone is ending for another reason.
            with suppress(ActorStopped, ActorCrashed, MailboxFull):
                self.log.give_back(PARKED)
                self._opening.stop.set()
                await self._opening.stopped.wait()

    def end_soon(self) -> None:
        """Close this agent, now or as soon as it can be; returns at once."""
        self._closed = True
        self._opening.end_soon()
        if self._opening.ended:
            self._ended()

    @enable_ki_protection
    async def close(self) -> None:
        """End the turn in hand as `disposed`, make everything durable, and give the log back.

        Cancelled, or called by a tool of this agent, which is cancelled with its turn, the wait
        ends and the closing goes on. Raises `AskCycle` as `cancel` does, and closes nothing then.
        """
        check_same_run(self._run)
        refuse_waiting_for_itself(self._opened.ref.actor)
        self.end_soon()
        await self._opening.stopped.wait()

    @asynccontextmanager
    async def _awake(self) -> AsyncIterator[RunningSession]:
        """The session, its actors running; it is not parked while somebody uses it.

        Whoever comes first has them opened again, for everybody. A wait that is cancelled takes
        nothing back: the agent will be awake, and idle.
        """
        check_same_run(self._run)
        self._users += 1
        try:
            while not self._closed and self._opened.can_go_on:
                if self._opening.ended:
                    self._follow(self._reopen())
                elif self._opening.stop.is_set():  # it is being parked
                    await self._opening.stopped.wait()
                    continue
                opening = self._opening
                await opening.ready.wait()
                refused = opening.refused
                if isinstance(refused, PASSING):
                    raise self._crashed(refused) from refused
                if refused is not None and not self._closed:
                    raise refused
                if not opening.stop.is_set():
                    break
            yield self._opened
        finally:
            self._users -= 1
            self.last_used = trio.current_time()

    def _answers(self, opened: RunningSession) -> PromptWait:
        return PromptWait(opened, self._feed, self._open_reader, self._why)

    def _why(self) -> Exception:
        if not self._opened.failure:
            return ActorStopped(self.session_id)
        return self._crashed(self._opened.failure[0])

    def _crashed(self, cause: BaseException) -> ActorCrashed:
        crash = ActorCrashed(self.session_id)
        crash.__cause__ = cause
        return crash

    async def _ending(self, opened: RunningSession, work: Awaitable[Any]) -> Any:
        """Await work; where the session ended meanwhile, say why it did."""
        try:
            return await work
        except (ActorStopped, ActorCrashed, *PASSING):
            await opened.stopped.wait()
            why = self._why()
            raise why from why.__cause__

    async def _ask_loop(self, opened: RunningSession, message: Ask[Loop, R]) -> R:
        """Ask the loop; one that crashed with the message in hand is asked again, restarted."""
        while True:
            try:
                return await opened.ref.ask(message)
            except ActorCrashed:
                if opened.loop_ended:
                    break
            except ActorStopped:
                break
        await opened.stopped.wait()
        why = self._why()
        raise why from why.__cause__

    async def _say(
        self, opened: RunningSession, entry: Draft, *, asked: bool = False, wakes: bool = True
    ) -> int:
        """Queue an entry and return its seq, or that of its key's first; the one way in.

        It is durable then, unless it is `asked`: such a one waits for its turn, whose end is.
        """
        queued = await self._ending(opened, opened.log.queue(entry, flush=not asked))
        if wakes:  # before the first wait that can be cancelled: what stands gets a turn
            wake = Wake(queued.seq if asked else None)
            try:
                opened.ref.tell_nowait(wake)
            except MailboxFull:  # whoever filled it wakes the loop, but not for an old entry
                if asked and queued.known:
                    await self._ending(opened, opened.ref.tell(wake))
            except (ActorStopped, ActorCrashed):
                pass  # what stands is told by the waits below
        if queued.durable is not None:
            await self._ending(opened, queued.durable.wait())
        return int(queued.seq)

    def _wake(self, opened: RunningSession) -> None:
        with suppress(MailboxFull):  # whoever filled it wakes the loop, which looks into the log
            opened.ref.tell_nowait(Wake())


_TARGETS: dict[str, Literal["turn", "step"]] = {"prompt": "turn", "steer": "step", "inject": "step"}


def _content(text: str) -> tuple[TextBlock]:
    if not isinstance(text, str):
        raise InvalidArgument(
            "what an agent is told", f"is text, not {type(text).__name__}; give it as text"
        )
    return (TextBlock(text),)


def _entry(
    kind: Literal["prompt", "steer", "inject"],
    text: str,
    source: Source,
    idempotency_key: str | None,
) -> Draft:
    content = _content(text)
    if not isinstance(source, Source):
        raise wrong("source", "a Source", source)
    check_optional_text("idempotency_key", idempotency_key)
    return draft(InboxQueued(_TARGETS[kind], kind, content, source, idempotency_key))
