"""The kernel's promises: every ask ends, and children stop in reverse start order."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio

from refold.actors.kernel import (
    ActorCrashed,
    ActorStopped,
    Ask,
    Mailbox,
    MailboxFull,
    Ref,
    Spec,
    open_supervisor,
)


class Doubler:
    """Stands for the actor of these tests in the types of what it is sent."""


@attrs.frozen
class Double(Ask[Doubler, int]):
    value: int


@attrs.frozen
class Break(Ask[Doubler, int]):
    pass


async def doubler(mailbox: Mailbox[Double | Break], *, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    async for mail in mailbox:
        if isinstance(mail.message, Break):
            raise LookupError("on purpose")
        mail.answer(mail.message.value * 2)


async def deaf(mailbox: Mailbox[Double], *, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    await trio.sleep_forever()


async def test_an_ask_is_answered_with_the_type_it_names() -> None:
    async with open_supervisor("tree") as tree:
        ref = await tree.start(doubler, spec=Spec("doubler"))
        assert await ref.ask(Double(21)) == 42
        assert await ref.ask_whole(Double(4)) == 8


async def test_a_crash_fails_the_ask_in_hand_and_every_later_one() -> None:
    with pytest.raises(LookupError, match="on purpose"):
        async with open_supervisor("tree") as tree:
            ref = await tree.start(doubler, spec=Spec("doubler"))
            with trio.CancelScope(shield=True):
                with pytest.raises(ActorCrashed) as crashed:
                    await ref.ask(Break())
                assert isinstance(crashed.value.__cause__, LookupError)
                assert "tree/doubler failed: on purpose" in str(crashed.value)
                with pytest.raises(ActorCrashed):
                    await ref.ask(Double(1))
            await trio.sleep_forever()


async def test_asks_that_an_actor_never_answered_fail_when_it_stops(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outcomes: list[str] = []

    async def ask() -> None:
        with pytest.raises(ActorStopped) as stopped:
            await ref.ask(Double(1))
        outcomes.append(stopped.value.actor)

    async with trio.open_nursery() as askers, open_supervisor("tree") as tree:
        ref = await tree.start(deaf, spec=Spec("deaf", mailbox=1, shutdown=3))
        askers.start_soon(ask)
        askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
    assert outcomes == ["tree/deaf"] * 2
    assert trio.current_time() >= 3


async def test_children_stop_last_started_first_even_when_the_block_is_cancelled() -> None:
    order: list[str] = []

    async def child(
        mailbox: Mailbox[Double], name: str, *, task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        async for _ in mailbox:
            pass
        await trio.lowlevel.checkpoint()  # still able to wait: nobody cancelled it
        order.append(name)

    with trio.CancelScope() as scope:
        async with open_supervisor("tree") as tree:
            for name in ("log", "loop", "tool"):
                await tree.start(partial(child, name=name), spec=Spec(name))
            scope.cancel(reason="test")
            await trio.sleep_forever()
    assert order == ["tool", "loop", "log"]


async def test_a_failed_start_is_the_starters() -> None:
    async def broken(_mailbox: Mailbox[Double], *, task_status: trio.TaskStatus[None]) -> None:
        raise OSError("no disk")

    async with open_supervisor("tree") as tree:
        with pytest.raises(OSError, match="no disk"):
            await tree.start(broken, spec=Spec("broken"))


async def test_one_error_leaves_the_block_as_itself() -> None:
    with pytest.raises(ValueError, match="plain"):
        async with open_supervisor("tree") as tree:
            await tree.start(doubler, spec=Spec("doubler"))
            raise ValueError("plain")


async def test_a_full_mailbox_refuses_and_a_stopped_one_says_so() -> None:
    async with open_supervisor("tree") as tree:
        ref = await tree.start(deaf, spec=Spec("deaf", mailbox=1, shutdown=0))
        ref.tell_nowait(Double(1))
        with pytest.raises(MailboxFull):
            ref.tell_nowait(Double(2))
    with pytest.raises(ActorStopped):
        ref.tell_nowait(Double(3))
    with pytest.raises(ActorStopped):
        await tree.start(deaf, spec=Spec("late"))


async def test_an_ask_cancelled_before_it_is_queued_leaves_nothing_behind() -> None:
    async with open_supervisor("tree") as tree:
        ref = await tree.start(deaf, spec=Spec("deaf", mailbox=0, shutdown=0))
        with trio.move_on_after(0):
            await ref.ask_whole(Double(1))
        mailbox = ref._mailbox
        assert not mailbox.queued


class Question(Ask[Doubler, str]):
    """Something to answer."""


class Other:
    """Stands for another actor."""


class OtherQuestion(Ask[Other, str]):
    """Something for the other one."""


async def test_a_message_for_another_actor_is_refused_by_the_type_check() -> None:
    """What is checked are the two ignores: they would be unused."""
    async with open_supervisor("tree") as tree:
        ref = await tree.start(doubler, spec=Spec("doubler"))
        mistakes = [
            lambda: ref.ask(OtherQuestion()),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            lambda: ref.tell_nowait("a text"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ]
    assert len(mistakes) == 2


async def test_a_task_that_outlives_its_mail_asks_whom_it_wants() -> None:
    async with trio.open_nursery() as nursery, open_supervisor("tree") as tree:
        told: list[str] = []
        answered = trio.Event()

        async def ask_later() -> None:
            await trio.testing.wait_all_tasks_blocked()
            told.append(await ref.ask(Question()))
            answered.set()

        async def starter(
            mailbox: Mailbox[Question], *, task_status: trio.TaskStatus[None]
        ) -> None:
            task_status.started()
            async for mail in mailbox:
                if not told:
                    told.append("started")
                    nursery.start_soon(ask_later)
                mail.answer("later")

        ref: Ref[Question] = await tree.start(starter, spec=Spec("starter"))
        await ref.ask(Question())
        with trio.fail_after(1):
            await answered.wait()
        assert told == ["started", "later"]
