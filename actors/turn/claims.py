"""Which inbox entries join a step, and what becomes of each.

An entry that joins a step leaves the inbox with it, for its message cites it. One that may not pass
leaves the inbox as blocked. So does one that a seam failed over, and so do the prompts of a turn
that a seam ended before its first step: the turn's end tells them of the error, and if they stayed
they would be judged again with whatever is said next, and fail it too. Those of a turn that was
cancelled before its first step leave with it, so that nothing that was cancelled is said later.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from refold.actors.context import Setting
from refold.actors.log.session_log import Claim, SessionLog
from refold.actors.turn.consult import consult
from refold.actors.turn.seams import PromptView, Reject, Seams
from refold.runtime.envelope import draft
from refold.runtime.errors import RuleBroken
from refold.runtime.events import (
    ContextMessage,
    InboxQueued,
    InboxRemoved,
    PromptBlocked,
    SteeringMessage,
    UserMessage,
)
from refold.runtime.json import said_by
from refold.runtime.messages import Block, Source

WITHDRAWN = "every prompt was removed or edited before the model saw it"


class AllRejected(Exception):
    """No prompt that was due may pass; `reason` is the last block's, or `WITHDRAWN`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


@attrs.define
class DueEntries:
    """Selects the entries of one step: the turn's prompts in the first, the others in every one."""

    log: SessionLog
    seams: Seams
    setting: Setting

    async def claims(self, turn: int, mine: frozenset[int] | None) -> tuple[Claim, ...]:
        """Judge what is due and say what it becomes; a blocked entry leaves the inbox here.

        `mine` are the entries that the turn is for, in its first step; None in one that takes no
        prompt. Raises `AllRejected` when there were prompts and none may pass, or none is left, and
        where a turn went on for steering alone that may not pass.
        """
        first = mine is not None
        waiting = self.log.live.waiting.items()
        due = {seq: one for seq, one in waiting if one.target == "step" or seq in (mine or ())}
        rejected: str | None = None
        found, passed = [], 0
        for seq, entry in due.items():
            verdict = await self._judge(turn, seq, entry)
            if isinstance(verdict, Reject):
                rejected = verdict.reason
            else:
                passed += entry.target == "turn"
                found.append(verdict)
        if rejected is not None and not passed and (first or self._answered(found)):
            raise AllRejected(rejected)
        if first and all(isinstance(claim.message, ContextMessage) for claim in found):
            raise AllRejected(WITHDRAWN)
        return tuple(found)

    def _answered(self, found: list[Claim]) -> bool:
        """Whether the model has said its last word and nothing new would come with a request."""
        tally = self.log.live.answers.current
        return not found and tally is not None and tally.answered

    def still_pending(self, claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
        """The claims whose entries nobody took back while seams had their say.

        Raises `AllRejected` when there were prompts and none is left.
        """
        pending = self.log.live.rules.inbox.pending
        left = tuple(claim for claim in claims if claim.queued_seq in pending)
        if any(map(_is_prompt, claims)) and not any(map(_is_prompt, left)):
            raise AllRejected(WITHDRAWN)
        return left

    async def _judge(self, turn: int, seq: int, entry: InboxQueued) -> Claim | Reject:
        content: tuple[Block, ...] = entry.content
        context: tuple[Block, ...] = ()
        for seam in self.seams.prompt_submit:
            view = PromptView(self.log.session_id, turn, seq, content, entry.source, entry.kind)
            try:
                verdict = await consult("prompt_submit", seam, self.setting.context(turn), view)
            except Exception as error:
                await self.block({seq: entry}, said_by(error))
                raise
            if isinstance(verdict, Reject):
                await self.block({seq: entry}, verdict.reason)
                return verdict
            if verdict is not None:
                content = content if verdict.content is None else verdict.content
                context += verdict.context
        message = _message(entry, content, turn)
        if not context:
            return Claim(seq, message)
        return Claim(
            seq, message, (ContextMessage(context, Source("plugin", plugin="prompt_submit")),)
        )

    async def give_up(self, mine: frozenset[int]) -> None:
        """Take what a turn was for and ends without out of the inbox; its end says why."""
        pending = self.log.live.rules.inbox.pending.items()
        await self.block({seq: one for seq, one in pending if seq in mine}, None)

    async def block(self, entries: Mapping[int, InboxQueued], reason: str | None) -> None:
        """Take entries out of the inbox, as blocked if there is a reason.

        Those that somebody took back meanwhile are left out.
        """
        inbox = self.log.live.rules.inbox
        while left := {seq: one for seq, one in entries.items() if seq in inbox.pending}:
            blocked = [
                PromptBlocked(one.content, one.source, reason)
                for one in left.values()
                if reason is not None
            ]
            removed = InboxRemoved(tuple(left), "rejected")
            try:
                await self.log.append(*map(draft, blocked), draft(removed))
            except RuleBroken:
                if all(seq in inbox.pending for seq in left):  # it was not for one that is gone
                    raise


def _is_prompt(claim: Claim) -> bool:
    return isinstance(claim.message, UserMessage)


def _message(
    entry: InboxQueued, content: tuple[Block, ...], turn: int
) -> UserMessage | SteeringMessage | ContextMessage:
    match entry.kind:
        case "prompt":
            return UserMessage(content, entry.source)
        case "steer":
            return SteeringMessage(turn, content, entry.source)
        case "inject":
            return ContextMessage(content, entry.source)
