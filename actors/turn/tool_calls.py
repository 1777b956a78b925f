"""The tool calls of one step: seams, start, body, result.

What the log says of a call is what became of it, whatever happens beside it:

- `tool/call` stands in the log when the body is about to start, and not before there is a place for
  it; a body with effects starts once it is durable;
- a body that has ended has its result, also where a seam fails over it; one that is cancelled while
  a seam looks at its outcome is told as cut, since what the seam would have made of it is unknown;
- a result is committed when it is there, and goes to disk at once while a neighbour still runs;
- an error of a seam ends the turn, and first lets the neighbours finish that run already.

Results may come in any order. The model is shown them in the order of the calls, which is the wire
format's affair and not the log's.
"""

from __future__ import annotations

import logging
from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from refold.actors.context import Context, Setting
from refold.actors.kernel import open_flat_nursery
from refold.actors.log.session_log import Committed, SessionLog, StepBoundary
from refold.actors.tools import Abandoned, CallPlace, Outcome, Tool, run_tool
from refold.actors.turn.consult import consult
from refold.actors.turn.seams import CallView, Deny, Seams
from refold.runtime.closing import NOT_STARTED
from refold.runtime.envelope import Draft, draft
from refold.runtime.events import AssistantMessage, ContextMessage, ToolCall, ToolError, ToolResult
from refold.runtime.messages import Block, Source, TextBlock, tool_calls
from refold.runtime.storage.errors import LogFailed

_log = logging.getLogger("refold")

SIDE_BY_SIDE = 8
"""How many parallel-safe calls of one step run at once."""

KEEP_SECONDS = 5.0
"""How long the log may take to commit the result of a call that is over."""


@attrs.frozen
class _Call:
    """One call of the step; `place` counts those before it."""

    place: int
    view: CallView


@attrs.frozen
class _Started:
    """A call whose `tool/call` stands in the log."""

    call: _Call
    tool: Tool
    committed: Committed

    @property
    def seq(self) -> int:
        return self.committed.events[0].seq


@attrs.frozen
class _Context:
    """The step's extra context, in the order of the calls that it came with."""

    drafts: list[Draft]
    places: list[int] = attrs.field(factory=list)

    def add(self, place: int, made: Draft) -> None:
        at = bisect(self.places, place)
        self.places.insert(at, place)
        self.drafts.insert(at, made)


@attrs.define
class _Group:
    """Calls that may run side by side; `unfinished` have no result yet.

    `failures` are the errors of seams: after the first no further call is started.
    """

    unfinished: int
    failures: list[Exception] = attrs.field(factory=list)


