"""Restarts, backoff and escalation to the exact virtual instant; every ask ends."""

from __future__ import annotations

import math
import random

import attrs
import pytest
import trio
import trio.testing

from refold.actors.kernel import (
    ActorCrashed,
    ActorStopped,
    Ask,
    AskCycle,
    Mailbox,
    Ref,
    RestartLimit,
    Spec,
    open_supervisor,
)
from tests.seeded import run_seeded


class Doer:
    """Stands for the actors of these tests in the types of what they are sent."""


@attrs.frozen
class Do(Ask[Doer, str]):
    """What the actor of these tests does with a message: answer, or break, or take its time."""

    deed: str
    seconds: float = 0


async def doer(mailbox: Mailbox[Do], *, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    async for mail in mailbox:
        if mail.message.seconds:
            await trio.sleep(mail.message.seconds)
        if mail.message.deed == "crash":
            raise LookupError("on purpose")
        if mail.message.deed == "finish":
            mail.answer("finished")
            return
        mail.answer(mail.message.deed)


def no_jitter() -> float:
    return 0.0


async def test_a_crashed_child_comes_back_after_a_backoff_that_doubles(
    autojump_clock: trio.testing.MockClock,
) -> None:
    started: list[float] = []

    async def fragile(mailbox: Mailbox[Do], *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        started.append(trio.current_time())
        if len(started) < 4:
            raise LookupError("on purpose")
        async for mail in mailbox:
            mail.answer(mail.message.deed)

    begin = trio.current_time()
    async with open_supervisor("tree", jitter=no_jitter) as tree:
        spec = Spec("fragile", restart="on-failure", backoff=(1.0, 3.0))
        ref = await tree.start(fragile, spec=spec)
        assert await ref.ask(Do("hello")) == "hello"
    assert [at - begin for at in started] == [0.0, 1.0, 3.0, 6.0]  # 1, then 2, then 4 capped at 3


async def test_too_many_crashes_in_the_window_escalate_with_the_last_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begin = trio.current_time()
    with pytest.raises(RestartLimit) as gave_up:
        async with open_supervisor("tree", jitter=no_jitter) as tree:
            spec = Spec("doer", restart="on-failure", limit=2, backoff=(5.0, 5.0))
            ref = await tree.start(doer, spec=spec)
            for _ in range(2):
                with pytest.raises(ActorCrashed):
                    await ref.ask(Do("crash"))
            with pytest.raises(ActorCrashed) as last:
                await ref.ask(Do("crash"))
            assert isinstance(last.value.__cause__, LookupError | RestartLimit)
            await trio.sleep_forever()
    assert isinstance(gave_up.value.__cause__, LookupError)
    assert trio.current_time() - begin == 10.0
    assert "more than 2 times in 60 s" in str(gave_up.value)


async def test_crashes_outside_the_window_are_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_supervisor("tree", jitter=no_jitter) as tree:
        spec = Spec("doer", restart="on-failure", limit=1, period=10.0, backoff=(1.0, 1.0))
        ref = await tree.start(doer, spec=spec)
        for _ in range(5):
            with pytest.raises(ActorCrashed):
                await ref.ask(Do("crash", seconds=9.5))
        assert tree.snapshot()[0].restarts == 5


@pytest.mark.parametrize(("jitter", "wait"), [(0.0, 4.0), (0.5, 3.0), (1.0, 2.0)])
async def test_jitter_spreads_a_wait_between_half_and_the_whole_of_it(
    jitter: float, wait: float, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_supervisor("tree", jitter=lambda: jitter) as tree:
        spec = Spec("doer", restart="on-failure", backoff=(4.0, 4.0))
        ref = await tree.start(doer, spec=spec)
        with pytest.raises(ActorCrashed):
            await ref.ask(Do("crash"))
        begin = trio.current_time()
        assert await ref.ask(Do("back")) == "back"
        assert trio.current_time() - begin == wait


async def test_a_child_that_finished_is_not_restarted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_supervisor("tree", jitter=no_jitter) as tree:
        ref = await tree.start(doer, spec=Spec("doer", restart="on-failure"))
        assert await ref.ask(Do("finish")) == "finished"
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ActorStopped):
            await ref.ask(Do("again"))


async def test_the_message_in_hand_fails_and_the_rest_waits_for_the_restarted_actor(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outcomes: dict[str, str] = {}

    async def send(ref: Ref[Do], deed: str) -> None:
        try:
            outcomes[deed] = await ref.ask(Do(deed, seconds=1))
        except ActorCrashed:
            outcomes[deed] = "crashed"

    async with open_supervisor("tree", jitter=no_jitter) as tree:
        ref = await tree.start(doer, spec=Spec("doer", restart="on-failure"))
        async with trio.open_nursery() as senders:
            for deed in ("first", "crash", "second", "third"):
                senders.start_soon(send, ref, deed)
                await trio.testing.wait_all_tasks_blocked()
    assert outcomes == {
        "first": "first",
        "crash": "crashed",
        "second": "second",
        "third": "third",
    }


async def test_stopping_during_a_backoff_does_not_wait_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    begin = trio.current_time()
    async with open_supervisor("tree", jitter=no_jitter) as tree:
        spec = Spec("doer", restart="on-failure", backoff=(1000.0, 1000.0), shutdown=2.0)
        ref = await tree.start(doer, spec=spec)
        with pytest.raises(ActorCrashed):
            await ref.ask(Do("crash"))
    assert trio.current_time() - begin == 2.0


@attrs.frozen
class Forward(Ask[Doer, str]):
    """Ask the others in turn, the first of them first."""

    route: tuple[Ref[Forward], ...]


async def forwarder(mailbox: Mailbox[Forward], *, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    async for mail in mailbox:
        first, rest = mail.message.route[0], mail.message.route[1:]
        try:
            answer: str = await first.ask(Forward(rest)) if rest else "end"
            mail.answer(answer)
        except AskCycle as cycle:
            mail.fail(cycle)


async def test_an_ask_cycle_raises_at_once_and_names_the_way() -> None:
    async with open_supervisor("tree") as tree:
        a = await tree.start(forwarder, spec=Spec("a"))
        b = await tree.start(forwarder, spec=Spec("b"))
        with trio.fail_after(1), pytest.raises(AskCycle) as cycle:
            await a.ask(Forward((b, a, b, a)))
        assert cycle.value.chain == ("tree/a", "tree/b", "tree/a")
        assert await a.ask(Forward((b,))) == "end"


async def test_tells_that_nobody_took_are_counted() -> None:
    async def deaf(_mailbox: Mailbox[Do], *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async with open_supervisor("tree") as tree:
        ref = await tree.start(deaf, spec=Spec("deaf", shutdown=0))
        ref.tell_nowait(Do("one"))
        ref.tell_nowait(Do("two"))
    assert tree.snapshot()[0].lost == 2


async def test_a_snapshot_tells_state_queue_age_and_restarts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_supervisor("tree", jitter=no_jitter) as tree:
        ref = await tree.start(doer, spec=Spec("doer", mailbox=1, restart="on-failure"))
        async with trio.open_nursery() as senders:
            for _ in range(3):
                senders.start_soon(ref.ask, Do("slow", 5))
                await trio.testing.wait_all_tasks_blocked(0)
            await trio.sleep(2)
            (shot,) = tree.snapshot()
        assert (shot.name, shot.state) == ("tree/doer", "running")
        assert (shot.queued, shot.queued_peak, shot.waiting_senders) == (1, 1, 1)
        assert shot.message_age == 2.0
        assert shot.restarts == 0


async def any_life(rng: random.Random) -> list[str]:
    """Actors that ask each other, crash, are cancelled and stopped, as the seed says."""
    outcomes: list[str] = []
    limit = 10_000  # virtual seconds: an ask that never ends is a failure, not a hang

    async def asker(refs: list[Ref[Do]]) -> None:
        await trio.sleep(rng.choice([0, 0.001, 0.01, 1, 10]))
        deed = rng.choice(["fine", "fine", "crash", "finish"])
        with trio.move_on_after(rng.choice([0.001, 1, math.inf])) as scope:
            try:
                await rng.choice(refs).ask(Do(deed, rng.choice([0, 0.001, 1])))
                outcomes.append("reply")
            except (ActorCrashed, ActorStopped) as error:
                outcomes.append(type(error).__name__)
        if scope.cancelled_caught:
            outcomes.append("cancelled")

    async def live(askers: trio.Nursery) -> None:
        async with open_supervisor("tree", jitter=rng.random) as tree:
            refs = []
            for name in "abc":
                restart = rng.choice(["never", "on-failure"])
                size = rng.choice([0, 1, 4])
                spec = Spec(name, size, 1.0, restart, limit=rng.choice([1, 5]))  # type: ignore[arg-type]  # all are kinds
                refs.append(await tree.start(doer, spec=spec))
            for _ in range(20):
                askers.start_soon(asker, refs)
            await trio.sleep(rng.choice([0, 0.5, 5, 50]))

    async with trio.open_nursery() as askers:
        askers.cancel_scope.deadline = trio.current_time() + limit
        try:
            with trio.fail_after(limit):
                await live(askers)
        except (LookupError, RestartLimit, ExceptionGroup):
            outcomes.append("escalated")
    return outcomes


@pytest.mark.parametrize("seed", range(150))
def test_every_ask_ends_in_a_reply_or_a_typed_error(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Virtual time: a life with an ask that never ends does not end itself."""
    outcomes = run_seeded(any_life, seed, monkeypatch)
    ended = [outcome for outcome in outcomes if outcome != "escalated"]
    assert len(ended) == 20


def test_a_seed_replays_the_same_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of `run_seeded`: it fails when Trio's private names move."""
    for seed in range(5):
        first, second = (run_seeded(any_life, seed, monkeypatch) for _ in range(2))
        assert first == second
    assert len({tuple(run_seeded(any_life, seed, monkeypatch)) for seed in range(20)}) > 5
