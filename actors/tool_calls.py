"""The tool calls of one step: seams, start, body, result (design 3.4, steps 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from actors.seams import CallView, Deny, Seams
from actors.session_log import SessionLog, StepBoundary
from actors.tools import Outcome, Tool, run_tool
from runtime.envelope import Draft, draft
from runtime.events import AssistantMessage, ContextMessage, ToolCall, ToolError, ToolResult
from runtime.messages import Block, Source, TextBlock, ToolCallBlock, tool_calls


@attrs.frozen
class ToolRunner:
    """Runs the calls that one agent's model asks for."""

    log: SessionLog
    tools: Mapping[str, Tool]
    seams: Seams

    async def run(
        self, boundary: StepBoundary, message: AssistantMessage, context: list[Draft]
    ) -> None:
        """Run every call of `message` in its order; each result is appended when it is there.

        The extra context that tools and seams leave is added to `context`, for after all results.
        Cancelled, the call in hand and those after it have no result yet: the turn's closing
        gives them one.
        """
        for call in tool_calls(message.content):
            outcome = await self._run_call(boundary, call)
            if outcome.context:
                source = Source("plugin", plugin=call.name)
                context.append(draft(ContextMessage(outcome.context, source)))

    async def _run_call(self, boundary: StepBoundary, call: ToolCallBlock) -> Outcome:
        view = CallView(boundary.turn, boundary.step, call.id, call.name, call.arguments)
        tool = self.tools.get(call.name)
        if tool is None:
            return await self._refuse(boundary, call, self._unknown(call.name))
        for seam in self.seams.pre_tool:
            verdict = await seam(view)
            if isinstance(verdict, Deny):
                denied = _error("ToolDenied", "DENIED", verdict.reason)
                return await self._refuse(boundary, call, denied)
        started = ToolCall(boundary.turn, boundary.step, call.id, call.name, call.arguments)
        (event,) = await self.log.append(draft(started), flush=tool.effects)
        outcome = await run_tool(tool, call.arguments)
        for after in self.seams.post_tool:
            outcome = await after(view, outcome)
        await self._append_result(boundary, call, outcome, event.seq)
        return outcome

    def _unknown(self, name: str) -> Outcome:
        known = ", ".join(self.tools) or "none"
        text = f"there is no tool named {name!r}; the tools are: {known}"
        return _error("UnknownTool", "UNKNOWN_TOOL", text)

    async def _refuse(
        self, boundary: StepBoundary, call: ToolCallBlock, outcome: Outcome
    ) -> Outcome:
        await self._append_result(boundary, call, outcome, None)
        return outcome

    async def _append_result(
        self, boundary: StepBoundary, call: ToolCallBlock, outcome: Outcome, started: int | None
    ) -> None:
        result = ToolResult(
            boundary.turn,
            boundary.step,
            call.id,
            outcome.content,
            outcome.is_error,
            outcome.error,
        )
        await self.log.append(draft(result, cites=None if started is None else (started,)))


def _error(name: str, code: str, text: str) -> Outcome:
    content: tuple[Block, ...] = (TextBlock(f"Error: {text}"),)
    return Outcome(content, is_error=True, error=ToolError(name, code))
