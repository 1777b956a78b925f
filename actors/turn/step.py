"""One step of a turn: what one model call needs, in the one right order.

Input is judged before anything is claimed, history may be rewritten until the boundary is taken,
and the header is owed after it (docs/design/actors.md, "One step").
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, TypeAlias

from refold.actors.context import Context, Setting
from refold.actors.kernel import ActorCrashed, ActorStopped
from refold.actors.log.session_log import SessionLog, StepBoundary
from refold.actors.request.answer_writer import Answer
from refold.actors.request.dispatch import Dispatch
from refold.actors.turn.claims import AllRejected, DueEntries
from refold.actors.turn.consult import consult
from refold.actors.turn.options import Options
from refold.actors.turn.seams import GoOn, StartSource, StepView, TurnView
from refold.actors.turn.tool_calls import ToolRunner
from refold.runtime import typed_json
from refold.runtime.envelope import Draft, draft
from refold.runtime.errors import Broken, RuleBroken
from refold.runtime.events import AssistantMessage, InboxQueued
from refold.runtime.json import said_by
from refold.runtime.messages import Message, Source, TextBlock, tool_calls
from refold.runtime.request_header import EpochHeader, RequestHeader
from refold.runtime.stream.failures import Failure, LlmFailure

HeaderReason: TypeAlias = Literal["initial", "resume", "change"]

GoesOn: TypeAlias = Literal["yes", "no", "stopped"]
"""Whether a turn takes another step; `stopped` when `turn_stop` ended it for good."""


class LoopInstance:
    """One life of an agent loop over a session.

    Its only private state: the frozen session prefix, and what it did once already. Everything
    else is read from the log.
    """

    def __init__(
        self,
        log: SessionLog,
        dispatch: Dispatch,
        options: Options,
        source: StartSource,
        setting: Setting,
    ) -> None:
        self.log, self.dispatch, self.options = log, dispatch, options
        self._setting = setting
        tools = {tool.name: tool for tool in options.tools}
        self.runner = ToolRunner(log, tools, options.seams, setting)
        self.due = DueEntries(log, options.seams, setting)
        self._source: StartSource | None = source
        self._prefix: tuple[Message, ...] | None = None
        self._anchored = False

    async def step(self, turn: int, context: list[Draft], mine: frozenset[int] | None) -> Answer:
        """One model call and its tool calls; all but `step/end` is appended when it returns.

        `mine` are the entries that the turn is for, in its first step; None in one that takes no
        prompt. Extra context of tools is added to `context` as it
        comes, for after all results. Raises `AllRejected`, `LlmFailure`, `InvariantViolation`,
        and what a seam or an append raises; before the step is open, that takes the prompts of the
        turn out of the inbox, since its end is theirs.
        """
        waiting = self.log.live.waiting.items() if mine else ()
        prompts = {s: one for s, one in waiting if s in (mine or ()) and one.target == "turn"}
        try:
            boundary, prefix = await self._open(turn, mine)
        except AllRejected:
            raise
        except Exception as error:
            with suppress(Broken, ActorCrashed, ActorStopped):  # the error says more
                await self.due.block(prompts, said_by(error))
            raise
        await self._owe_header(prefix, self._setting.context(turn, boundary.step))
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
        seams, log, session = self.options.seams, self.log, self.log.session_id
        context, step = self._setting.context(turn, message.step), message.step
        going_on = bool(tool_calls(message.content)) or self._waits()
        for seam in seams.turn_continuation:
            view = TurnView(self._setting.log, session, turn, step, message, going_on)
            verdict = await consult("turn_continuation", seam, context, view)
            if isinstance(verdict, GoOn) and self._may_step():
                source = Source("plugin", plugin="turn_continuation")
                entry = InboxQueued("step", "steer", (TextBlock(verdict.text),), source)
                await log.append(draft(entry))
            going_on = going_on if verdict is None else isinstance(verdict, GoOn)
        going_on = going_on or self._waits()
        for stop in seams.turn_stop:
            view = TurnView(self._setting.log, session, turn, step, message, going_on)
            if await consult("turn_stop", stop, context, view):
                return "stopped"
        return "yes" if going_on else "no"

    def _may_step(self) -> bool:
        # Steering that a spent turn leaves starts the next turn: a seam would go on for ever.
        tally = self.log.live.answers.current
        return tally is None or self.options.budgets.spent(tally) is None

    def _waits(self) -> bool:
        return any(entry.target == "step" for entry in self.log.live.waiting.values())

    async def _open(
        self, turn: int, mine: frozenset[int] | None
    ) -> tuple[StepBoundary, tuple[Message, ...]]:
        """Judge the input, let seams have their say, and take the boundary; with it the prefix."""
        options, source = self.options, self._source
        self._source = None
        log, context = self._setting.log, self._setting.context(turn)
        for start in options.seams.session_start if source is not None else ():
            await consult("session_start", start, context, log, source)
        claims = await self.due.claims(turn, mine)
        if self._prefix is None:
            composed: list[Message] = []
            for prefix in options.seams.session_prefix:
                composed += await consult("session_prefix", prefix, context, log)
            self._prefix = tuple(composed)
        shown = (options.system, options.schemas(), self._prefix, claims)
        view = StepView(log, self.log.session_id, turn, *shown)
        for seam in options.seams.pre_step:
            await consult("pre_step", seam, context, view)
        while True:
            try:
                return await self.log.open_step(turn, claims), self._prefix
            except RuleBroken:  # somebody took an entry back meanwhile
                left = self.due.still_pending(claims)
                if left == claims:
                    raise
                claims = left

    async def _owe_header(self, prefix: tuple[Message, ...], context: Context) -> None:
        """Write the header that is owed: always the instance's first, later only a changed one."""
        folded = self.log.live.session.header
        config = folded.config if self._anchored and folded is not None else self.options.config
        for seam in self.options.seams.request:
            config = await consult("request", seam, context, config)
        header = EpochHeader(config, self.options.system, self.options.schemas(), prefix)
        folded = self.log.live.session.header
        reason: HeaderReason = "change"
        if not self._anchored:
            reason = "initial" if folded is None else "resume"
        elif typed_json.canonical(header) == typed_json.canonical(folded):
            return
        made = draft(RequestHeader(header, reason))
        self.dispatch.check(header)  # one that no request can hold must not be logged
        await self.log.append(made)
        self._anchored = True
