"""The tool calls of one step: seams, start, body, result (design 3.4, steps 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors.kernel import open_flat_nursery
from actors.seams import CallView, Deny, Seams
from actors.session_log import SessionLog, StepBoundary
from actors.tools import Abandoned, Outcome, Tool, run_tool
from runtime.envelope import Draft, draft
from runtime.events import AssistantMessage, ContextMessage, ToolCall, ToolError, ToolResult
from runtime.messages import Block, Source, TextBlock, ToolCallBlock, tool_calls

SIDE_BY_SIDE = 8
"""How many parallel-safe calls of one step run at once."""

KEEP_SECONDS = 5.0
"""How long it may take to write down that a cancelled call did not stop."""


@attrs.frozen
class _Started:
    """A call whose `tool/call` stands in the log."""

    call: ToolCallBlock
    view: CallView
    tool: Tool
    seq: int


@attrs.frozen
class ToolRunner:
    """Runs the calls that one agent's model asks for.

    `abandoned` counts threads that outlived their call and whose late results were discarded.
    """

    log: SessionLog
    tools: Mapping[str, Tool]
    seams: Seams
    abandoned: Abandoned = attrs.field(factory=Abandoned)

    async def run(
        self, boundary: StepBoundary, message: AssistantMessage, context: list[Draft]
    ) -> None:
        """Run every call of `message`; each result is appended when it is there.

        Neighbours that are parallel-safe overlap, all others run in their order. The extra
        context that tools and seams leave is added to `context`, for after all results.
        Cancelled, calls that have no result yet get none here: the turn's closing gives them one.
        """
        for group in self._groups(tool_calls(message.content)):
            if len(group) == 1:
                started = await self._start(boundary, group[0], flush=True)
                if started is not None:
                    await self._finish(boundary, started, context)
            else:
                await self._run_together(boundary, group, context)

    def _groups(self, calls: tuple[ToolCallBlock, ...]) -> list[list[ToolCallBlock]]:
        groups: list[list[ToolCallBlock]] = []
        open_group = False
        for call in calls:
            tool = self.tools.get(call.name)
            parallel = tool is not None and tool.parallel
            if parallel and open_group:
                groups[-1].append(call)
            else:
                groups.append([call])
            open_group = parallel
        return groups

    async def _run_together(
        self, boundary: StepBoundary, calls: list[ToolCallBlock], context: list[Draft]
    ) -> None:
        started = [await self._start(boundary, call, flush=False) for call in calls]
        running = [one for one in started if one is not None]
        if any(one.tool.effects for one in running):
            await self.log.flush()
        limit = trio.CapacityLimiter(SIDE_BY_SIDE)

        @enable_ki_protection
        async def finish(one: _Started) -> None:
            async with limit:
                await self._finish(boundary, one, context)

        async with open_flat_nursery() as nursery:
            for one in running:
                nursery.start_soon(finish, one)

    async def _start(
        self, boundary: StepBoundary, call: ToolCallBlock, *, flush: bool
    ) -> _Started | None:
        """Log a call as started, durable before a body with effects; None for a refused one."""
        view = CallView(boundary.turn, boundary.step, call.id, call.name, call.arguments)
        tool = self.tools.get(call.name)
        if tool is None:
            await self._append_result(boundary, call, self._unknown(call.name), None)
            return None
        for seam in self.seams.pre_tool:
            verdict = await seam(view)
            if isinstance(verdict, Deny):
                denied = _error("ToolDenied", "DENIED", verdict.reason)
                await self._append_result(boundary, call, denied, None)
                return None
        started = ToolCall(boundary.turn, boundary.step, call.id, call.name, call.arguments)
        (event,) = await self.log.append(draft(started), flush=flush and tool.effects)
        return _Started(call, view, tool, event.seq)

    async def _finish(
        self, boundary: StepBoundary, started: _Started, context: list[Draft]
    ) -> None:
        outcome = await run_tool(
            started.tool, started.call.arguments, self.abandoned, session=self.log.session_id
        )
        if outcome.error is not None and outcome.error.code == "ABORTED":
            # It did not stop when the turn was cancelled. The turn's closing does not know that.
            with trio.move_on_after(KEEP_SECONDS, shield=True):
                await self._append_result(boundary, started.call, outcome, started.seq)
            return
        for seam in self.seams.post_tool:
            outcome = await seam(started.view, outcome)
        await self._append_result(boundary, started.call, outcome, started.seq)
        if outcome.context:
            source = Source("plugin", plugin=started.call.name)
            context.append(draft(ContextMessage(outcome.context, source)))

    def _unknown(self, name: str) -> Outcome:
        known = ", ".join(self.tools) or "none"
        text = f"there is no tool named {name!r}; the tools are: {known}"
        return _error("UnknownTool", "UNKNOWN_TOOL", text)

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
