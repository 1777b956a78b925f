"""Which inbox entries join a step, and what becomes of each (design 3.4, steps 1 and 5)."""

from __future__ import annotations

import attrs

from actors.seams import PromptView, Reject, Seams, Submit
from actors.session_log import Claim, SessionLog
from runtime.envelope import draft
from runtime.errors import RuleBroken
from runtime.events import (
    ContextMessage,
    InboxQueued,
    InboxRemoved,
    PromptBlocked,
    SteeringMessage,
    UserMessage,
)
from runtime.messages import Block, Source

WITHDRAWN = "every prompt was removed or edited before the model saw it"


class AllRejected(Exception):
    """No prompt that was due may pass; `reason` is the last block's, or `WITHDRAWN`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


@attrs.define
class DueEntries:
    """Selects the entries of one step: prompts in the first, the others in every one."""

    log: SessionLog
    seams: Seams

    async def claims(self, turn: int, *, first: bool) -> tuple[Claim, ...]:
        """Judge what is due and say what it becomes; a blocked entry leaves the inbox here.

        Raises `AllRejected` when there were prompts and none may pass, or none is left, and where
        a turn went on for steering alone that may not pass.
        """
        pending = dict(self.log.live.rules.inbox.pending)
        rejected: str | None = None
        found, prompts = [], 0
        for seq, entry in pending.items():
            if entry.target == "step" or first:
                verdict = await self._judge(turn, seq, entry)
                if isinstance(verdict, Reject):
                    rejected = verdict.reason
                else:
                    prompts += entry.target == "turn"
                    found.append(_claim(seq, entry, verdict, turn))
        if rejected is not None and not prompts and (first or self._answered(found)):
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

    async def _judge(self, turn: int, seq: int, entry: InboxQueued) -> Submit | Reject:
        content: tuple[Block, ...] = entry.content
        context: tuple[Block, ...] = ()
        for seam in self.seams.prompt_submit:
            verdict = await seam(PromptView(turn, seq, content, entry.source, entry.kind))
            if isinstance(verdict, Reject):
                await self._block(seq, entry, verdict.reason)
                return verdict
            if verdict is not None:
                content = content if verdict.content is None else verdict.content
                context += verdict.context
        return Submit(content, context)

    async def _block(self, seq: int, entry: InboxQueued, reason: str) -> None:
        blocked = PromptBlocked(entry.content, entry.source, reason)
        try:
            await self.log.append(draft(blocked), draft(InboxRemoved((seq,), "rejected")))
        except RuleBroken:
            if seq in self.log.live.rules.inbox.pending:  # else it was taken back meanwhile
                raise


def _is_prompt(claim: Claim) -> bool:
    return isinstance(claim.message, UserMessage)


def _claim(seq: int, entry: InboxQueued, verdict: Submit, turn: int) -> Claim:
    content = entry.content if verdict.content is None else verdict.content
    if not verdict.context:
        return Claim(seq, _message(entry, content, turn))
    context = ContextMessage(verdict.context, Source("plugin", plugin="prompt_submit"))
    return Claim(seq, _message(entry, content, turn), (context,))


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
