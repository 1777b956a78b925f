"""Twenty tasks say, ask, call off and close on one agent, in a schedule that a seed decides.

Whatever the schedule: each ask gets the turn that answers its own text and no other; each prompt is
pending, in history or taken back, and never two of these; and nothing that was taken back reaches a
model. Every text is a number of its own, so that a body shows whose it holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Call, Delay, Say, Script
from refold.actors.turn.prompt_wait import PromptRemoved
from refold.runtime.envelope import Event
from refold.runtime.errors import RuleBroken
from refold.runtime.events import InboxQueued, InboxRemoved, TurnEnd, TurnStart, UserMessage
from refold.runtime.messages import text_of
from tests.agents import assert_sound, stored_events
from tests.seeded import run_seeded

TASKS = 20

EVERY_DAY = 30
"""How many seeds run every day; the test that is slow runs a thousand."""


@refold.tool(parallel=True)
async def look(seconds: float) -> str:
    """Look for some seconds."""
    await trio.sleep(seconds)
    return "seen"


def asked(body: Any) -> list[str]:
    """The numbers of the prompts of a request, in order."""
    users = [str(one["content"]) for one in body["messages"] if one["role"] == "user"]
    return [text for text in users if re.fullmatch(r"q\d+", text)]


def answer_to(text: str) -> str:
    return f"to {text}."


@attrs.define
class Fate:
    """What came of one ask: its turn, that it was removed, or that it was left or refused."""

    text: str
    own: bool
    turn: refold.Turn | None = None


@attrs.define
class Schedule:
    """One run: what its tasks draw from, and what they were told."""

    random: Random
    runtime: refold.Runtime
    agent: refold.Agent
    said: int = 0
    seqs: list[int] = attrs.field(factory=list)
    fates: list[Fate] = attrs.field(factory=list)
    taken_back: set[int] = attrs.field(factory=set)
    counts: Counter[str] = attrs.field(factory=Counter)

    def text(self) -> str:
        self.said += 1
        return f"q{self.said}"

    async def task(self) -> None:
        """A few things that one caller does, each after a pause."""
        for _ in range(self.random.randint(1, 3)):
            pause = self.random.choice([0, 0, 0.1, 0.5, 1, 3, 8])
            for _ in range(self.random.randint(0, 6)):
                await trio.lowlevel.checkpoint()
            await trio.sleep(pause)
            deed = self.random.choices([one for one, _ in DEEDS], [often for _, often in DEEDS])[0]
            self.counts[deed.__name__] += 1
            try:
                await deed(self)
            except refold.ActorStopped:
                self.counts["closed"] += 1
                return

    async def ask(self) -> None:
        fate = self._fate()
        await self._answered(fate, self.agent.ask(fate.text, join=not fate.own))

    async def ask_for_a_while(self) -> None:
        fate = self._fate()
        with trio.move_on_after(self.random.choice([0, 0.1, 1, 4])):
            call = self.agent.ask(fate.text, join=not fate.own, cancel_turn=True)
            await self._answered(fate, call)

    async def ask_in_a_scope(self) -> None:
        fate = self._fate()
        seq: int | None = None
        with trio.move_on_after(self.random.choice([0.1, 1, 4, 20])):
            async with self.agent.asking(fate.text, join=not fate.own) as asked:
                seq = asked.seq
                self.seqs.append(seq)
                if self.random.random() < 0.2:
                    await trio.sleep(self.random.choice([0, 1]))
                else:
                    await self._answered(fate, asked.answer())
                if self.random.random() < 0.2:
                    await trio.sleep(1)
        if seq is not None:
            self._is_over(seq)

    async def ask_together(self) -> None:
        """Several wait for one prompt under a key, and leave it one after the other."""
        fate = self._fate()
        agent = self.agent

        async def wait(seconds: float) -> None:
            with trio.move_on_after(seconds):
                one = Fate(fate.text, fate.own)
                call = agent.ask(
                    fate.text, idempotency_key=fate.text, join=not fate.own, cancel_turn=True
                )
                await self._answered(one, call)
                self.fates.append(one)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait, self.random.choice([0.5, 2, 30]))

    async def prompt(self) -> None:
        fate = self._fate(own=False)
        seq = await self.agent.prompt(fate.text)
        self.seqs.append(seq)
        if self.random.random() < 0.5:
            await self._answered(fate, self.agent.answer(seq))

    async def steer(self) -> None:
        await self.agent.steer(f"left, {self.text()}")

    async def inject(self) -> None:
        await self.agent.inject("by the way")

    async def cancel(self) -> None:
        await self.agent.cancel()

    async def cancel_one(self) -> None:
        if self.seqs:
            await self.agent.cancel(self.random.choice(self.seqs))

    async def remove_one(self) -> None:
        waiting = self.agent.pending()
        if waiting:
            try:
                await self.agent.remove(self.random.choice(waiting).seq)
            except RuleBroken:
                self.counts["too late"] += 1

    async def drop(self) -> None:
        await self.agent.cancel(drop_pending=True)

    async def close(self) -> None:
        await self.agent.close()

    def _fate(self, *, own: bool | None = None) -> Fate:
        if own is None:
            own = self.random.random() < 0.8
        self.fates.append(Fate(self.text(), own))
        return self.fates[-1]

    async def _answered(self, fate: Fate, call: Awaitable[refold.Turn]) -> None:
        try:
            fate.turn = await call
        except PromptRemoved:
            self.counts["removed"] += 1
        except refold.ActorStopped:
            self.counts["closed"] += 1

    def _is_over(self, seq: int) -> None:
        """A scope that was left on an agent that lives: its prompt's end is in the store."""
        if self.agent.closed or self.agent._closed:
            return
        open_turn: set[int] | None = None
        for event in stored_events(self.runtime, self.agent.session_id):
            if isinstance(event.data, TurnStart):
                open_turn = set()
            elif isinstance(event.data, UserMessage) and open_turn is not None:
                open_turn |= set(event.source_event_seqs or ())
            over = isinstance(event.data, TurnEnd) and open_turn is not None and seq in open_turn
            over = over or (isinstance(event.data, InboxRemoved) and seq in event.data.queued_seqs)
            if over:
                assert event.seq <= self.agent.snapshot().durable_seq
                return
        raise AssertionError(f"{seq} is not over, though its scope was left")


