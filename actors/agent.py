"""An agent as its users hold it: a session with a loop that answers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
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
from refold.actors.asking import Asked, Keeper, Pending, pending_of
from refold.actors.bodies import STOP_SECONDS, refuse_waiting_for_itself
from refold.actors.context import Progress
from refold.actors.kernel import (
    ActorCrashed,
    ActorSnapshot,
    ActorStopped,
    Ask,
    MailboxFull,
    Promise,
)
from refold.actors.kernel.same_run import check_same_run
from refold.actors.leaving import Draining
from refold.actors.log.log_writer import PARKED
from refold.actors.log.session_log import Committed, SessionLog
from refold.actors.log.subscription import Subscription
from refold.actors.session_tree import Recipe, RunningSession, SessionLife
from refold.actors.turn.agent_loop import Loop, Retry, Wake, WhenIdle
from refold.actors.turn.ask_cycles import Waits
from refold.actors.turn.prompt_wait import NoSuchPrompt, NothingToRetry, PromptWait
from refold.actors.turn.turn import CLOSE_SECONDS
from refold.actors.whole import Whole
from refold.runtime.envelope import Draft, decode_line, draft
from refold.runtime.errors import InvalidArgument, RefoldError, RuleBroken, check_position
from refold.runtime.events import EndReason, InboxQueued, InboxRemoved
from refold.runtime.history import History
from refold.runtime.messages import USER, Message, Source, TextBlock
from refold.runtime.prompt_ledger import Turn
from refold.runtime.storage.errors import PASSING
from refold.runtime.storage.reader import LogReader
from refold.runtime.storage.session_header import Durability
from refold.runtime.stream.chunks import Chunk

R = TypeVar("R")

LEAVE_SECONDS = CLOSE_SECONDS + STOP_SECONDS
"""How long leaving a scope may take: as long as its turn's tools and its last events may."""

