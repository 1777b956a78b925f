"""Whole agents whose sessions live in one SQLite file."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

import refold
from refold import Call, Hang, Say, Script, Think
from refold.actors.stores import EmbeddedStore
from refold.runtime.errors import LegacyEvent
from refold.runtime.events import EndReason
from refold.runtime.storage import (
    LogCorrupt,
    LogFailed,
    SessionBusy,
    SessionHeader,
    SqliteFile,
    StoreFull,
    frame_batch,
)
from tests.actors.test_committer import TODO, storing, writing
from tests.actors.test_recovery import reached, turns
from tests.agents import assert_sound, count, kinds, read_file, stored_events

COMPLETED, INTERRUPTED = EndReason("completed"), EndReason("interrupted")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def address(path: Path) -> str:
    return f"sqlite:///{path}"


def embedded(runtime: refold.Runtime) -> EmbeddedStore:
    assert isinstance(runtime.store, EmbeddedStore)
    return runtime.store


def sqlite_of(runtime: refold.Runtime) -> SqliteFile:
    sessions = embedded(runtime).sessions
    assert isinstance(sessions, SqliteFile)
    return sessions


async def live(where: str | Path) -> tuple[list[list[str]], list[bytes]]:
    """A life with tools, a fork and a second opening: what was logged, and what was sent."""
    script = Script(
        [
            [Think("so"), Call("read_file", {"path": "a"}), Call("count", {"upto": 3})],
            Say("read and counted", pieces=3),
            Say("noted"),
            Say("still here"),
            Say("elsewhere"),
        ]
    )
    tools: list[Any] = [read_file, count]
    async with refold.open(where, providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", session_id="life", system="S", tools=tools
        )
        await agent.ask("read a and count to three")
        await agent.inject("the weather changed")
        await agent.ask("did you know?")
        await agent.park()
        assert (await agent.ask("and now?")).text == "still here"
        fork = await runtime.fork("life", tools=tools)
        assert (await fork.ask("and there?")).text == "elsewhere"
        logged = [kinds(assert_sound(runtime, one)) for one in (agent, fork)]
        assert sorted(await runtime.list()) == sorted(["life", fork.session_id])
        if where == "memory:":
            return logged, script.bodies
    async with refold.open(where, providers=[Script([Say("back")])]) as runtime:
        agent = await runtime.resume("life", tools=tools)
        assert (await agent.ask("where were we?")).text == "back"
        assert_sound(runtime, agent)
    return logged, script.bodies


async def test_an_agent_does_the_same_whatever_keeps_its_log(tmp_path: Path, path: Path) -> None:
    on_sqlite = await live(address(path))
    assert on_sqlite == await live("memory:") == await live(tmp_path / "files")


@pytest.mark.parametrize("lost", ["nothing", "-shm"])
async def test_a_program_that_dies_in_a_turn_is_recovered_from_its_files(
    lost: str, tmp_path: Path
) -> None:
    script = Script([Hang(), Say("recovered"), Say("fine")])
    first, copy = tmp_path / "first", tmp_path / "copy"
    async with refold.open(address(first / "s.db"), providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.prompt("one", idempotency_key="one")
        await reached(agent, "request/sealed")
        await agent.prompt("two", idempotency_key="two")
        shutil.copytree(first, copy)
    assert (copy / "s.db-wal").stat().st_size > 0
    (copy / f"s.db{lost}").unlink(missing_ok=True)
    async with refold.open(address(copy / "s.db"), providers=[script]) as runtime:
        agent = await runtime.resume(agent.session_id, continue_=True)
        await agent.wait_idle()
        assert turns(assert_sound(runtime, agent)) == [
            ("message", "interrupted"),
            ("recovery", "completed"),
            ("message", "completed"),
        ]
        assert (await agent.ask("one", idempotency_key="one")).text == "recovered"
        assert (await agent.ask("two", idempotency_key="two")).text == "fine"


async def test_a_parked_session_may_be_opened_elsewhere_and_comes_back(path: Path) -> None:
    script = Script(lambda _: Say("yes"))
    async with (
        refold.open(address(path), providers=[script]) as one,
        refold.open(address(path), providers=[script]) as two,
    ):
        agent = await one.start_agent(model="script/m", session_id="s")
        await agent.ask("hello")
        with pytest.raises(SessionBusy) as busy:
            await two.resume("s")
        assert busy.value.pid is not None
        await agent.park()
        other = await two.resume("s")
        await other.ask("hello from elsewhere")
        with pytest.raises(SessionBusy):
            await agent.ask("hello?")
        await other.close()
        turn = await agent.ask("hello again")
        assert (turn.turn, turn.text) == (3, "yes")
        assert_sound(one, agent)


async def test_two_runtimes_write_to_one_file_side_by_side(path: Path) -> None:
    async def talk(runtime: refold.Runtime, name: str) -> None:
        agent = await runtime.start_agent(model="script/m", session_id=name)
        for _ in range(10):
            assert (await agent.ask("and?")).reason == COMPLETED
        assert_sound(runtime, agent)

    script = Script(lambda _: Say("yes"))
    async with (
        refold.open(address(path), providers=[script]) as one,
        refold.open(address(path), providers=[script]) as two,
        trio.open_nursery() as nursery,
    ):
        for number in range(4):
            nursery.start_soon(talk, (one, two)[number % 2], f"s{number}")
    assert SqliteFile(path).list() == ["s0", "s1", "s2", "s3"]


async def test_64_sessions_that_append_at_once_share_one_transaction_a_round(path: Path) -> None:
    async def session(number: int) -> None:
        async with writing(store, f"s{number}") as log:
            for _ in range(10):
                await log.append(TODO, TODO, flush=True)

    async with storing(address(path)) as store:
        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(session, number)
        threads = [t for t in threading.enumerate() if t.name.startswith("refold-")]
        assert [t.name for t in threads] == ["refold-committer"]
        statistics = store.statistics
        assert statistics.writes <= statistics.rounds
        assert statistics.rounds < 64 * 11 / 3
        assert statistics.syncs <= statistics.writes
        with closing(sqlite3.connect(path)) as db:
            [(synced,)] = db.execute("SELECT count FROM syncs").fetchall()
        assert synced < statistics.rounds + 64 + 1  # each log is synced once more as it is closed
    assert {len(SqliteFile(path).read(f"s{number}").records) for number in range(64)} == {22}


async def test_a_text_turn_costs_two_syncs_as_on_files(path: Path) -> None:
    async with refold.open(address(path), providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        for number in range(1, 6):
            await agent.ask("and?")
            assert embedded(runtime).statistics.syncs == 2 * number


async def test_damaged_sessions_stop_neither_start_nor_list_nor_the_others(path: Path) -> None:
    script = Script(lambda _: Say("yes"))
    async with refold.open(address(path), providers=[script]) as runtime:
        for number in range(5):
            agent = await runtime.start_agent(model="script/m", session_id=f"s{number}")
            await agent.ask("hello")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM lines WHERE session = 2 AND seq = 3")
        db.execute("UPDATE lines SET line = x'00' WHERE session = 4 AND seq = 1")
    async with refold.open(address(path), providers=[script]) as runtime:
        assert await runtime.list() == [f"s{number}" for number in range(5)]
        for bad, seq in (("s1", 3), ("s3", 1)):
            for ask in (runtime.resume, runtime.fork):
                with pytest.raises(LogCorrupt, match=f"session {bad} in") as damage:
                    await ask(bad)
                assert damage.value.expected_seq == seq
        for good in ("s0", "s2", "s4"):
            agent = await runtime.resume(good)
            assert (await agent.ask("still there?")).text == "yes"
        await runtime.start_agent(model="script/m", session_id="new")


async def test_given_up_vocabulary_is_refused_on_load_and_as_a_seed(path: Path) -> None:
    delta = b'{"type":"request/header-delta","seq":0,"time":1,"data":{}}'
    end = b'{"type":"turn/end","seq":1,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}'
    lines, _ = frame_batch([delta, end], 0, -1)
    store = SqliteFile(path)
    store.adopt(SessionHeader("old", 1), b"")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for seq, line in enumerate(lines.splitlines(keepends=True)):
            db.execute("INSERT INTO lines VALUES (1, ?, ?)", (seq, line))
    async with refold.open(address(path)) as runtime:
        for ask in (runtime.resume, runtime.fork):
            with pytest.raises(LegacyEvent):
                await ask("old")
        assert await runtime.list() == ["old"]
    assert store.raw("old").endswith(lines)


async def test_a_full_file_ends_the_session_and_says_so_and_keeps_what_was_acknowledged(
    path: Path,
) -> None:
    script = Script(lambda _: Say("yes"))
    async with refold.open(address(path), providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("hello")
        kept = stored_events(runtime, "s")
        writer = sqlite_of(runtime)._database._writer
        assert writer is not None
        writer.execute("PRAGMA max_page_count = 1")
        with pytest.raises(refold.ActorCrashed) as crashed:
            await agent.ask("x" * 100_000)
        assert isinstance(crashed.value.__cause__, StoreFull)
        assert stored_events(runtime, "s") == kept
        writer.execute("PRAGMA max_page_count = 1000000")
        again = await runtime.resume("s")
        assert (await again.ask("and now?")).text == "yes"
        assert_sound(runtime, again)


def test_a_refused_batch_ends_its_log_for_a_gap_would_follow(path: Path) -> None:
    store = SqliteFile(path)
    good, bad = (store.create(SessionHeader(name, 1)) for name in ("good", "bad"))
    encoded = TODO.at(0, 1).encoded
    wrong = TODO.at(7, 1).encoded
    works = [(good, [[encoded]]), (bad, [[wrong]])]
    done = store.rounds.write(works, durable=True)
    assert [*done.failures] == [bad]
    assert isinstance(done.failures[bad], LogFailed)
    assert (done.writes, done.syncs, good.durable_seq, bad.next_seq) == (1, 1, 0, 0)
    good.close()
    bad.close()


async def test_a_surprise_in_a_transaction_ends_its_logs_and_not_the_thread(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(lambda _: Say("yes"))
    async with refold.open(address(path), providers=[script]) as runtime:
        good = await runtime.start_agent(model="script/m")
        bad = await runtime.start_agent(model="script/m")
        await good.ask("hello")
        rounds = sqlite_of(runtime).rounds
        write = rounds.write

        def surprise(*_args: Any, **_more: Any) -> Any:
            raise MemoryError("no more")

        rounds.write = surprise  # type: ignore[method-assign]  # on purpose
        with trio.fail_after(30), pytest.raises(refold.ActorCrashed) as crashed:
            await bad.ask("hello")
        rounds.write = write  # type: ignore[method-assign]  # as above
        assert isinstance(crashed.value.__cause__, LogFailed)
        assert "MemoryError: no more" in str(crashed.value.__cause__)
        with trio.fail_after(30):
            assert (await good.ask("and you?")).text == "yes"
    assert "met an unexpected error" in caplog.text
