"""The agent loop: the actor that drives one session, a turn at a time (design 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import attrs
import trio

from actors.kernel import Ask, Mail, Mailbox, Message
from actors.log_writer import KeyConflict, KeyUsed, refuse_used_key
from actors.seams import StartSource
from actors.session_log import SessionLog
from actors.step import LoopInstance
from actors.turn import Cancel, open_turn, run_turn
from runtime.envelope import Draft
from runtime.events import EndReason, Trigger
from runtime.messages import USER, Source

RECOVERIES = 3
"""How many recovery turns may follow one another, the restart limit of the loop."""


class Loop:
    """Stands for the agent loop in the types of what it is sent."""


@attrs.frozen
class QueuePrompt(Ask[Loop, int]):
    """Queue this prompt together with the turn that takes it; answered with its seq."""

    queued: Draft


@attrs.frozen
class Wake(Message[Loop]):
    """Pending input may have come: look into the log."""


@attrs.frozen
class WhenIdle(Ask[Loop, None]):
    """Answered once every prompt has had a turn."""


Request = QueuePrompt | Wake | WhenIdle


class AgentLoop:
    """Runs turns; `cancel` ends the one in hand.

    Each start makes a new loop instance, which knows what the log says and nothing else. A prompt
    starts a turn once: one that its turn did not get to claim, or that an earlier life of the
    session left, stays pending and joins the next turn, unless the loop `continues`.
    """

    def __init__(
        self,
        log: SessionLog,
        make_instance: Callable[[StartSource], LoopInstance],
        source: StartSource,
        *,
        continues: bool,
    ) -> None:
        self._log, self._make_instance = log, make_instance
        self._source: StartSource = source
        self._continues = continues
        self._instance = make_instance(source)
        self._had_a_turn = set() if continues else self._pending_prompts()
        self._cancel: Cancel | None = None
        self._turn_over = trio.Event()
        self._started = False
        self._disposed = False
        self.recovers = continues
        """Whether an interrupted turn is about to get its recovery turn."""

    @property
    def running(self) -> bool:
        """Whether a turn is open in the log: what comes now may join it."""
        return self._log.live.answers.current is not None

    def let_go(self) -> None:
        """Drop what only another turn would need; for parking, once the loop has ended."""
        self._instance.dispatch.let_go()

    @property
    def finishing(self) -> bool:
        """Whether a turn has ended in the log and the loop is about to be done with it."""
        return self._cancel is not None and not self.running

    @property
    def busy(self) -> bool:
        """Whether a turn is in hand, its end not durable yet included, or about to be."""
        return self._cancel is not None or self.running or self.recovers or bool(self._owed())

    @property
    def abandoned_threads(self) -> int:
        return self._instance.runner.abandoned.count

    async def cancel(self, reason: EndReason) -> None:
        """Cancel the turn in hand and wait until its end is durable; without one, do nothing.

        The reason `disposed` is the loop's end as well: what still waits starts no turn.
        """
        self._disposed = self._disposed or reason.kind == "disposed"
        if self._cancel is not None:
            self._cancel(reason)
            await self._turn_over.wait()

    async def run(self, mailbox: Mailbox[Request], *, task_status: trio.TaskStatus[None]) -> None:
        """Serve the mailbox until it is closed or the loop disposed of.

        Started again by its supervisor, it first closes the turn that the last life left open and
        lets a recovery turn answer its input. Raises `InvariantViolation` to end the session.
        """
        mailbox.at_work()  # a recovery turn runs before any mail brings one
        restarted, self._started = self._started, True
        self.recovers = restarted or self._continues
        if restarted:
            self._instance = self._make_instance("resume")
            self._had_a_turn = set()
            await self._log.append(*self._log.live.repair.closers(), flush=True)
        task_status.started()
        if restarted or self._continues:
            await self._recover()
            await self._work([], mailbox)
        async for mail in mailbox:
            await self._work([mail], mailbox)
            if self._disposed:
                return

    async def _recover(self) -> None:
        """One turn without new input, for what an interrupted one took and did not answer."""
        answers = self._log.live.answers
        source = answers.interrupted()
        while source is not None and answers.recoveries < RECOVERIES and not self._disposed:
            await self._turn([], Trigger("recovery", source))
            source = answers.interrupted()
        self.recovers = False
        self._log.live.feed.wake()  # an interrupted turn may be the last word now

    async def _work(self, waiting: list[Mail[Request]], mailbox: Mailbox[Request]) -> None:
        """Turns until every prompt has had one; then whoever waits for that is answered."""
        while not self._disposed:
            waiting += iter(mailbox.receive_nowait, None)
            asked = self._unanswered([one for one in waiting if _is_prompt(one)])
            waiting = [one for one in waiting if not _is_prompt(one)]
            if not asked and not self._owed():
                for one in waiting:
                    one.answer(None)
                return
            await self._turn(asked, Trigger("message", self._source_of(asked)))

    def _unanswered(self, asked: list[Mail[QueuePrompt]]) -> list[Mail[QueuePrompt]]:
        """Those to queue; one with a known idempotency key is answered with the first or refused.

        Asked for again, a prompt that an earlier life left is owed a turn.
        """
        new = []
        for mail in asked:
            try:
                refuse_used_key(self._log.live.rules.inbox, mail.message.queued.data)
            except KeyConflict as conflict:
                mail.fail(conflict)
                continue
            except KeyUsed as used:
                mail.answer(used.seq)
                if self._log.live.answers.turn_of(used.seq) is None:
                    self._had_a_turn.discard(used.seq)
                continue
            new.append(mail)
        return new

    def _owed(self) -> set[int]:
        """Pending entries that start a turn."""
        return self._pending_prompts() - self._had_a_turn

    def _pending_prompts(self) -> set[int]:
        """Entries that set a turn off: prompts, and steering that came too late for its turn."""
        pending = self._log.live.rules.inbox.pending
        return {seq for seq, entry in pending.items() if entry.kind != "inject"}

    def _pending_steering(self) -> set[int]:
        pending = self._log.live.rules.inbox.pending
        return {seq for seq, entry in pending.items() if entry.kind == "steer"}

    async def _turn(self, asked: list[Mail[QueuePrompt]], trigger: Trigger) -> None:
        cancel = Cancel(self._instance.options.budgets.max_seconds)
        self._cancel, self._turn_over = cancel, trio.Event()
        try:
            await self._open(asked, trigger)
            progress = await run_turn(self._instance, cancel)
        finally:
            self._cancel = None
            self._turn_over.set()
            self._log.live.feed.wake()
        if progress.stopped:
            self._had_a_turn |= self._pending_steering()
        if progress.violation is not None:
            raise progress.violation

    async def _open(self, asked: list[Mail[QueuePrompt]], trigger: Trigger) -> None:
        """Open a turn with what was asked, each key once; one used meanwhile leaves the batch."""
        while True:
            new = _one_a_key(asked)
            try:
                seqs = await open_turn(self._log, [one.message.queued for one in new], trigger)
                break
            except (KeyUsed, KeyConflict):
                asked = self._unanswered(asked)
        for one, seq in zip(new, seqs, strict=True):
            one.answer(seq)
        self._unanswered(asked)  # a repeat within the batch is answered with the first
        if trigger.kind != "recovery":  # which takes no prompts
            self._had_a_turn = self._pending_prompts()

    def _source_of(self, asked: list[Mail[QueuePrompt]]) -> Source:
        queued = [one.message.queued.data for one in asked]
        entries = [*self._log.live.rules.inbox.pending.values(), *queued]
        started_by = [entry for entry in entries if entry.kind != "inject"] or entries
        return started_by[0].source if started_by else USER


def _is_prompt(mail: Mail[Request]) -> TypeGuard[Mail[QueuePrompt]]:
    return isinstance(mail.message, QueuePrompt)


def _one_a_key(asked: Sequence[Mail[QueuePrompt]]) -> list[Mail[QueuePrompt]]:
    keys = [one.message.queued.data.idempotency_key for one in asked]
    return [one for at, one in enumerate(asked) if keys[at] is None or keys[at] not in keys[:at]]