_log = logging.getLogger("refold")


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
        spawn: Callable[..., None],
    ) -> None:
        assert opening.opened is not None, "it is ready"
        self.header = opening.opened.header
        self.given = recipe.given
        self._waits, self._run, self._spawn = waits, run, spawn
        self._waiting = Counter[int]()
        """How many wait for each prompt."""
        self.last_used = trio.current_time()
        self._feed, self._listeners = recipe.feed, recipe.listeners
        self._progress_listeners = recipe.progress_listeners
        self._draining = recipe.host.draining
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
    async def ask(
        self,
        text: str,
        *,
        idempotency_key: str | None = None,
        join: bool = False,
        cancel_turn: bool = False,
    ) -> Turn:
        """Send a prompt and wait for the turn that answers it; its end is durable by then.

        The prompt gets a turn of its own, in the order in which prompts came; with `join` it joins
        others that wait, as one of `prompt` does, and `Turn.prompts` names them. A key that the log
        knows already gets the turn of the first prompt under it, however that one was sent; for
        another text it raises `KeyConflict`.

        Cancelled, the wait ends and the prompt stands: with `cancel_turn` it is taken back then, or
        its turn is cancelled, as `asking` does. Raises `PromptRemoved` for a prompt that is removed
        or edited before a turn takes it, and `AskCycle` where agents would wait in a circle.
        """
        check_switch("join", join)
        check_switch("cancel_turn", cancel_turn)
        entry = _entry("prompt", text, USER, idempotency_key, own_turn=not join)
        async with self._asking(entry, calls_off=cancel_turn) as asked:
            return await asked.answer()

    def asking(
        self, text: str, *, idempotency_key: str | None = None, join: bool = False
    ) -> AbstractAsyncContextManager[Asked]:
        """Ask within a scope: `async with agent.asking("...") as asked: await asked.answer()`.

        The prompt is queued as `ask` does it, and `asked.seq` says where. Leaving the scope before
        the turn is over, however it is left, calls the prompt off: while it is pending it is taken
        back, else its turn is cancelled and no other. That is durable when the scope has been left,
        also where a cancellation ends it. With a key under which several wait, the last one to
        leave calls it off; a turn that others joined is cancelled for all of them. Where the
        session has ended by then, the prompt stays as it stands in the log.
        """
        check_switch("join", join)
        entry = _entry("prompt", text, USER, idempotency_key, own_turn=not join)
        return Whole(self._asking(entry, calls_off=True))

    @enable_ki_protection
    async def prompt(
        self, text: str, *, idempotency_key: str | None = None, source: Source = USER
    ) -> int:
        """Leave a prompt and return its seq once it is durable; it starts a turn when it can.

        Prompts that wait when a turn starts join it, up to one that wants a turn of its own.
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
        async with self._awake() as opened:
            self._check_known(opened, seq)
            with self._waits.on(opened.ref.actor), self._waiter(seq):
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
            self._check_takes_input()
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
    async def cancel(
        self, seq: int | str | None = None, *, reason: str = "user", drop_pending: bool = False
    ) -> None:
        """Cancel the turn in hand and wait until the log is balanced and durable again.

        The prompts that the turn was for leave with it, also those that the model had not seen;
        what else waits stays and starts the next turn, unless `drop_pending` takes it all back.
        With the `seq` of a prompt only what that one set off is cancelled: it is taken back while
        it is pending, its turn is cancelled while that runs, and nothing happens afterwards. A text
        in the place of `seq` is the `reason`.

        Without a turn it does nothing; the first reason stands. A tool or seam that does not stop
        is left behind. Cancelled, the wait ends and the cancelling goes on. Raises `NoSuchPrompt`,
        `NotLosslessJson`, and `AskCycle` inside a tool or seam of this agent that is shielded:
        cancelling could not reach it, and the wait would be for itself.
        """
        check_same_run(self._run)
        seq, reason = (None, seq) if isinstance(seq, str) else (seq, reason)
        check_text("reason", reason)
        check_switch("drop_pending", drop_pending)
        refuse_waiting_for_itself(self._opened.ref.actor)
        why = EndReason("aborted", reason=reason)
        if seq is None and not drop_pending:
            await self._opened.loop.cancel(why)
            return
        async with self._awake() as opened:
            if seq is not None:
                self._check_known(opened, seq)
            dropped = await self._drop_pending(opened) if drop_pending else None
            if seq is None:
                await opened.loop.cancel(why)
            else:
                await self._call_off(opened, seq, why)
            if dropped is not None:
                await self._ending(opened, dropped.wait())

    def pending(self) -> tuple[Pending, ...]:
        """What waits in the inbox right now, in the order in which it came."""
        live = self.log.live
        entries = live.rules.inbox.pending.items()
        return tuple(pending_of(seq, one, held=seq in live.held) for seq, one in entries)

    @enable_ki_protection
    async def release(self) -> None:
        """Let what an earlier life of the session left pending have its turns."""
        async with self._awake() as opened:
            opened.loop.release()
            self._wake(opened)

    @enable_ki_protection
    async def retry(self, seq: int) -> Turn:
        """Let one more recovery turn answer the prompt at `seq`, and wait for it as `ask` does.

        For a prompt whose turn was cut by the end of its agent or of the program and was not
        recovered, because nobody continued it or its agent gave up (`Turn.reason` is `disposed`,
        `interrupted` or `gave-up`). Cancelled, the wait ends and the turn goes on. Raises
        `NothingToRetry` where no such turn is the last one, `NoSuchPrompt` and `Draining`.
        """
        async with self._awake() as opened:
            self._check_known(opened, seq)
            self._check_takes_input()
            if not opened.log.live.answers.is_cut(seq):
                raise NothingToRetry(seq)
            with self._waits.on(opened.ref.actor), self._waiter(seq):
                await self._ask_loop(opened, Retry())
                return await self._answers(opened).of(seq)

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

    @asynccontextmanager
    async def _asking(self, entry: Draft, *, calls_off: bool) -> AsyncIterator[Asked]:
        async with self._awake() as opened:
            say = partial(self._say, opened, entry, asked=True)
            with self._waits.on(opened.ref.actor):
                if not calls_off:
                    seq = await say()
                    with self._waiter(seq):
                        yield Asked(seq, self._answers(opened))
                    return
                if opened.stopped.is_set():
                    raise self._why()
                keeper = Keeper(say, self._waiter, partial(self._leave, opened))
                self._spawn(keeper.run)
                try:
                    said = await keeper.said()
                    if said is None:
                        raise self._why()
                    yield Asked(said, self._answers(opened))
                finally:
                    await keeper.leave()

    @contextmanager
    def _waiter(self, seq: int) -> Iterator[None]:
        self._waiting[seq] += 1
        try:
            yield
        finally:
            self._waiting[seq] -= 1
            self._waiting += Counter()  # without those that nobody waits for

    async def _leave(self, opened: RunningSession, seq: int) -> None:
        """Call a prompt off for whom nobody waits any more."""
        answers = self._answers(opened)
        over = answers.over(seq) and answers.lasts(seq)
        if over or self._waiting[seq] or opened.stopped.is_set():
            return
        try:
            with trio.move_on_after(LEAVE_SECONDS, shield=True):
                why = EndReason("aborted", reason="whoever asked has left")
                await self._call_off(opened, seq, why)
        except RefoldError as error:  # the session has ended; what led here says more
            _log.warning("prompt %d of session %s stands: %s", seq, self.session_id, error)

    async def _call_off(self, opened: RunningSession, seq: int, why: EndReason) -> None:
        """Take a prompt back while it is pending, or cancel its turn; durable when it returns."""
        live, loop, answers = opened.log.live, opened.loop, self._answers(opened)
        while not answers.over(seq):
            changed = self._feed.changed
            if live.answers.waits(seq):
                made = draft(InboxRemoved((seq,), "cancelled"))
                with suppress(RuleBroken):  # a turn has taken it meanwhile
                    await self._ending(opened, opened.log.append(made))
            elif loop.is_for(seq):
                break
            elif opened.stopped.is_set():
                raise self._why()
            else:  # it was interrupted, and its recovery turn is about to begin
                await changed.wait()
        if loop.is_for(seq):
            await loop.cancel(why)
        if not answers.lasts(seq):  # it was taken back, by this or by somebody else
            await self._ending(opened, opened.log.flush())

    async def _drop_pending(self, opened: RunningSession) -> Promise[int] | None:
        """Take everything back that is pending, and promise that this is durable."""
        while pending := tuple(opened.log.live.rules.inbox.pending):
            made = draft(InboxRemoved(pending, "cancelled"))
            with suppress(RuleBroken):  # a turn has taken one of them meanwhile
                committed: Committed = await self._ending(
                    opened, opened.log.commit(made, flush=True)
                )
                return committed.durable
        return None

    def _check_takes_input(self) -> None:
        if self._draining.is_set():
            raise Draining

    def _check_known(self, opened: RunningSession, seq: int) -> None:
        check_seq("seq", seq)
        if not opened.log.live.answers.knows(seq):
            raise NoSuchPrompt(seq)

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
        self._check_takes_input()
        queued = await self._ending(opened, opened.log.queue(entry, flush=not asked))
        if queued.known:
            opened.loop.let_go_of(queued.seq)
        if wakes:  # before the first wait that can be cancelled: what stands gets a turn
            self._wake(opened)
        if queued.durable is not None:
            await self._ending(opened, queued.durable.wait())
        return int(queued.seq)

    def _wake(self, opened: RunningSession) -> None:
        # Whoever filled the mailbox wakes the loop, which looks into the log; that it is gone is
        # told by the waits that follow.
        with suppress(MailboxFull, ActorStopped, ActorCrashed):
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
    *,
    own_turn: bool = False,
) -> Draft:
    content = _content(text)
    if not isinstance(source, Source):
        raise wrong("source", "a Source", source)
    check_optional_text("idempotency_key", idempotency_key)
    own = True if own_turn else None
    return draft(InboxQueued(_TARGETS[kind], kind, content, source, idempotency_key, own))
