"""One step of a turn: what one model call needs, in the one right order (design 3.4)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from actors.answer_writer import Answer
from actors.dispatch import Dispatch
from actors.seams import Seams, StepView
from actors.session_log import Claim, SessionLog
from actors.tool_calls import ToolRunner
from actors.tools import Tool
from runtime import codec
from runtime.envelope import Draft, draft
from runtime.events import (
    ContextMessage,
    InboxQueued,
    SteeringMessage,
    UserMessage,
)
from runtime.header import EpochHeader, LlmCallConfig, RequestHeader, ToolSchema
from runtime.llm.failures import Failure, LlmFailure
from runtime.messages import Message

HeaderReason: TypeAlias = Literal["initial", "resume", "change"]


@attrs.frozen
class Options:
    """What an agent is made of; `config` is where the instance's first call starts from."""

    config: LlmCallConfig
    system: str
    tools: tuple[Tool, ...]
    seams: Seams
    max_steps: int

    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(tool.schema for tool in self.tools)


class LoopInstance:
    """One life of an agent loop over a session.

    Its only private state: the frozen session prefix, and whether its anchor header is written.
    Everything else is read from the log.
    """

    def __init__(self, log: SessionLog, dispatch: Dispatch, options: Options) -> None:
        self.log, self.dispatch, self.options = log, dispatch, options
        self._runner = ToolRunner(log, {tool.name: tool for tool in options.tools}, options.seams)
        self._prefix: tuple[Message, ...] | None = None
        self._anchored = False

    async def step(self, turn: int, context: list[Draft], *, first: bool) -> Answer:
        """One model call and its tool calls; all but `step/end` is appended when it returns.

        Extra context of tools is added to `context` as it comes, for after all results.
        """
        claims = due(self.log, turn, first=first)
        prefix = await self._session_prefix()
        await self._pre_step(turn, prefix, claims)
        boundary = await self.log.open_step(turn, claims)
        await self._write_header(await self._call_config(), prefix)
        answer = await self.dispatch.dispatch(boundary)
        if answer.finish == "content-filter":
            text = "the provider withheld its answer; ask in another way"
            raise LlmFailure(Failure("CONTENT_FILTER", text))
        await self._runner.run(boundary, answer.message, context)
        return answer

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

    async def _call_config(self) -> LlmCallConfig:
        folded = self.log.live.session.header
        config = folded.config if self._anchored and folded is not None else self.options.config
        for seam in self.options.seams.request:
            config = await seam(config)
        return config

    async def _write_header(self, config: LlmCallConfig, prefix: tuple[Message, ...]) -> None:
        """Write the header that is owed: always the instance's first, later only a changed one."""
        header = EpochHeader(config, self.options.system, self.options.schemas(), prefix)
        folded = self.log.live.session.header
        reason = self._reason(header, folded)
        if reason is not None:
            await self.log.append(draft(RequestHeader(header, reason)))
            self._anchored = True

    def _reason(self, header: EpochHeader, folded: EpochHeader | None) -> HeaderReason | None:
        if not self._anchored:
            return "initial" if folded is None else "resume"
        same = codec.canonical(header) == codec.canonical(folded)
        return None if same else "change"


def due(log: SessionLog, turn: int, *, first: bool) -> tuple[Claim, ...]:
    """The pending entries that join this step: prompts in the first, the others in every one."""
    return tuple(
        Claim(seq, (_message(entry, turn),))
        for seq, entry in log.live.rules.inbox.pending.items()
        if first or entry.target == "step"
    )


def _message(entry: InboxQueued, turn: int) -> UserMessage | SteeringMessage | ContextMessage:
    match entry.kind:
        case "prompt":
            return UserMessage(entry.content, entry.source)
        case "steer":
            return SteeringMessage(turn, entry.content, entry.source)
        case "inject":
            return ContextMessage(entry.content, entry.source)
