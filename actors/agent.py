"""An agent as its users hold it: a session with a loop that answers (design 3.5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors.agent_loop import Loop, QueuePrompt, Wake, WhenIdle
from actors.answers import NoSuchPrompt, WaitForAnswers
from actors.bodies import refuse_waiting_for_itself
from actors.kernel import ActorCrashed, ActorSnapshot, ActorStopped, Ask, MailboxFull
from actors.log_writer import KeyUsed
from actors.same_run import check_same_run
from actors.session import Opened, Opening, Recipe
from actors.session_log import SessionLog
from actors.subscription import Subscription
from actors.waits import Waits
from runtime.envelope import Draft, decode_line, draft
from runtime.events import EndReason, InboxQueued, InboxRemoved
from runtime.json import check
from runtime.llm.chunks import Chunk
from runtime.messages import USER, Message, Source, TextBlock
from runtime.session import Session
from runtime.storage.reader import LogReader
from runtime.turns import Turn

R = TypeVar("R")


@attrs.frozen
class AgentSnapshot:
    """An agent at one moment; parked, it has no actors."""

    session_id: str
    actors: tuple[ActorSnapshot, ...]
    running: bool
    pending: int
    durable_seq: int
    observer_errors: int
    abandoned_threads: int


class Agent:
    """One agent. Made by `Runtime.start_agent`, `resume` and `fork`.

    Idle, it may be parked: its actors end and its log is closed, until the next call wakes it.
    Every method raises `ActorStopped` once the agent is closed, and `ActorCrashed` (with the
    cause) once its session has failed.
    """

    def __init__(
        self,
        opening: Opening,
        recipe: Recipe,
        reopen: Callable[[], Opening],
        open_reader: Callable[[], LogReader],
        waits: Waits,
        run: trio.lowlevel.TrioToken,
    ) -> None:
        assert opening.opened is not None, "it is ready"
        self.header = opening.opened.header
        self._waits, self._run = waits, run
        self.last_used = trio.current_time()
        self._feed, self._listeners = recipe.feed, recipe.listeners
        self._reopen, self._open_reader = reopen, open_reader
        self._users = 0
        self._closed = False
        self._opened = opening.opened
        self._follow(opening)

    def _follow(self, opening: Opening) -> None:
        self._opening = opening
        opening.on_ready, opening.on_stopped = self._begun, self._ended
        if opening.ended:
            self._ended()

    def _begun(self, opened: Opened) -> None:
        self._opened = opened

    def _ended(self) -> None:
        """An opening is over: for good, or parked; said at once, whoever waits for it or not."""
        if self._closed or self._opened.failure:
            self._feed.end(self._why())
        elif self.log.live.closing == "parked":
            self._opened.loop.let_go()
            self.log.live.let_go()

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
    def parked(self) -> bool:
        return self._opened.stopped.is_set() and not self._closed and not self._opened.failure

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
        entry = _prompt(text, USER, idempotency_key)
        async with self._awake() as opened:
            with self._waits.on(opened.ref.actor):
                return await self._answers(opened).of(await self._queue(opened, entry))

    @enable_ki_protection
    async def prompt(
        self, text: str, *, idempotency_key: str | None = None, source: Source = USER
    ) -> int:
        """Leave a prompt and return its seq once it is durable; it starts a turn when it can.

        A key that the log knows already gets the first prompt's seq; for another text it raises
        `KeyConflict`.
        """
        async with self._awake() as opened:
            return await self._leave(opened, _prompt(text, source, idempotency_key))

    @enable_ki_protection
    async def answer(self, seq: int) -> Turn:
        """Wait for the turn that answers the prompt at `seq`; as `ask` does.

        Raises `NoSuchPrompt` where no prompt of this session stands.
        """
        async with self._awake() as opened:
            if not opened.log.live.answers.knows(seq):
                raise NoSuchPrompt(seq)
            with self._waits.on(opened.ref.actor):
                return await self._answers(opened).of(seq)

    @enable_ki_protection
    async def steer(self, text: str, *, idempotency_key: str | None = None) -> int:
        """Say something to the turn that runs, for its next step; idle, it is a prompt."""
        async with self._awake() as opened:
            entry = _prompt(text, USER, idempotency_key)
            if opened.loop.running:
                content = _content(text)
                entry = draft(InboxQueued("step", "steer", content, USER, idempotency_key))
            return await self._leave(opened, entry)

    @enable_ki_protection
    async def inject(
        self, text: str, *, plugin: str = "user", idempotency_key: str | None = None
    ) -> int:
        """Leave context for the next step and return its seq once it is durable; wakes nothing."""
        source, content = Source("plugin", plugin=plugin), _content(text)
        entry = draft(InboxQueued("step", "inject", content, source, idempotency_key))
        async with self._awake() as opened:
            return await self._append_entry(opened, entry)

    @enable_ki_protection
    async def edit(self, seq: int, text: str) -> int:
        """Put another text in the place of a pending entry; returns the new entry's seq.

        Raises `RuleBroken` when it is not pending any more.
        """
        async with self._awake() as opened:
            entry = opened.log.live.rules.inbox.pending.get(seq)
            drafts = [draft(InboxRemoved((seq,), "edited"))]
            if entry is not None:
                content = _content(text)
                edited = attrs.evolve(entry, content=content, idempotency_key=None)
                drafts.append(draft(edited))
            events = await opened.log.append(*drafts, flush=True)
            self._wake(opened)
            return events[-1].seq

    @enable_ki_protection
    async def remove(self, seq: int) -> None:
        """Take a pending entry back; raises `RuleBroken` when it is not pending any more."""
        async with self._awake() as opened:
            await opened.log.append(draft(InboxRemoved((seq,), "cancelled")), flush=True)

    async def send(self, other: Agent, text: str) -> int:
        """Leave a prompt with another agent, in this one's name; returns its seq there."""
        return await other.prompt(text, source=Source("agent", session=self.session_id))

    @enable_ki_protection
    async def cancel(self, reason: str = "user") -> None:
        """Cancel the turn in hand and wait until the log is balanced and durable again.

        Without one it does nothing; the first reason stands. A tool or seam that does not stop is
        left behind. Raises `NotLosslessJson`, and `AskCycle` inside a tool or seam of this agent
        that is shielded: cancelling could not reach it, and the wait would be for itself.
        """
        check_same_run(self._run)
        check(reason, "$.reason")
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
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def messages(self) -> tuple[Message, ...]:
        """The derived messages right now: what the next request would hold before new input."""
        if not self.parked:
            return self.log.live.session.derive_messages()
        reader = self._open_reader()
        try:
            events = (decode_line(record.encoded) for record in reader.read_new())
            return Session(events, retain=False).derive_messages()
        finally:
            reader.close()

    def events(self, from_seq: int = 0, *, durable: bool = True) -> Subscription:
        """Every event from `from_seq` on, without gap or double, as long as you listen.

        Only what is durable, unless `durable=False`.
        """
        return Subscription(self._feed, self._open_reader, from_seq, durable=durable, run=self._run)

    def snapshot(self) -> AgentSnapshot:
        """The agent at this moment."""
        live, loop = self.log.live, self._opened.loop
        return AgentSnapshot(
            self.session_id,
            () if self.parked else self._opened.tree.snapshot(),
            loop.running,
            len(live.rules.inbox.pending),
            live.durable_seq,
            self._feed.observer_errors,
            loop.abandoned_threads,
        )

    @enable_ki_protection
    async def park(self) -> None:
        """Let an idle agent's actors end and its log be closed; anybody's next call wakes it."""
        check_same_run(self._run)
        while self._opened.loop.finishing:
            await self._feed.changed.wait()
        if self.idle and not self._opening.stop.is_set():
            self.log.live.closing = "parked"
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
    async def _awake(self) -> AsyncIterator[Opened]:
        """The session, its actors running; it is not parked while somebody uses it."""
        check_same_run(self._run)
        self._users += 1
        try:
            await self._wake_up()
            yield self._opened
        finally:
            self._users -= 1
            self.last_used = trio.current_time()

    async def _wake_up(self) -> None:
        """Wait until the actors run; whoever comes first has them opened again, for everybody.

        A wait that is cancelled takes nothing back: the agent will be awake, and idle.
        """
        while not (self._closed or self._opened.failure):
            if self._opening.ended:
                self._follow(self._reopen())
            elif self._opening.stop.is_set():  # it is being parked
                await self._opening.stopped.wait()
                continue
            opening = self._opening
            await opening.ready.wait()
            if opening.refused is not None and not self._closed:
                raise opening.refused
            if not opening.stop.is_set():
                return

    def _answers(self, opened: Opened) -> WaitForAnswers:
        return WaitForAnswers(opened, self._feed, self._open_reader, self._why)

    def _why(self) -> Exception:
        if not self._opened.failure:
            return ActorStopped(self.session_id)
        crash = ActorCrashed(self.session_id)
        crash.__cause__ = self._opened.failure[0]
        return crash

    async def _ending(self, opened: Opened, work: Awaitable[Any]) -> Any:
        """Await work; where the session ended meanwhile, say why it did."""
        try:
            return await work
        except (ActorStopped, ActorCrashed):
            await opened.stopped.wait()
            why = self._why()
            raise why from why.__cause__

    async def _ask_loop(self, opened: Opened, message: Ask[Loop, R]) -> R:
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

    async def _append_entry(self, opened: Opened, entry: Draft) -> int:
        try:
            (event,) = await self._ending(opened, opened.log.append(entry, flush=True))
        except KeyUsed as used:
            await self._ending(opened, opened.log.flush())
            return used.seq
        return int(event.seq)

    async def _leave(self, opened: Opened, entry: Draft) -> int:
        try:
            (event,) = await self._ending(opened, opened.log.append(entry))
            seq = int(event.seq)
        except KeyUsed as used:
            seq = used.seq
        self._wake(opened)  # before the first wait that can be cancelled: what stands gets a turn
        await self._ending(opened, opened.log.flush())
        return seq

    def _wake(self, opened: Opened) -> None:
        with suppress(MailboxFull):  # whoever filled it wakes the loop, which looks into the log
            opened.ref.tell_nowait(Wake())

    async def _queue(self, opened: Opened, entry: Draft) -> int:
        """Queue a prompt: with its turn when the loop is idle, behind earlier ones when not."""
        if not opened.loop.running:
            return await self._ask_loop(opened, QueuePrompt(entry))
        try:
            (event,) = await self._ending(opened, opened.log.append(entry))
        except KeyUsed as used:
            return used.seq
        self._wake(opened)
        return int(event.seq)


def _content(text: str) -> tuple[TextBlock]:
    if not isinstance(text, str):  # a log would take anything, and the request fail at every try
        raise TypeError(f"what an agent is told is text, not {type(text).__name__}")
    return (TextBlock(text),)


def _prompt(text: str, source: Source, idempotency_key: str | None) -> Draft:
    content = _content(text)
    return draft(InboxQueued("turn", "prompt", content, source, idempotency_key))
