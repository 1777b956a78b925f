"""How a log writer opens a log, and what one batch does: in the store, in the folds, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from refold.actors.kernel import ActorCrashed, Spec, open_supervisor, waiting_chain
from refold.actors.log.live_log import LiveLog
from refold.actors.log.log_writer import log_writer
from refold.actors.log.session_log import Claim, SessionLog
from refold.actors.stores import Store, open_store
from refold.actors.stores.committer import LocalGrant
from refold.runtime.envelope import Draft, Event
from refold.runtime.errors import RuleBroken, SurfaceRefused
from refold.runtime.events import UserMessage
from refold.runtime.messages import USER, TextBlock
from refold.runtime.rules.inbox import KeyConflict, KeyUsed
from refold.runtime.storage.errors import LogFailed
from refold.runtime.storage.session_header import SessionHeader
from tests.actors.test_log_writer import OWNER, TODO, stored, writing
from tests.runtime.rules.words import (
    at,
    call,
    context,
    queued,
    removed,
    says,
    step,
    step_end,
    turn,
    turn_end,
)


async def crashed(*drafts: Draft) -> Store:
    """A store whose session `s` ends with these events, made at 1000, 1001..., and no owner."""
    store = open_store("memory:")
    grant = await store.create(SessionHeader("s", 0))
    grant.append(0, [made.at(seq, 1000 + seq).encoded for seq, made in enumerate(drafts)])
    await grant.sync()
    await grant.release()
    return store


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.type for event in events]


async def test_the_first_batch_of_a_new_log_names_its_owner_also_after_a_refused_one() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        with pytest.raises(RuleBroken):
            await log.append(TODO, step_end(1, 1))
        assert log.live.session.next_seq == 0
        await log.append(TODO)
        await log.append(TODO)
    assert kinds(stored(store)) == [
        "session/owner",
        "todo/write",
        "todo/write",
        "session/released",
    ]


async def test_a_log_that_nothing_was_written_to_has_no_event() -> None:
    store = open_store("memory:")
    async with writing(store):
        pass
    assert await store.list() == []


async def test_an_opening_names_its_owner_and_closes_what_a_crash_left_open_in_one_batch() -> None:
    store = await crashed(turn(1), step(1, 1), says(1, 1, "a", "b"), call(1, 1, "a"))
    async with writing(store) as log:
        opened = store.reader("s").read_new()[4:]
        assert [record.type for record in opened] == [
            "session/owner",
            "tool/result",
            "tool/result",
            "step/end",
            "turn/end",
        ]
        assert [record.left for record in opened] == [4, 3, 2, 1, 0]
        assert log.live.durable_seq == 8, "durable before anybody may go on"
        assert log.live.answers.current is None
        assert not log.live.rules.standing.turn_open
        await log.append(turn(2))
    times = [event.time for event in stored(store)[4:]]
    assert times == [7, 1003, 1003, 1003, 1003, 7, 7], "closers repeat the last real event's time"


async def test_a_log_is_checked_before_anything_is_written_to_it() -> None:
    store = await crashed(turn(1))
    seen: list[int] = []

    def refuse() -> None:
        seen.append(live.session.next_seq)
        raise LookupError("on purpose")

    grant = await store.acquire("s")
    live = LiveLog("s", 0)
    with pytest.raises(LookupError):
        async with open_supervisor("s") as tree:
            spec = Spec("log")
            writer = partial(
                log_writer, live=live, grant=grant, owner=OWNER, clock=lambda: 7, check=refuse
            )
            await tree.start(writer, spec=spec)
    assert seen == [1], "with the folds of the whole log"
    assert kinds(stored(store)) == ["turn/start"]
    again = await store.acquire("s")
    assert again.term == 1, "nobody had become its owner"
    await again.release()


async def test_a_claim_is_its_message_and_then_its_context_and_cites_the_entry_once() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        (first, second, _) = await log.append(queued(), queued(), turn(1))
        said = UserMessage((TextBlock("hi"),), USER)
        claims = (
            Claim(first.seq, said, (context().data, context().data)),
            Claim(second.seq, said),
        )
        boundary = await log.open_step(1, claims)
        assert (boundary.turn, boundary.step, boundary.session) == (1, 1, "s")
    batch = stored(store)[4:-1]
    assert [(event.type, event.source_event_seqs) for event in batch] == [
        ("user/message", (1,)),
        ("context/message", None),
        ("context/message", None),
        ("user/message", (2,)),
        ("step/start", None),
    ]
    assert boundary.seq == batch[-1].seq


async def test_steps_count_within_their_turn() -> None:
    async with writing(open_store("memory:")) as log:
        numbers = []
        for number in (1, 2):
            await log.append(turn(number))
            for _ in range(2):
                opened = await log.open_step(number)
                numbers.append((opened.turn, opened.step))
                await log.append(step_end(opened.turn, opened.step))
            await log.append(turn_end(number))
    assert numbers == [(1, 1), (1, 2), (2, 1), (2, 2)]


async def test_a_key_is_used_by_one_text_and_another_under_it_is_a_conflict() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        (first,) = await log.append(queued("k", "pay"))
        with pytest.raises(KeyUsed) as used:
            await log.append(queued("k", "pay"))
        with pytest.raises(KeyConflict) as conflict:
            await log.append(queued("k", "do not pay"))
        assert (used.value.seq, conflict.value.seq) == (first.seq, first.seq)
        assert (used.value.key, conflict.value.key) == ("k", "k")
        assert f"'k' was used at seq {first.seq}" in str(used.value)
        assert f"'k' something else was said at seq {first.seq}" in str(conflict.value)
        with pytest.raises(KeyUsed):
            await log.append(queued("twice"), queued("twice"))
        await log.append(queued("twice"), removed(first.seq))
        with pytest.raises(KeyUsed):
            await log.append(queued("k", "pay"))
    keys = [event.data.idempotency_key for event in stored(store) if event.type == "inbox/queued"]
    assert keys == ["k", "twice"]


async def test_a_batch_is_stored_before_anybody_hears_of_it_and_in_order() -> None:
    store = open_store("memory:")
    heard: list[tuple[int, int]] = []
    async with writing(store) as log:
        log.observe(lambda event: heard.append((event.seq, len(stored(store)))))
        await log.append(TODO, TODO)
        await log.append(TODO)
    assert heard == [(0, 3), (1, 3), (2, 3), (3, 4), (4, 5)]


async def test_a_store_that_refuses_a_batch_leaves_the_folds_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        await log.append(queued("k"))
        before = log.live.session.next_seq, dict(log.live.rules.inbox.pending)
        heard: list[Event] = []
        log.observe(heard.append)

        def refuse(*_: object) -> None:
            raise RuleBroken(1, 1, "on purpose")

        with monkeypatch.context() as patch:
            patch.setattr(LocalGrant, "append", refuse)
            with pytest.raises(RuleBroken):
                await log.append(queued("other"), turn(1))
        assert heard == []
        assert (log.live.session.next_seq, dict(log.live.rules.inbox.pending)) == before
        assert log.live.rules.inbox.first("other") is None
        await log.append(turn(1))
    assert kinds(stored(store)) == [
        "session/owner",
        "inbox/queued",
        "turn/start",
        "session/released",
    ]


async def test_the_end_of_a_writer_is_logged_and_durable() -> None:
    store = open_store("memory:")
    async with writing(store) as log:
        await log.append(TODO)
        live = log.live
    last = stored(store)[-1]
    assert (last.type, last.data.term, last.data.reason) == ("session/released", 1, "closed")
    assert live.durable_seq == last.seq
    grant = await store.acquire("s")  # it was given back
    assert grant.term == 2
    await grant.release()


async def test_each_who_waits_is_told_when_its_own_events_are_durable(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    sync = LocalGrant.sync

    async def slowly(grant: LocalGrant) -> int:
        durable = await sync(grant)  # what comes meanwhile is not in it
        await trio.sleep(5)
        return durable

    monkeypatch.setattr(LocalGrant, "sync", slowly)
    told: list[tuple[str, float]] = []
    async with writing(open_store("memory:")) as log:

        async def wait(name: str) -> None:
            await log.append(TODO, flush=True)
            told.append((name, trio.current_time()))

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "first")
            await trio.sleep(1)
            nursery.start_soon(wait, "next")
        assert [(name, at - start) for name, at in told] == [("first", 5.0), ("next", 10.0)]


async def test_a_failed_sync_fails_each_who_waits(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def fail(_grant: LocalGrant) -> int:
        await trio.sleep(5)
        raise LogFailed("s", "EIO", -1)

    failures: list[Exception] = []

    async def wait(log: SessionLog) -> None:
        try:
            await log.append(TODO, flush=True)
        except LogFailed as failure:
            failures.append(failure)

    async with writing(open_store("memory:")) as log:
        with monkeypatch.context() as patch:
            patch.setattr(LocalGrant, "sync", fail)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait, log)
    assert len(failures) == 3


async def test_a_cancelled_writer_gives_its_log_back_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    released: list[float] = []
    release = LocalGrant.release

    async def slowly(grant: LocalGrant) -> None:
        await trio.sleep(2)
        await release(grant)
        released.append(trio.current_time())

    monkeypatch.setattr(LocalGrant, "release", slowly)
    store = open_store("memory:")
    with trio.CancelScope() as scope:
        async with writing(store) as log:
            await log.append(TODO)
            scope.cancel(reason="test")
            await trio.lowlevel.checkpoint()
    assert len(released) == 1
    await (await store.acquire("s")).release()


async def test_an_opening_says_what_was_cut_from_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    async with writing(store) as log:
        await log.append(TODO)
    with (tmp_path / "s.jsonl").open("ab") as file:
        file.write(b'{"torn')
    (tmp_path / "s.head").unlink()
    async with writing(store) as log:
        opened = stored(store)[3:]
        assert kinds(opened) == ["session/owner", "session/recovered"]
        assert opened[1].data.dropped_bytes == 6
        assert log.live.durable_seq == 4
    await store.close()


async def test_a_new_log_says_what_was_cut_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(b'{"half a header')
    store = open_store(tmp_path)
    async with writing(store) as log:
        await log.append(TODO)
    assert kinds(stored(store))[:3] == ["session/owner", "session/recovered", "todo/write"]
    await store.close()


async def test_a_long_log_is_replayed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.actors.log.log_writer.SLICE", 10)
    store, live = await crashed(*[turn(1)] * 95), LiveLog("s", 0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await trio.lowlevel.checkpoint()
        before = turns
        with pytest.raises(LookupError):  # before anything that would wait is done
            async with open_supervisor("s") as tree:
                grant = await store.acquire("s")
                before = turns

                def check() -> None:
                    nursery.cancel_scope.cancel(reason="replayed")
                    raise LookupError("on purpose")

                spec = Spec("log")
                writer = partial(
                    log_writer, live=live, grant=grant, owner=OWNER, clock=lambda: 7, check=check
                )
                await tree.start(writer, spec=spec)
    assert live.session.next_seq == 95
    assert 9 <= turns - before <= 30


async def test_a_write_that_fails_tells_its_sender_and_ends_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = LogFailed("s", "EIO", -1)

    def fail(*_: object) -> None:
        raise failure

    told: list[Exception] = []
    with pytest.raises(LogFailed) as ended:
        async with writing(open_store("memory:")) as log:
            monkeypatch.setattr(LocalGrant, "append", fail)
            with trio.CancelScope(shield=True):
                for _ in range(2):
                    try:
                        await log.append(TODO)
                    except (LogFailed, ActorCrashed) as error:
                        told.append(error)
    assert told[0] is failure
    assert isinstance(told[1], ActorCrashed), "there is no writer any more"
    assert ended.value is failure


async def test_a_replacement_of_what_is_not_there_is_refused_and_the_writer_goes_on() -> None:
    async with writing(open_store("memory:")) as log:
        await log.append(context())
        for gone in (0, 7):
            with pytest.raises(SurfaceRefused):
                await log.append(context(1, replaces=at(gone)))
        await log.append(context(1, replaces=at(1)))
        assert list(log.live.session.surface.nodes) == [2]


async def test_a_batch_of_nothing_is_nothing() -> None:
    async with writing(open_store("memory:")) as log:
        await log.append(TODO)
        assert await log.append() == ()
        assert log.live.session.next_seq == 2


async def test_an_observer_is_nobodys_wait_and_its_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also of a session that was opened from inside a wait, as a tool may."""
    chains: list[object] = []

    def observer(_event: Event) -> None:
        chains.append(waiting_chain.get())
        raise LookupError("on purpose")

    token = waiting_chain.set((cast("Any", object()),))
    async with writing(open_store("memory:")) as log:
        waiting_chain.reset(token)  # the writer's task has it still
        stop = log.observe(observer)
        await log.append(TODO)
        stop()
    assert chains == [(), ()]
    assert "an observer of session s failed" in caplog.text
    assert "on purpose" in caplog.text


async def test_who_waits_for_a_sync_is_told_what_the_log_failed_with(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Though the sync that it waits for never ends."""
    failure = LogFailed("s", "EIO", -1)

    async def hang(_grant: LocalGrant) -> int:
        await trio.sleep_forever()
        raise AssertionError

    async def fail(_grant: LocalGrant) -> LogFailed:
        await trio.sleep(5)
        return failure

    monkeypatch.setattr(LocalGrant, "sync", hang)
    monkeypatch.setattr(LocalGrant, "failed", fail)
    told: list[Exception] = []
    with pytest.raises(LogFailed) as ended:
        async with writing(open_store("memory:")) as log:
            with trio.CancelScope(shield=True):
                try:
                    await log.append(TODO, flush=True)
                except (LogFailed, ActorCrashed) as error:
                    told.append(error)
    assert told == [failure]
    assert ended.value is failure