DEEDS: list[tuple[Callable[[Schedule], Awaitable[None]], float]] = [
    (Schedule.ask, 6),
    (Schedule.ask_for_a_while, 4),
    (Schedule.ask_in_a_scope, 4),
    (Schedule.ask_together, 1),
    (Schedule.prompt, 4),
    (Schedule.steer, 2),
    (Schedule.inject, 1),
    (Schedule.cancel, 1.5),
    (Schedule.cancel_one, 2),
    (Schedule.remove_one, 1),
    (Schedule.drop, 0.5),
    (Schedule.close, 0.15),
]


async def run(random: Random) -> Counter[str]:
    def reply(body: Any) -> Any:
        last = body["messages"][-1]
        pause = Delay(random.choice([0, 0, 0.2, 1, 3]))
        if last["role"] != "tool" and random.random() < 0.3:
            return [pause, Say("I look."), Call("look", {"seconds": random.choice([0, 1])})]
        return [pause, Say(answer_to(asked(body)[-1]) if asked(body) else "well", pieces=2), pause]

    script = Script(reply)
    async with refold.open("memory:", providers=[script], park_after=2) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[look], chunks="none")
        schedule = Schedule(random, runtime, agent)
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for _ in range(TASKS):
                    nursery.start_soon(schedule.task)
            await later_lives(schedule, script)
        events = assert_sound(runtime, schedule.agent)
        check_the_log(events, script, {one.seq for one in schedule.agent.pending()})
        for fate in schedule.fates:
            check_a_fate(fate, events)
    schedule.counts["asks answered"] = sum(
        fate.turn is not None and fate.turn.reason.kind == "completed" for fate in schedule.fates
    )
    return schedule.counts


async def later_lives(schedule: Schedule, script: Script) -> None:
    """Let the agent come to rest, in another life where it was closed."""
    if not schedule.agent._closed:
        await schedule.agent.wait_idle()
        return
    await schedule.agent.close()
    left = schedule.agent.pending()
    schedule.agent = await schedule.runtime.resume(
        schedule.agent.session_id,
        model="script/m",
        tools=[look],
        continue_=schedule.random.random() < 0.5,
    )
    held = [one for one in schedule.agent.pending() if one.held]
    before = len(script.bodies)
    schedule.counts["held"] = len(held)
    await schedule.ask()
    if held:
        assert [one.seq for one in held] == [one.seq for one in left]
        sent = b"".join(script.bodies[before:])
        assert not any(f'"{one.text}"'.encode() in sent for one in held), "taken unseen"
        await schedule.agent.release()
    await schedule.agent.wait_idle()


def check_the_log(events: list[Event], script: Script, pending: set[int]) -> None:
    queued = {e.seq: e.data for e in events if isinstance(e.data, InboxQueued)}
    removed = [s for e in events if isinstance(e.data, InboxRemoved) for s in e.data.queued_seqs]
    cited: list[int] = []
    turn: list[int] = []
    for event in events:
        if isinstance(event.data, TurnStart):
            turn = []
        if event.surface_op is not None and event.source_event_seqs is not None:
            of_inbox = [seq for seq in event.source_event_seqs if seq in queued]
            cited += of_inbox
            turn += [seq for seq in of_inbox if queued[seq].kind == "prompt"]
            assert len(turn) < 2 or not any(queued[seq].own_turn for seq in turn)
    places = Counter([*removed, *cited, *pending])
    assert places == Counter(list(queued)), "each is in one place"
    for seq in removed:
        if queued[seq].kind == "prompt":
            text = f'"{text_of(queued[seq].content)}"'.encode()
            assert not any(text in body for body in script.bodies), "it was taken back"


def check_a_fate(fate: Fate, events: list[Event]) -> None:
    """The turn of an ask is its own, and what was said in it is the answer to its text."""
    if fate.turn is None:
        return
    texts = {e.seq: text_of(e.data.content) for e in events if isinstance(e.data, InboxQueued)}
    answered = [texts[seq] for seq in fate.turn.prompts]
    assert fate.text in answered
    if fate.own:
        assert answered == [fate.text]
    if fate.turn.reason.kind == "completed":
        assert fate.turn.text == answer_to([one for one in answered if one[0] == "q"][-1])


@pytest.mark.parametrize("seed", range(EVERY_DAY))
def test_every_ask_gets_its_own_answer_and_every_prompt_is_in_one_place(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_seeded(run, seed, monkeypatch)


@pytest.mark.slow
def test_a_thousand_schedules(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = Counter[str]()
    for seed in range(1000):
        try:
            counts += run_seeded(run, seed, monkeypatch)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    with capsys.disabled():
        print(f" {dict(counts)}")  # noqa: T201 - how much of everything there was
    assert counts["asks answered"] > 5000
    assert min(counts[deed.__name__] for deed, _ in DEEDS) > 50
