"""One step of a turn: what one model call needs, in the one right order (design 3.4)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from actors.answer_writer import Answer
from actors.dispatch import Dispatch
from actors.due import DueEntries
from actors.seams import GoOn, Seams, StartSource, StepView, TurnView
from actors.session_log import Claim, SessionLog, StepBoundary
from actors.tool_calls import ToolRunner
from actors.tools import Tool
from runtime import codec
from runtime.envelope import Draft, draft
from runtime.errors import RuleBroken
from runtime.events import AssistantMessage, InboxQueued
from runtime.header import EpochHeader, LlmCallConfig, RequestHeader, ToolSchema
from runtime.llm.failures import Failure, LlmFailure
from runtime.llm.wires import CHAT
from runtime.messages import Message, Source, TextBlock, tool_calls
from runtime.turns import Tally

HeaderReason: TypeAlias = Literal["initial", "resume", "change"]

GoesOn: TypeAlias = Literal["yes", "no", "stopped"]
"""Whether a turn takes another step; `stopped` when `turn_stop` ended it for good."""


@attrs.frozen
class Budgets:
    """What one turn may take: steps, seconds, and tokens read and written; None is no limit.

    Time is up at once, whatever the turn is doing; steps and tokens are looked at after each step.
    """

    max_steps: int | None = 100
    max_seconds: float | None = None
    turn_tokens: int | None = None

    def spent(self, tally: Tally) -> Literal["steps", "tokens"] | None:
        """What a turn has used up after a step; seconds are not looked at here."""
        if self.max_steps is not None and tally.step >= self.max_steps:
            return "steps"
        tokens = tally.usage.total_input + (tally.usage.output_tokens or 0)
        return "tokens" if self.turn_tokens is not None and tokens >= self.turn_tokens else None


@attrs.frozen
class Options:
    """What an agent is made of; `config` is where the instance's first call starts from."""

    config: LlmCallConfig
    system: str
    tools: tuple[Tool, ...]
    seams: Seams
    budgets: Budgets

    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(tool.schema for tool in self.tools)


class LoopInstance:
    """One life of an agent loop over a session.

    Its only private state: the frozen session prefix, and what it did once already. Everything
    else is read from the log.
    """

    def __init__(
        self, log: SessionLog, dispatch: Dispatch, options: Options, source: StartSource
    ) -> None:
        self.log, self.dispatch, self.options = log, dispatch, options
        self.runner = ToolRunner(log, {tool.name: tool for tool in options.tools}, options.seams)
        self._due = DueEntries(log, options.seams)
        self._source: StartSource | None = source
        self._prefix: tuple[Message, ...] | None = None
        self._anchored = False

    async def step(self, turn: int, context: list[Draft], *, prompts: bool) -> Answer:
        """One model call and its tool calls; all but `step/end` is appended when it returns.

        With `prompts` pending prompts join it. Extra context of tools is added to `context` as it
        comes, for after all results. Raises `AllRejected`, `LlmFailure`, `InvariantViolation`,
        and what a seam or an append raises.
        """
        await self._session_start()
        claims = await self._due.claims(turn, first=prompts)
        prefix = await self._session_prefix()
        await self._pre_step(turn, prefix, claims)
        boundary = await self._open_step(turn, claims)
        await self._write_marker(await self._call_config(), prefix)
        answer = await self.dispatch.dispatch(boundary)
        if answer.finish == "content-filter":
            text = "the provider withheld its answer; ask in another way"
            raise LlmFailure(Failure("CONTENT_FILTER", text))
        await self.runner.run(boundary, answer.message, context)
        return answer

    async def goes_on(self, turn: int, message: AssistantMessage) -> GoesOn:
        """Whether another step follows: calls and steering say yes, the seams have the last word.

        A stop by `turn_continuation` gives way to steering that came meanwhile; one by
        `turn_stop` does not.
        """
        seams, log = self.options.seams, self.log
        going_on = bool(tool_calls(message.content)) or self._waits()
        for seam in seams.turn_continuation:
            verdict = await seam(TurnView(log, turn, message.step, message, going_on))
            if isinstance(verdict, GoOn) and self._may_step():
                source = Source("plugin", plugin="turn_continuation")
                entry = InboxQueued("step", "steer", (TextBlock(verdict.text),), source)
                await log.append(draft(entry))
            going_on = going_on if verdict is None else isinstance(verdict, GoOn)
        going_on = going_on or self._waits()
        for stop in seams.turn_stop:
            if await stop(TurnView(log, turn, message.step, message, going_on)):
                return "stopped"
        return "yes" if going_on else "no"

    def _may_step(self) -> bool:
        # Steering that a spent turn leaves starts the next turn: a seam would go on for ever.
        tally = self.log.live.answers.current
        return tally is None or self.options.budgets.spent(tally) is None

    def _waits(self) -> bool:
        pending = self.log.live.rules.inbox.pending
        return any(entry.target == "step" for entry in pending.values())

    async def _session_start(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            for seam in self.options.seams.session_start:
                await seam(self.log, source)

    async def _session_prefix(self) -> tuple[Message, ...]:
        if self._prefix is None:
            composed: list[Message] = []
            for seam in self.options.seams.session_prefix:
                composed += await seam(self.log)
            codec.canonical(composed)  # one that no header can hold must not be frozen
            self._prefix = tuple(composed)
        return self._prefix

    async def _pre_step(
        self, turn: int, prefix: tuple[Message, ...], claims: tuple[Claim, ...]
    ) -> None:
        options = self.options
        view = StepView(self.log, turn, options.system, options.schemas(), prefix, claims)
        for seam in options.seams.pre_step:
            await seam(view)

    async def _open_step(self, turn: int, claims: tuple[Claim, ...]) -> StepBoundary:
        """Open the step with the claims whose entries are pending still."""
        while True:
            try:
                return await self.log.open_step(turn, claims)
            except RuleBroken:
                left = self._due.still_pending(claims)
                if left == claims:
                    raise
                claims = left

    async def _call_config(self) -> LlmCallConfig:
        folded = self.log.live.session.header
        config = folded.config if self._anchored and folded is not None else self.options.config
        for seam in self.options.seams.request:
            config = await seam(config)
        return config

    async def _write_marker(self, config: LlmCallConfig, prefix: tuple[Message, ...]) -> None:
        """Write the header that is owed: always the instance's first, later only a changed one."""
        header = EpochHeader(config, self.options.system, self.options.schemas(), prefix)
        folded = self.log.live.session.header
        reason = self._reason(header, folded)
        if reason is not None:
            CHAT.head(header)  # one that no request can hold must not be logged
            await self.log.append(draft(RequestHeader(header, reason)))
            self._anchored = True

    def _reason(self, header: EpochHeader, folded: EpochHeader | None) -> HeaderReason | None:
        if not self._anchored:
            return "initial" if folded is None else "resume"
        same = codec.canonical(header) == codec.canonical(folded)
        return None if same else "change"
