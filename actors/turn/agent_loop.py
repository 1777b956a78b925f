"""The agent loop: the actor that drives one session, a turn at a time.

What is said to a session goes to its log writer and nowhere else. The loop is only woken: it looks
into the log for what is pending, so that it makes no difference who said it, how, and when.

It knows nothing that the log does not say, so that a restart is the same thing as a resume. Beside
the turn in hand it remembers one thing, which pending steering has had a turn in this life: no log
says that of a turn that failed before it claimed anything.

What sets a turn off is found in the log and not carried in a mail. What an earlier life of the
session left pending is held: it sets nothing off and no turn takes it until somebody lets it go.

- a pending prompt. `next_prompts` says which of them one turn is for: the first that waits alone
  where it wants a turn of its own, else those that may be joined up to such a one;
- steering that came too late for its turn. Once it has had a turn, or `turn_stop` ended its own for
  good, it starts none any more and joins the next;
- a turn that was cut before it answered, by a crash or by the end of its agent, where the loop
  continues what an earlier life left: a recovery turn, with no new input. After crashes at most
  as many in a row as the agent allows, and one more for each `Retry`;
- nothing else. Injected context waits until somebody speaks.

`Wake` carries no input: it says *look*. One that is lost in a crash loses nothing, since a
restarted loop owes a turn to whatever is pending; two that come together are one look; and a full
mailbox may refuse it, for whoever filled it has woken the loop.

What ends the loop: its mailbox closes, or a cancel that disposes of it, after the turn in hand has
written its end. A violation of the invariants is raised and not restarted: what was about to be
sent would only be built again (docs/design/actors.md, "The agent loop").
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from refold.actors.kernel import Ask, Mail, Mailbox, Message
from refold.actors.log.session_log import SessionLog
from refold.actors.turn.seams import StartSource
from refold.actors.turn.step import LoopInstance
from refold.actors.turn.turn import Cancel, run_turn
from refold.runtime.closing import INTERRUPTED, closers
from refold.runtime.envelope import Draft, draft
from refold.runtime.events import ContextMessage, EndReason, Trigger, TurnStart
from refold.runtime.messages import Source, TextBlock
from refold.runtime.rules.inbox import next_prompts


class Loop:
    """Stands for the agent loop in the types of what it is sent."""


@attrs.frozen
class Wake(Message[Loop]):
    """Pending input may have come: look into the log."""


@attrs.frozen
class WhenIdle(Ask[Loop, None]):
    """Answered once every prompt has had a turn."""


@attrs.frozen
class Retry(Ask[Loop, None]):
    """Begin a recovery turn for the last turn if it was cut; answered once that is over."""


Request = Wake | WhenIdle | Retry

CUT_OFF = (
    "Your answer was cut off here before it was complete, and nobody has acted on it. Answer again "
    "from where it is useful; do not repeat what was said already."
)
"""What a recovery turn begins with where the model would otherwise be shown its own last word."""


class AgentLoop:
    """Runs turns; `cancel` ends the one in hand.

    Each start makes a new loop instance, which knows what the log says and nothing else.
    """

    def __init__(
        self,
        log: SessionLog,
        make_instance: Callable[[StartSource], LoopInstance],
        source: StartSource,
        *,
        continues: bool,
        draining: trio.Event,
        recoveries: int,
    ) -> None:
        self._log, self._make_instance = log, make_instance
        self._draining, self.most_recoveries = draining, recoveries
        self._source: StartSource = source
        self._continues = continues
        self._instance = make_instance(source)
        self._had_a_turn = set[int]()  # steering that is pending all the same
        if not continues:
            self._had_a_turn = self._steering()
        self._mine: frozenset[int] | None = None  # what the turn in hand is for
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
        return self._cancel is not None or self.running or self.recovers or self._owes_a_turn()

    @property
    def in_a_turn(self) -> bool:
        """Whether a turn is in hand, its end not durable yet included."""
        return self._cancel is not None

    async def turn_over(self) -> None:
        """Wait until no turn is in hand."""
        while self._cancel is not None:
            await self._turn_over.wait()

    @property
    def _may_begin(self) -> bool:
        return not (self._disposed or self._draining.is_set())

    @property
    def abandoned_threads(self) -> int:
        return self._instance.runner.abandoned.count

    def is_for(self, queued_seq: int) -> bool:
        """Whether the turn in hand has taken that entry, or is for it and nothing else."""
        turn = self._log.live.answers.current
        if turn is None:
            return False
        return queued_seq in turn.claimed or self._mine == frozenset({queued_seq})

    def let_go_of(self, queued_seq: int) -> None:
        """Owe a turn to an entry that somebody said again, whatever became of it so far."""
        self._log.live.held.discard(queued_seq)
        self._had_a_turn.discard(queued_seq)

    def release(self) -> None:
        """Owe a turn to everything that an earlier life of the session left pending."""
        self._had_a_turn -= self._log.live.held
        self._log.live.held.clear()

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
            self._had_a_turn.clear()
            left_open = closers(self._log.live.rules.standing, INTERRUPTED)
            await self._log.append(*left_open, flush=True)
        task_status.started()
        if restarted or self._continues:
            await self._recover()
            await self._work([], mailbox)
        async for mail in mailbox:
            await self._work([mail], mailbox)
            if self._disposed:
                return

    async def _recover(self) -> None:
        """A turn without new input for what one that was cut took and did not answer."""
        answers = self._log.live.answers
        while (source := answers.cut()) is not None and self._may_begin:
            if answers.recoveries >= self.most_recoveries:
                break
            await self._turn(Trigger("recovery", source))
        self.recovers = False
        self._log.live.feed.wake()  # a turn that was cut may be the last word now

    async def _retry(self) -> None:
        """One more of those, since somebody wants it."""
        source = self._log.live.answers.cut()
        if source is not None and self._may_begin:
            await self._turn(Trigger("recovery", source))

    async def _work(self, mails: list[Mail[Request]], mailbox: Mailbox[Request]) -> None:
        """Turns until every prompt has had one; then whoever waits for that is answered."""
        waiting: list[Mail[Request]] = []
        while self._may_begin:
            found = (*mails, *iter(mailbox.receive_nowait, None))
            mails = []
            waiting += [mail for mail in found if isinstance(mail.message, WhenIdle)]
            for mail in found:
                if isinstance(mail.message, Retry):
                    await self._retry()
                    mail.answer(None)
            if not self._owes_a_turn():
                for mail in waiting:
                    mail.answer(None)
                return
            await self._turn(Trigger("message", self._started_by()))

    def _owes_a_turn(self) -> bool:
        waiting = self._log.live.waiting.values()
        return bool(self._steering()) or any(entry.kind == "prompt" for entry in waiting)

    def _steering(self) -> set[int]:
        """Steering that came too late for its turn and starts one."""
        waiting = self._log.live.waiting.items()
        return {seq for seq, one in waiting if one.kind == "steer"} - self._had_a_turn

    def _next(self) -> frozenset[int]:
        """What the turn that has just started is for, of what waited then; it has had its turn."""
        live = self._log.live
        assert live.answers.current is not None, "it was opened"
        offered = live.answers.current.offered
        steering = self._steering() & offered
        waiting = {seq: one for seq, one in live.waiting.items() if seq in offered}
        self._had_a_turn |= steering
        return next_prompts(waiting, steered=bool(steering)) | steering

    async def _turn(self, trigger: Trigger) -> None:
        cancel = Cancel(self._instance.options.budgets.max_seconds)
        self._cancel, self._turn_over = cancel, trio.Event()
        try:
            live = self._log.live
            start = draft(TurnStart(live.rules.standing.turn + 1, trigger))
            await self._log.append(start, *self._cut_off(trigger))
            self._mine = None if trigger.kind == "recovery" else self._next()
            progress = await run_turn(self._instance, cancel, self._mine)
        finally:
            self._cancel = self._mine = None
            self._turn_over.set()
            self._log.live.feed.wake()
        if progress.stopped:
            self._had_a_turn |= self._steering()
        if progress.violation is not None:
            raise progress.violation

    def _cut_off(self, trigger: Trigger) -> list[Draft]:
        """What a recovery turn says first, where the history would end with the model's own word.

        Many servers go on with such a last message, or refuse it.
        """
        messages = self._log.live.session.derive_messages()
        if trigger.kind != "recovery" or not messages or messages[-1].role == "user":
            return []
        return [draft(ContextMessage((TextBlock(CUT_OFF),), Source("plugin", plugin="recovery")))]

    def _started_by(self) -> Source:
        """Who sets the next turn off: the first of those whose input it is for."""
        waiting, steering = self._log.live.waiting, self._steering()
        prompts = next_prompts(waiting, steered=bool(steering))
        return waiting[min(prompts | steering)].source
