"""What waits in an agent's inbox as its users see it, and a prompt that somebody waits for."""

from __future__ import annotations

from typing import Literal

import attrs

from refold.actors.turn.prompt_wait import PromptWait
from refold.runtime.events import InboxQueued
from refold.runtime.messages import Block, Source, text_of
from refold.runtime.prompt_ledger import Turn


@attrs.frozen
class Pending:
    """One entry that waits in an agent's inbox, as `Agent.pending` gives it.

    `seq` is where it was queued, `source` who said it, `key` its idempotency key. One with
    `own_turn` is joined by no other prompt. One that is `held` was left by an earlier life of the
    session: no turn takes it until `Agent.release`.
    """

    seq: int
    kind: Literal["prompt", "steer", "inject"]
    content: tuple[Block, ...]
    source: Source
    own_turn: bool
    key: str | None
    held: bool

    @property
    def text(self) -> str:
        """The text of its content."""
        return text_of(self.content)


def pending_of(seq: int, entry: InboxQueued, *, held: bool) -> Pending:
    return Pending(
        seq,
        entry.kind,
        entry.content,
        entry.source,
        bool(entry.own_turn),
        entry.idempotency_key,
        held,
    )


@attrs.frozen(eq=False)
class Asked:
    """A prompt inside `async with agent.asking(...)`; `seq` is where it was queued."""

    seq: int
    _wait: PromptWait

    async def answer(self) -> Turn:
        """Wait for the turn that answers the prompt; its end is durable by then.

        Cancelled, the wait ends and may be begun again: leaving the scope is what calls it off.
        Raises `PromptRemoved` where it left the inbox before a turn took it, `ActorStopped` and
        `ActorCrashed` where the session ended before its turn did.
        """
        return await self._wait.of(self.seq)
