"""The log writer: indivisible boundaries, reentrancy, batches that are whole or absent."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

import refold
from refold import Script
from refold.actors.kernel import ActorCrashed, Mail, open_supervisor
from refold.actors.log.live_log import LiveLog
from refold.actors.log.log_writer import _Writer
from refold.actors.log.session_log import Claim, SessionLog
from refold.actors.request.script import Call, Say
from refold.actors.stores import Grant, Store, open_store
from refold.runtime.envelope import Draft, Event, draft
from refold.runtime.errors import ReentrantAppend, RuleBroken
from refold.runtime.events import (
    ContextMessage,
    EndReason,
    InboxQueued,
    InboxRemoved,
    Owner,
    StepEnd,
    TodoWrite,
    Trigger,
    TurnEnd,
    TurnStart,
    UserMessage,
)
from refold.runtime.messages import USER, Source, TextBlock, text_of
from refold.runtime.request import rebuild_request
from refold.runtime.storage.errors import LogFailed
from refold.runtime.storage.session_header import SessionHeader
from tests.agents import assert_within_rules, read_events, read_file, start_writer, stored_events

TODO = draft(TodoWrite(()))
OWNER = Owner("test", 1, "boot")


def said(text: str) -> tuple[TextBlock]:
    return (TextBlock(text),)


def prompt(text: str) -> Draft:
    return draft(InboxQueued("turn", "prompt", said(text), USER))


@asynccontextmanager
async def writing(store: Store, session_id: str = "s") -> AsyncIterator[SessionLog]:
    """A log writer of its own on a store, with a clock that stands at 7."""
    known = session_id in await store.list()
    header = SessionHeader(session_id, 0)
    grant = await (store.acquire(session_id) if known else store.create(header))
    live = LiveLog(session_id, grant.header.seed_length or 0)
    async with open_supervisor(session_id) as tree:
        yield await start_writer(tree, live=live, grant=grant, owner=OWNER, clock=lambda: 7)


def stored(store: Store) -> list[Event]:
    return read_events(store, "s")


async def test_open_step_is_one_batch_of_claims_and_boundary() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        first, _ = await log.append(prompt("hi"), draft(TurnStart(1, Trigger("message", USER))))
        claim = Claim(first.seq, UserMessage(said("hi"), USER))
        boundary = await log.open_step(1, (claim,))
        records = store.reader("s").read_new()
        message, start = records[-2:]
        assert (message.type, message.left) == ("user/message", 1)
        assert (start.type, start.left, start.seq) == ("step/start", 0, boundary.seq)
        assert log.live.rules.inbox.pending == {}


async def test_a_batch_with_one_refused_draft_leaves_nothing_behind() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        await log.append(draft(TurnStart(1, Trigger("message", USER))), prompt("one"))
        before = (log.live.session.next_seq, dict(log.live.rules.inbox.pending))
        bad = draft(StepEnd(1, 1))
        taken = draft(InboxRemoved((2,), "cancelled"))
        with pytest.raises(RuleBroken) as refused:
            await log.append(prompt("two"), taken, draft(UserMessage(said("x"), USER)), bad)
        assert refused.value.rule == 1
        assert (log.live.session.next_seq, dict(log.live.rules.inbox.pending)) == before
        assert log.live.session.derive_messages() == ()
        await log.append(draft(TurnEnd(1, EndReason("completed"))))
    assert [event.type for event in stored(store)][before[0] :] == ["turn/end", "session/released"]


async def test_an_append_from_an_observer_raises_at_once_and_the_outer_append_stands() -> None:
    store = open_store("memory:")
    caught: list[ReentrantAppend] = []
    async with writing(store) as log:

        def observer(_event: Event) -> None:
            try:
                log.append(TODO)  # pyright: ignore[reportUnusedCoroutine] - it raises at the call
            except ReentrantAppend as reentrant:
                caught.append(reentrant)

        stop = log.observe(observer)
        (event,) = await log.append(prompt("outer"))
        assert event.type == "inbox/queued"
        assert len(caught) == 2  # session/owner, published with the first batch, and the prompt
        stop()
        await log.append(TODO)
    assert [event.type for event in stored(store)] == [
        "session/owner",
        "inbox/queued",
        "todo/write",
        "session/released",
    ]


async def test_an_observers_error_is_contained_counted_and_keeps_later_observers() -> None:
    seen: list[int] = []
    async with writing(open_store("memory:")) as log:

        def broken(_event: Event) -> None:
            raise LookupError("on purpose")

        log.observe(broken)
        log.observe(lambda event: seen.append(event.seq))
        await log.append(TODO, TODO)
        assert log.live.feed.observer_errors == 3
    assert seen == [0, 1, 2, 3]  # the last says that the log is given back


@pytest.mark.parametrize("seed", range(10))
async def test_appends_raced_against_open_step_land_wholly_before_or_after(seed: int) -> None:
    """From many tasks: log-only ones land anywhere, surface ones before it or are refused."""
    rng = random.Random(seed)
    script = Script([[Call("race", {})], Say("done")])
    outcomes: dict[str, list[int]] = {"surface": [], "log": [], "refused": []}

    async with refold.open("memory:", providers=[script]) as runtime:

        async def racer(kind: str, delay: int) -> None:
            for _ in range(delay):
                await trio.lowlevel.checkpoint()
            made = TODO
            if kind == "surface":
                source = Source("plugin", plugin="racer")
                made = draft(ContextMessage(said(f"raced {delay}"), source))
            try:
                (event,) = await agent.log.append(made)
                outcomes[kind].append(event.seq)
            except RuleBroken as refused:
                outcomes["refused"].append(refused.rule)

        async def start_race(_view: refold.StepView) -> None:
            for _ in range(12):
                kind = rng.choice(["surface", "log"])
                nursery.start_soon(racer, kind, rng.randrange(30))

        @refold.tool
        async def race() -> str:
            """Nothing."""
            return "ran"

        async with trio.open_nursery() as nursery:
            seams = refold.Seams(pre_step=(start_race,))
            agent = await runtime.start_agent(
                model="script/m", seams=seams, tools=[race], invariants="full"
            )
            turn = await agent.ask("go")
        assert turn.reason.kind in ("completed", "error"), turn.reason
        events = stored_events(runtime, agent.session_id)

    boundaries = [event.seq for event in events if event.type == "step/start"]
    assert len(script.bodies) == len(boundaries) == 2
    for boundary, body in zip(boundaries, script.bodies, strict=True):
        raced = [
            text_of(event.data.content)
            for event in events[:boundary]
            if isinstance(event.data, ContextMessage)
        ]
        assert body.count(b"raced ") == len(raced)
        assert rebuild_request(events, boundary).messages
    assert set(outcomes["refused"]) <= {4}
    assert sum(map(len, outcomes.values())) == 24


async def test_every_draft_of_raced_batches_is_adjacent_to_its_siblings() -> None:
    store = open_store("memory:")

    async def batch(name: str) -> None:
        await log.append(*(prompt(f"{name} {number}") for number in range(3)))

    async with writing(store) as log, trio.open_nursery() as nursery:
        for name in "abcdefgh":
            nursery.start_soon(batch, name)
    texts = [text_of(event.data.content) for event in stored(store)[1:-1]]
    for at in range(0, len(texts), 3):
        name = texts[at][0]
        assert texts[at : at + 3] == [f"{name} 0", f"{name} 1", f"{name} 2"]


async def test_a_cancelled_append_did_not_happen_or_has_its_events() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        with trio.CancelScope() as scope:
            scope.cancel(reason="test")
            await log.append(TODO)
        assert scope.cancelled_caught
        assert log.live.session.next_seq == 0


@attrs.define
class HeldGrant:
    """A grant whose syncs wait until the test lets them go, and can be made to fail."""

    inner: Grant
    go: trio.Event = attrs.field(factory=trio.Event)
    syncs: int = 0
    broken: bool = False
    failure: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def sync(self) -> int:
        await self.go.wait()
        self.syncs += 1
        if self.broken:
            self.failure.set()
            raise LogFailed("the disk", "EIO", -1)
        return await self.inner.sync()

    async def failed(self) -> LogFailed:
        await self.failure.wait()
        return LogFailed("the disk", "EIO", -1)


async def test_flushes_that_wait_together_share_one_sync_and_appends_go_on_meanwhile() -> None:
    store = open_store("memory:")
    held: Any = HeldGrant(await store.create(SessionHeader("s", 0)))
    live = LiveLog("s", 0)
    async with open_supervisor("s") as tree:
        log = await start_writer(tree, live=live, grant=held, owner=OWNER, clock=lambda: 7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: log.append(TODO, flush=True))
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5):
                nursery.start_soon(lambda: log.append(TODO, flush=True))
            await trio.testing.wait_all_tasks_blocked()
            (event,) = await log.append(TODO)
            assert event.seq == 7
            assert live.durable_seq == -1
            held.go.set()
        assert held.syncs <= 3
        assert live.durable_seq >= 6


async def test_a_cancelled_flush_withdraws_nothing() -> None:
    store = open_store("memory:")
    held: Any = HeldGrant(await store.create(SessionHeader("s", 0)))
    live = LiveLog("s", 0)
    async with open_supervisor("s") as tree:
        log = await start_writer(tree, live=live, grant=held, owner=OWNER, clock=lambda: 7)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: log.append(TODO, flush=True))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel(reason="test")
        assert live.session.next_seq == 2
        held.go.set()
        assert await log.flush() == 1
    types = [event.type for event in stored(store)]
    assert types == ["session/owner", "todo/write", "session/released"]


async def test_a_failed_sync_fails_whoever_waits_and_ends_the_writer() -> None:
    store = open_store("memory:")
    held: Any = HeldGrant(await store.create(SessionHeader("s", 0)), broken=True)
    held.go.set()
    live = LiveLog("s", 0)
    with pytest.raises(LogFailed):
        async with open_supervisor("s") as tree:
            log = await start_writer(tree, live=live, grant=held, owner=OWNER, clock=lambda: 7)
            with trio.CancelScope(shield=True):
                with pytest.raises(LogFailed):
                    await log.append(TODO, flush=True)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(ActorCrashed) as crashed:
                    await log.append(TODO)
                assert isinstance(crashed.value.__cause__, LogFailed)
    assert held.syncs == 1


async def test_a_reopened_log_goes_on_with_the_next_term() -> None:
    store = open_store("memory:")
    for _ in range(3):
        async with writing(store) as log:
            await log.append(TODO)
    owners = [event.data.term for event in stored(store) if event.type == "session/owner"]
    assert owners == [1, 2, 3]
    assert_within_rules(stored(store))


async def test_a_text_turn_costs_six_asks_and_two_syncs_and_a_header_one_ask_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks: list[str] = []
    handle = _Writer.handle

    def counted(writer: _Writer, mail: Mail[Any]) -> None:
        asks.append(type(mail.message).__name__)
        handle(writer, mail)

    monkeypatch.setattr(_Writer, "handle", counted)
    script = Script([Say("one"), Say("two")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[read_file])
        await agent.ask("first")
        assert len(asks) == 7
        asks.clear()
        durable = []
        agent.log.observe(lambda _event: durable.append(agent.log.live.durable_seq))
        await agent.ask("second")
        assert asks == ["Queue", "Append", "BeginStep", "Append", "Append", "Append"]
        assert len(set(durable)) == 2, "the mark moves once while the turn runs, once at its end"