@attrs.frozen
class ToolRunner:
    """Runs the calls that one agent's model asks for.

    `abandoned` counts threads that outlived their call and whose late results were discarded.
    """

    log: SessionLog
    tools: Mapping[str, Tool]
    seams: Seams
    setting: Setting
    abandoned: Abandoned = attrs.field(factory=Abandoned)

    async def run(
        self, boundary: StepBoundary, message: AssistantMessage, context: list[Draft]
    ) -> None:
        """Run every call of `message`; each result is appended when it is there.

        Neighbours that are parallel-safe overlap, all others run in their order. The extra
        context that tools and seams leave is added to `context`, for after all results. Raises
        the first error of a seam once what was running has its result. Cancelled, calls that were
        cut or never began get no result here: the turn's closing gives them one.
        """
        place_of = (boundary.session, boundary.turn, boundary.step)
        calls = [
            _Call(place, CallView(*place_of, block.id, block.name, block.arguments))
            for place, block in enumerate(tool_calls(message.content))
        ]
        extra = _Context(context)
        for neighbours in self._neighbours(calls):
            await self._run_group(neighbours, extra)

    def _neighbours(self, calls: Sequence[_Call]) -> list[list[_Call]]:
        groups: list[list[_Call]] = []
        open_group = False
        for call in calls:
            tool = self.tools.get(call.view.name)
            parallel = tool is not None and tool.parallel
            if parallel and open_group:
                groups[-1].append(call)
            else:
                groups.append([call])
            open_group = parallel
        return groups

    async def _run_group(self, calls: Sequence[_Call], extra: _Context) -> None:
        group = _Group(len(calls))
        if len(calls) > 1:
            await self._run_together(calls, group, extra)
        else:
            started = await self._start(calls[0], group)
            if started is not None:
                await self._finish(started, group, extra)
        for further in group.failures[1:]:
            _log.error("a second seam failed beside the first", exc_info=further)
        if group.failures:
            raise group.failures[0]

    async def _run_together(self, calls: Sequence[_Call], group: _Group, extra: _Context) -> None:
        """Start each call in its turn, once there is a place for it, and wait for all."""
        places = trio.Semaphore(SIDE_BY_SIDE)

        @enable_ki_protection
        async def finish(started: _Started) -> None:
            committed = await self._finish(started, group, extra)
            places.release()
            if committed.durable is not None:
                await committed.durable.wait()

        async with open_flat_nursery() as nursery:
            for call in calls:
                await places.acquire()
                if group.failures:
                    break
                started = await self._start(call, group)
                if started is not None:
                    nursery.start_soon(finish, started)
                else:
                    places.release()

    async def _start(self, call: _Call, group: _Group) -> _Started | None:
        """Log a call as started; None for one that is refused, or where a seam has failed."""
        refusal: Outcome | None = None
        try:
            refusal = await self._refusal(call.view)
        except Exception as error:  # noqa: BLE001 - raised when the neighbours are done
            group.failures.append(error)
        if group.failures:
            return None
        if refusal is not None:
            group.unfinished -= 1
            await self.log.append(_result(call, refusal, None))
            return None
        view, tool = call.view, self.tools[call.view.name]
        started = ToolCall(view.turn, view.step, view.call_id, view.name, view.arguments)
        return _Started(call, tool, await self.log.commit(draft(started), flush=tool.effects))

    async def _refusal(self, view: CallView) -> Outcome | None:
        """Why a call may not start, as the outcome that it has then."""
        if view.name not in self.tools:
            known = ", ".join(self.tools) or "none"
            text = f"there is no tool named {view.name!r}; the tools are: {known}"
            return _error("UnknownTool", "UNKNOWN_TOOL", text)
        for seam in self.seams.pre_tool:
            verdict = await consult("pre_tool", seam, self._context(view), view)
            if isinstance(verdict, Deny):
                return _error("ToolDenied", "DENIED", verdict.reason)
        return None

    async def _finish(self, started: _Started, group: _Group, extra: _Context) -> Committed:
        """Body and seams of a started call; returns its result, on its way to disk if need be."""
        call, view = started.call, started.call.view
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if started.committed.durable is not None:
                await started.committed.durable.wait()
        except trio.Cancelled:
            await self._commit_result(_result(call, _NEVER_STARTED, started.seq), flush=False)
            raise
        place = CallPlace(view.session, view.call_id, partial(self._context, view))
        outcome = await run_tool(started.tool, view.arguments, self.abandoned, place)
        result, context = _result(call, outcome, started.seq), _context(call, outcome)
        if outcome.error is not None and outcome.error.code == "ABORTED":
            # It did not stop when the turn was cancelled. The turn's closing does not know that.
            return await self._commit_result(result, flush=False)
        try:
            for seam in self.seams.post_tool:
                outcome = await consult("post_tool", seam, self._context(view), view, outcome)
                # An outcome that no log can hold is the seam's error; the one before it stands.
                result, context = _result(call, outcome, started.seq), _context(call, outcome)
        except Exception as error:  # noqa: BLE001 - raised when the neighbours are done
            group.failures.append(error)
        group.unfinished -= 1
        if context is not None:
            extra.add(call.place, context)
        return await self._commit_result(result, flush=group.unfinished > 0)

    def _context(self, view: CallView) -> Context:
        return self.setting.context(view.turn, view.step, view.call_id)

    async def _commit_result(self, result: Draft, *, flush: bool) -> Committed:
        """Commit the result of a call that is over, cancelled or not."""
        with trio.move_on_after(KEEP_SECONDS, shield=True):
            return await self.log.commit(result, flush=flush)
        durable = self.log.live.durable_seq
        raise LogFailed(self.log.session_id, f"no answer in {KEEP_SECONDS:g} s", durable)


def _result(call: _Call, outcome: Outcome, started: int | None) -> Draft:
    """The `tool/result`; raises what makes it one that no log can hold."""
    view = call.view
    content, error = outcome.content, outcome.error
    made = ToolResult(view.turn, view.step, view.call_id, content, outcome.is_error, error)
    return draft(made, cites=None if started is None else (started,))


def _context(call: _Call, outcome: Outcome) -> Draft | None:
    if not outcome.context:
        return None
    return draft(ContextMessage(outcome.context, Source("plugin", plugin=call.view.name)))


def _error(name: str, code: str, text: str) -> Outcome:
    content: tuple[Block, ...] = (TextBlock(f"Error: {text}"),)
    return Outcome(content, is_error=True, error=ToolError(name, code))


_NEVER_STARTED = Outcome(
    (TextBlock(NOT_STARTED),), is_error=True, error=ToolError("ToolAborted", "NOT_STARTED")
)
"""Of a call that was logged as started and cancelled before its body could begin."""
