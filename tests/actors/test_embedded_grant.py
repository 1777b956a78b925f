"""A grant between its writer and the committer: what it lets through, what it waits for."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
import trio.testing

from refold.actors.stores import Progress
from refold.actors.stores.committer import SYNC_SECONDS, Committer, LocalGrant, Outcome, Work
from refold.runtime.storage.errors import EmptyBatch, LogClosed, LogFailed, SeqMismatch
from refold.runtime.storage.session_header import SessionHeader
from tests.actors.test_committer_rounds import FakeLog, Noted


class Pending:
    """A committer that keeps the work until it is told how it came out."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def submit(self, work: Work) -> None:
        self.works.append(work)

    def deliver(self, outcome: Outcome) -> None:
        self.works.pop(0).deliver(outcome)


def grant_of(pending: Pending, **header: str) -> LocalGrant:
    log: Any = FakeLog("s", next_seq=3, durable_seq=2)
    log.__class__.header = property(lambda _: SessionHeader("s", 0, **header))  # type: ignore[arg-type]  # its fields as keywords
    return LocalGrant(log, cast("Committer", pending))


@pytest.fixture
def pending() -> Pending:
    return Pending()


async def test_batches_go_on_where_the_log_stands(pending: Pending) -> None:
    grant = grant_of(pending)
    for wrong in (2, 4):
        with pytest.raises(SeqMismatch):
            grant.append(wrong, [b"x"])
    with pytest.raises(EmptyBatch):
        grant.append(3, [])
    assert pending.works == []
    grant.append(3, [b"x", b"y"])
    grant.append(5, [b"z"])
    assert [work.batches for work in pending.works] == [[[b"x", b"y"]], [[b"z"]]]
    assert not any(work.sync or work.close for work in pending.works)


async def test_a_sync_waits_until_all_that_was_appended_is_durable(
    pending: Pending, autojump_clock: trio.testing.MockClock
) -> None:
    grant = grant_of(pending)
    grant.append(3, [b"x"])
    told: list[Progress] = []
    grant.watch(told.append)
    durable: list[int] = []

    async def sync() -> None:
        durable.append(await grant.sync())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        await trio.testing.wait_all_tasks_blocked()
        pending.deliver(Outcome(3, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert durable == []
        assert pending.works[0].sync
        pending.deliver(Outcome(3, 3))
    assert durable == [3]
    assert told == [Progress(3, 2), Progress(3, 3)]


@pytest.mark.parametrize("level", ["process", "none"])
async def test_below_the_level_power_what_is_written_counts(pending: Pending, level: str) -> None:
    grant = grant_of(pending, durability=level)
    grant.append(3, [b"x"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grant.sync)
        await trio.testing.wait_all_tasks_blocked()
        assert not pending.works[1].sync, "nobody waits for the disk"
        pending.deliver(Outcome(3, 2))


async def test_a_sync_that_takes_too_long_has_failed_for_good(
    pending: Pending, autojump_clock: trio.testing.MockClock
) -> None:
    """Nobody knows what the disk will do: that it comes round after all changes nothing."""
    grant = grant_of(pending)
    grant.append(3, [b"x"])

    async def watch() -> None:
        assert isinstance(await grant.failed(), LogFailed)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        with trio.fail_after(2 * SYNC_SECONDS), pytest.raises(LogFailed, match="did not finish"):
            await grant.sync()
        nursery.cancel_scope.deadline = trio.current_time() + 1
    assert not nursery.cancel_scope.cancelled_caught, "who watches was told"
    assert trio.current_time() == pytest.approx(SYNC_SECONDS)
    for _ in range(2):
        pending.deliver(Outcome(3, 3))
    with pytest.raises(LogFailed, match="did not finish"):
        grant.append(4, [b"y"])
    with pytest.raises(LogFailed, match="did not finish"):
        await grant.sync()
    assert pending.works == []
    assert isinstance(await grant.failed(), LogFailed)


async def test_where_there_is_no_thread_a_failed_write_is_raised_at_once() -> None:
    noted, log = Noted(), FakeLog("s")
    noted.failing["s"] = failure = LogFailed("s", "EIO", -1)
    grant = LocalGrant(cast("Any", log), Committer(noted, threaded=False))
    with pytest.raises(LogFailed) as failed:
        grant.append(0, [b"x"])
    assert failed.value is failure


async def test_a_failure_wakes_who_waits_and_is_raised_from_then_on(pending: Pending) -> None:
    grant = grant_of(pending)
    grant.append(3, [b"x"])
    failure = LogFailed("s", "EIO", 2)
    met: list[object] = []

    async def sync() -> None:
        with pytest.raises(LogFailed) as failed:
            await grant.sync()
        met.append(failed.value)

    async def watch() -> None:
        met.append(await grant.failed())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync)
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        pending.deliver(Outcome(2, 2, failure))
    assert met == [failure, failure]
    with pytest.raises(LogFailed):
        grant.append(4, [b"y"])


async def test_a_released_grant_takes_nothing_and_is_released_once(pending: Pending) -> None:
    grant = grant_of(pending)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(grant.release)
        await trio.testing.wait_all_tasks_blocked()
        assert pending.works[0].close
        with pytest.raises(LogClosed):
            grant.append(3, [b"x"])
        with pytest.raises(LogClosed):
            await grant.sync()
        (work,) = pending.works
        pending.deliver(Outcome(2, 2, closed=True))
    work.deliver(Outcome(2, 2))  # of what was asked before it was closed
    await grant.release()
    assert pending.works == []
