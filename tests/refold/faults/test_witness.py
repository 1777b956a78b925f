"""A recorded store marks what it acknowledges, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold import Say, Script, faults
from refold.faults import FOLDER, Acknowledged, Journal, RecordingDisk, check_promises
from refold.runtime.storage import JsonlFolder, NotFound


async def test_a_whole_runtime_runs_on_a_recording_disk_and_everything_safe_is_marked() -> None:
    disk = RecordingDisk()
    store = faults.recorded_store(disk)
    async with refold.open(store, providers=[Script([Say("Hi."), Say("Ho.")])]) as runtime:
        agent = await runtime.start_agent(session_id="one", model="script/m")
        turn = await agent.ask("Hello.")
        marked = [mark for mark in disk.marks if isinstance(mark, Acknowledged)]
        assert [mark.seq for mark in marked] == list(range(turn.end_seq + 1))
        twin = await runtime.fork("one")
        await twin.ask("Again.")
        assert sorted(await runtime.list()) == sorted(["one", twin.session_id])
        assert store.report("one", "name", b"content") is None
    folder, journal = JsonlFolder(FOLDER, disk), Journal.of(disk.marks)
    assert set(journal.said) == {"one", twin.session_id}
    assert check_promises(folder, journal) == []
    for session, told in journal.said.items():
        assert len(told) >= len(folder.read(session).records) - 1  # the release has no reader


async def test_a_session_can_be_deleted_through_a_recorded_store() -> None:
    store = faults.recorded_store(RecordingDisk())
    async with refold.open(store, providers=[Script([Say("Hi.")])]) as runtime:
        await (await runtime.start_agent(session_id="one", model="script/m")).ask("Hello.")
    await store.delete("one")
    with pytest.raises(NotFound):
        store.reader("one")


async def test_what_a_crash_tore_is_told_through_a_recorded_store() -> None:
    disk = RecordingDisk()
    model = Script([Say("Hi."), Say("Again.")])
    async with refold.open(faults.recorded_store(disk), providers=[model]) as runtime:
        await (await runtime.start_agent(session_id="one", model="script/m")).ask("Hello.")
    fd = disk.open(FOLDER / "one.jsonl", 2)
    disk.pwrite(fd, b"torn", disk.fstat(fd).size)
    async with refold.open(faults.recorded_store(disk), providers=[model]) as runtime:
        agent = await runtime.resume("one")
        await agent.ask("Hello again.")
    records = JsonlFolder(FOLDER, disk).read("one").records
    assert "session/recovered" in [record.type for record in records]


def test_the_public_names_are_these() -> None:
    assert sorted(faults.__all__) == [
        "Acknowledged",
        "BrokenPromise",
        "CrashState",
        "FOLDER",
        "FailingPort",
        "Fault",
        "ForkServer",
        "Image",
        "Journal",
        "KINDS",
        "Kill",
        "Kind",
        "Life",
        "OPERATIONS",
        "OutOfPatience",
        "Program",
        "RecordingDisk",
        "Seen",
        "Witnessed",
        "check_promises",
        "crash_states",
        "kill",
        "recorded_store",
        "recovery_states",
        "start_program",
    ]


def test_an_image_is_what_a_disk_holds_now(tmp_path: Path) -> None:
    disk = RecordingDisk()
    disk.mkdir(tmp_path)
    disk.close(disk.open(tmp_path / "file", 0o102))
    disk.link(tmp_path / "file", tmp_path / "other")
    again = RecordingDisk(disk.image())
    assert again.image().files() == {tmp_path / "file": b"", tmp_path / "other": b""}
    assert again.lstat(tmp_path / "other").links == 2
