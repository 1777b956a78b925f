"""One committer a store: shared rounds, syncs side by side, and disks that stall, fill and fail."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio

import refold
from refold import Say, Script
from refold.actors.kernel import ActorCrashed, open_supervisor
from refold.actors.log.live_log import LiveLog
from refold.actors.log.session_log import SessionLog
from refold.actors.stores import EmbeddedStore, open_store
from refold.actors.stores.committer import SIDE_BY_SIDE
from refold.runtime.envelope import draft
from refold.runtime.events import Owner, TodoWrite
from refold.runtime.storage import open_sessions
from refold.runtime.storage.errors import LogFailed, StoreFull
from refold.runtime.storage.jsonl.file_log import WHOLE_FILE_SYSTEM, FileRounds
from refold.runtime.storage.jsonl.folder import JsonlFolder
from refold.runtime.storage.port import OS, Port
from refold.runtime.storage.session_header import SessionHeader
from tests.agents import start_writer

TODO = draft(TodoWrite(()))
OWNER = Owner("test", 1, "boot")


@attrs.define
class Disk:
    """The operating system's files, with a hand on each sync and write.

    `before_sync` and `before_write` may wait or raise; `syncs` and `whole` count.
    """

    before_sync: Callable[[], None] = lambda: None
    before_write: Callable[[], None] = lambda: None
    syncs: int = 0
    whole: int = 0
    has_syncfs: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(OS, name)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        self.before_sync()
        OS.fdatasync(fd)

    def syncfs(self, fd: int) -> None:
        self.whole += 1
        self.before_sync()
        OS.fdatasync(fd)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self.before_write()
        return OS.pwrite(fd, data, offset)


@asynccontextmanager
async def writing(store: EmbeddedStore, session_id: str) -> AsyncIterator[SessionLog]:
    grant = await store.create(SessionHeader(session_id, 0))
    live = LiveLog(session_id, 0)
    async with open_supervisor(session_id) as tree:
        yield await start_writer(tree, live=live, grant=grant, owner=OWNER, clock=lambda: 7)


@asynccontextmanager
async def storing(where: str | Path, port: Any = OS) -> AsyncIterator[EmbeddedStore]:
    store = open_store(where, port)
    try:
        yield store
    finally:
        await store.close()


async def test_64_sessions_that_append_at_once_share_one_thread_and_its_rounds(
    tmp_path: Path,
) -> None:
    async def session(number: int) -> None:
        async with writing(store, f"s{number}") as log:
            for _ in range(10):
                await log.append(TODO, TODO, flush=True)

    async with storing(tmp_path) as store:
        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(session, number)
        committers = [t for t in threading.enumerate() if t.name == "refold-committer"]
        assert len(committers) == 1
        statistics = store.statistics
        assert statistics.writes == 64 * 11  # the last of each says that its log is given back
        assert statistics.rounds < 64 * 11 / 3
    folder = JsonlFolder(tmp_path)
    assert {len(folder.read(f"s{number}").records) for number in range(64)} == {22}


async def test_a_text_turn_costs_exactly_two_syncs(tmp_path: Path) -> None:
    async with refold.open(tmp_path, providers=[Script(lambda _: Say("yes"))]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        for turns in range(1, 6):
            await agent.ask("and?")
            assert embedded(runtime).statistics.syncs == 2 * turns


async def test_a_stalled_disk_stops_its_own_store_only(tmp_path: Path) -> None:
    release = threading.Event()
    disk = Disk(before_sync=lambda: assert_(release.wait(60)))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
            ticks += 1

    async with (
        storing(tmp_path / "stalled", disk) as stalled,
        refold.open(tmp_path / "fine", providers=[Script(lambda _: Say("yes"))]) as runtime,
        writing(stalled, "s") as log,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: log.append(TODO, flush=True))
        agent = await runtime.start_agent(model="script/m")
        for _ in range(100):
            assert (await agent.ask("still there?")).reason.kind == "completed"
        await tick()
        assert log.live.durable_seq == -1
        release.set()
    assert ticks == 1000
    assert log.live.durable_seq == 2


@pytest.mark.parametrize(("stops", "survives"), [(1, True), (2, True), (3, False)])
async def test_a_sync_outlives_a_process_that_is_stopped_within_it(
    stops: int, survives: bool, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = math.inf  # a thread works meanwhile
    release, outcomes = threading.Event(), list[object]()
    disk = Disk(before_sync=lambda: assert_(release.wait(60)))

    async def flush(log: SessionLog) -> None:
        try:
            outcomes.append(await log.append(TODO, flush=True))
        except (LogFailed, ActorCrashed) as failure:
            outcomes.append(failure)

    with suppress(LogFailed):
        async with (
            storing(tmp_path, disk) as store,
            writing(store, "s") as log,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(flush, log)
            await trio.testing.wait_all_tasks_blocked()
            try:
                for _ in range(stops):
                    autojump_clock.jump(60)  # the clock of a process that was stopped for so long
                    await trio.testing.wait_all_tasks_blocked()
            finally:  # where the log has failed, this is cancelled
                release.set()
    assert len(outcomes) == 1
    assert isinstance(outcomes[0], tuple) is survives


def embedded(runtime: refold.Runtime) -> EmbeddedStore:
    assert isinstance(runtime.store, EmbeddedStore)
    return runtime.store


def assert_(value: object) -> None:
    assert value


async def test_what_nobody_waits_for_is_durable_soon_after(tmp_path: Path) -> None:
    async with storing(tmp_path) as store, writing(store, "s") as log:
        await log.append(TODO)
        with trio.fail_after(30):
            while log.live.durable_seq < 1:
                await log.live.feed.changed.wait()
        assert store.statistics.background_syncs == 1
        assert store.statistics.syncs == 0


async def flush_all(store: EmbeddedStore, count: int, disk: Disk) -> None:
    """Flush `count` sessions in one round of the committer."""
    hold = threading.Event()

    async def session(number: int) -> None:
        async with writing(store, f"s{number}") as log:
            ready.append(number)
            await go.wait()
            await log.append(TODO, flush=True)
            done.append(number)
            if len(done) == count:
                disk.before_sync, disk.has_syncfs = (lambda: None), False  # closing syncs, too
                over.set()
            await over.wait()

    ready, done = list[int](), list[int]()
    go, over = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(session, number)
        while len(ready) < count:
            await trio.lowlevel.checkpoint()
        async with writing(store, "first") as log:
            disk.before_write = lambda: assert_(hold.wait(60))  # all others join the next round
            nursery.start_soon(lambda: log.append(TODO, flush=True))
            await trio.testing.wait_all_tasks_blocked()
            go.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
            disk.before_write = lambda: None
            hold.set()
            await over.wait()


async def test_several_files_are_synced_side_by_side(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    disk = Disk()
    met = 0

    def meet() -> None:
        nonlocal met
        if disk.syncs > 1:  # the first round holds one file alone
            together.wait(30)
            met += 1

    disk.before_sync = meet
    async with storing(tmp_path, disk) as store:
        await flush_all(store, 4, disk)
        helpers = [one for one in threading.enumerate() if one.name.startswith("refold-sync")]
    assert met == 4
    for helper in helpers:
        await trio.to_thread.run_sync(helper.join, 10)
    assert helpers
    assert not any(helper.is_alive() for helper in helpers)
    assert SIDE_BY_SIDE == 8


async def test_many_dirty_files_are_synced_as_one_file_system(tmp_path: Path) -> None:
    disk = Disk(has_syncfs=True)
    async with storing(tmp_path, disk) as store:
        await flush_all(store, WHOLE_FILE_SYSTEM, disk)
    assert disk.whole == 1


async def test_the_file_system_is_synced_though_the_first_log_has_nothing_new(
    tmp_path: Path,
) -> None:
    disk = Disk(has_syncfs=True)
    folder = JsonlFolder(tmp_path, cast("Port", disk))
    logs = [folder.create(SessionHeader(f"s{n}", 0)) for n in range(WHOLE_FILE_SYSTEM)]
    for log in logs[1:]:
        log.append([TODO.at(0, 0).encoded])
    done = folder.rounds.sync(logs, lambda syncs: [sync() for sync in syncs])
    assert (done.failures, disk.whole) == ({}, 1)
    assert [log.durable_seq for log in logs] == [-1, *[0] * (WHOLE_FILE_SYSTEM - 1)]
    for log in logs:
        log.close()


async def test_a_failed_sync_of_the_file_system_fails_every_log_in_it(tmp_path: Path) -> None:
    disk = Disk(has_syncfs=True)

    def fail() -> None:
        if disk.whole:
            raise OSError(errno.EIO, "on purpose")

    disk.before_sync = fail
    async with storing(tmp_path, disk) as store:
        with pytest.raises(ExceptionGroup) as failed:
            await flush_all(store, WHOLE_FILE_SYSTEM, disk)
    found = failed.value.split(LogFailed)[0]
    assert found is not None
    assert disk.whole == 1


async def test_after_a_failed_sync_of_the_file_system_no_log_in_it_calls_anything_durable(
    tmp_path: Path,
) -> None:
    disk = Disk(has_syncfs=True)

    def fail() -> None:
        if disk.whole == 1:
            raise OSError(errno.EIO, "on purpose")

    disk.before_sync = fail
    folder = JsonlFolder(tmp_path, cast("Port", disk))
    logs = [folder.create(SessionHeader(f"s{n}", 0)) for n in range(WHOLE_FILE_SYSTEM)]
    for log in logs:
        log.append([TODO.at(0, 0).encoded])
    done = folder.rounds.sync(logs, lambda syncs: [sync() for sync in syncs])
    assert set(done.failures) == set(logs)
    assert {log.durable_seq for log in logs} == {-1}
    assert disk.whole == 1, "a failed sync is not tried again"
    for log in logs:
        log.close()


@pytest.mark.parametrize("where", ["write", "sync"])
async def test_an_io_error_ends_its_session_with_one_error_and_no_other(
    where: str, tmp_path: Path
) -> None:
    disk = Disk()
    broken = False

    def fail() -> None:
        if broken:
            raise OSError(errno.EIO, "on purpose")

    setattr(disk, f"before_{where}", fail)
    async with storing(tmp_path, disk) as store, writing(store, "good") as good:
        await good.append(TODO, flush=True)
        with pytest.raises(LogFailed) as failed:
            async with writing(store, "bad") as bad:
                await bad.append(TODO, flush=True)
                broken = True
                with trio.CancelScope(shield=True):
                    with pytest.raises(LogFailed):
                        await bad.append(TODO, flush=True)
                    await trio.testing.wait_all_tasks_blocked()  # the writer takes no more
                    with pytest.raises(ActorCrashed):
                        await bad.append(TODO)
        broken = False
        assert "close the session and open it again" in str(failed.value)
        assert failed.value.durable_seq == 1
        await good.append(TODO, flush=True)
        assert len(JsonlFolder(tmp_path).read("bad").records) >= 2


async def surprised(log: SessionLog) -> None:
    """The next append fails with what nobody thought of."""
    with (
        trio.fail_after(10, shield=True),
        pytest.raises(LogFailed, match="ValueError: nobody thought of this"),
    ):
        await log.append(TODO, flush=True)


async def test_a_surprise_in_one_log_is_that_logs_end_and_no_other(tmp_path: Path) -> None:
    disk = Disk()
    broken = seen = False

    def surprise() -> None:
        if broken:
            raise ValueError("nobody thought of this")

    disk.before_write = surprise
    async with storing(tmp_path, disk) as store, writing(store, "good") as good:
        await good.append(TODO, flush=True)
        with suppress(LogFailed, ExceptionGroup):  # the writer's own end
            async with writing(store, "bad") as bad:
                broken = True
                await surprised(bad)
                seen = True
        assert seen
        broken = False
        with trio.fail_after(10):
            await good.append(TODO, flush=True)


async def test_a_surprise_in_a_round_ends_the_logs_in_it_and_not_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def surprise(*_: object, **__: object) -> None:
        raise ValueError("nobody thought of this")

    surprises = 0
    with trio.fail_after(20):
        async with storing(tmp_path) as store:
            for operation in ("write", "sync"):
                with monkeypatch.context() as patch, suppress(LogFailed, ExceptionGroup):
                    patch.setattr(FileRounds, operation, surprise)
                    async with writing(store, operation) as log:
                        await surprised(log)
                        surprises += 1
            assert surprises == 2
            assert caplog.text.count("in surprise\n") == 2  # each with its traceback, once
            async with writing(store, "good") as good:
                await good.append(TODO, flush=True)


async def test_a_full_disk_keeps_what_was_acknowledged_and_says_what_to_do(tmp_path: Path) -> None:
    disk = Disk()

    def no_room() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    script = Script(lambda _: Say("yes"))
    async with refold.open(tmp_path, providers=[script]) as runtime:
        sessions = embedded(runtime).sessions
        assert isinstance(sessions, JsonlFolder)
        sessions._port = cast("Port", disk)
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("first")
        kept = (await trio.to_thread.run_sync((tmp_path / "s.jsonl").read_bytes))[:]
        disk.before_write = no_room
        with pytest.raises((StoreFull, ActorCrashed)) as full:
            await agent.ask("second")
        await agent.stopped.wait()
        disk.before_write = lambda: None
        assert "make room" in str(full.value)
        assert (tmp_path / "s.jsonl").read_bytes() == kept
        again = await runtime.resume("s")
        assert (await again.ask("third")).reason.kind == "completed"


async def test_at_level_process_nobody_waits_for_the_disk(tmp_path: Path) -> None:
    disk = Disk()
    async with storing(tmp_path, disk) as store:
        grant = await store.create(SessionHeader("s", 0, durability="process"))
        grant.append(0, [TODO.at(0, 0).encoded])
        assert await grant.sync() == 0
        assert disk.syncs == 0
        await grant.release()
        assert disk.syncs == 1


@pytest.mark.parametrize(("level", "syncs"), [("power", 2), ("process", 0), ("none", 0)])
async def test_the_level_of_new_sessions_is_said_at_open_and_kept_in_their_header(
    level: str, syncs: int, tmp_path: Path
) -> None:
    script = Script(lambda _: Say("yes"))
    async with refold.open(tmp_path, providers=[script], durability=level) as runtime:  # type: ignore[arg-type]  # all are levels
        agent = await runtime.start_agent(model="script/m", session_id="s")
        await agent.ask("hello")
        assert embedded(runtime).statistics.syncs == syncs
    assert JsonlFolder(tmp_path).read("s").header.durability == level


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
@pytest.mark.parametrize("born", ["power", "process", "none"])
@pytest.mark.parametrize("opened", ["power", "process", "none"])
async def test_of_a_session_s_level_and_its_runtime_s_the_stronger_counts(
    scheme: str, born: Any, opened: Any, tmp_path: Path
) -> None:
    script, place = Script(lambda _: Say("yes")), f"{scheme}{tmp_path / 'store'}"
    async with refold.open(place, providers=[script], durability=born) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="s")
        assert agent.snapshot().durability == born
        await agent.ask("hello")
    header = open_sessions(place).read("s").header
    async with refold.open(place, providers=[script], durability=opened) as runtime:
        agent = await runtime.resume("s")
        stronger = "power" if "power" in (born, opened) else min(born, opened, key=LEVELS.index)
        assert agent.snapshot().durability == stronger
        for lives in range(2):
            before = embedded(runtime).statistics.syncs
            await agent.ask("and?")
            synced = embedded(runtime).statistics.syncs - before
            assert (synced >= 2) == (stronger == "power"), lives
            await agent.park()  # whoever wakes it asks for as much
    assert open_sessions(place).read("s").header == header
    assert header.level == born


LEVELS = ["power", "process", "none"]


async def test_a_report_is_private_and_takes_the_place_of_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    async with storing(tmp_path / "store") as store:
        where = store.report("s", "violation-3.json", b"{}")
        assert where is not None
        report = Path(where)
        assert (report.read_bytes(), report.stat().st_mode & 0o777) == (b"{}", 0o600)
        for make in (report.symlink_to, report.hardlink_to, lambda _target: report.mkdir()):
            report.unlink()
            make(mine)
            other = store.report("s", "violation-3.json", b"[]")
            assert other not in (None, where)
            assert (Path(str(other)).read_bytes(), mine.read_bytes()) == (b"[]", b"mine")


async def test_a_path_is_a_folder_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for where in (Path("./memory:"), "./memory:", Path("sqlite:"), Path("memory:")):
        async with refold.open(where, providers=[Script(lambda _: Say("yes"))]) as runtime:
            agent = await runtime.start_agent(model="script/m")
            await agent.ask("hello")
        assert [log.stem for log in Path(where).glob("*.jsonl")].count(agent.session_id) == 1
    async with refold.open("memory:", providers=[Script(lambda _: Say("yes"))]) as runtime:
        await (await runtime.start_agent(model="script/m")).ask("hello")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["memory:", "sqlite:"]
