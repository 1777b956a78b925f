"""When files fail under a running session, it stops with one clear error or goes on.

Whatever was acknowledged stands then, in every state that a crash may leave behind it.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path

import pytest

import refold
from refold import Call, Say, Script
from refold.actors import runtime as the_runtime
from refold.actors.ids import now_ms
from refold.faults import (
    FOLDER,
    FailingPort,
    Fault,
    Journal,
    RecordingDisk,
    check_promises,
    crash_states,
)
from refold.runtime.storage import JsonlFolder, LogFailed
from tests.agents import assert_within_rules, read_events
from tests.crash.recordings import play

pytestmark = pytest.mark.crash

FAULTS = [
    ("pwrite", errno.ENOSPC),
    ("pwrite", errno.EFBIG),
    ("pwrite", errno.EIO),
    ("pwrite", errno.EROFS),
    ("fdatasync", errno.EIO),
    ("fdatasync", errno.ENOSPC),
    ("sync_directory", errno.EIO),
    ("open", errno.EROFS),
    ("open", errno.ENOSPC),
    ("mkdir", errno.EROFS),
    ("rename", errno.EROFS),
]


@pytest.mark.parametrize(("operation", "error"), FAULTS)
def test_a_fault_at_any_call_stops_a_session_or_not_and_breaks_no_promise(
    operation: str, error: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ends, times = Counter[str](), None if error == errno.EROFS else 1
    for after in count():
        disk = RecordingDisk()
        fault = Fault(operation, error, after=after, times=times)
        ends[run(disk, FailingPort(disk, Fault("pwrite", short=99, after=3), fault))] += 1
        check_states(disk)
        if fault.after:  # there were not so many calls
            break
    assert ends["went on"] >= 1
    with capsys.disabled():
        print(f"\n{operation} {errno.errorcode[error]}: {dict(ends)}")  # noqa: T201 - the result


def test_a_sync_that_loses_its_bytes_stops_the_session_and_the_next_opening_heals_it() -> None:
    ends = Counter[str]()
    for after in range(1, 9):
        disk = RecordingDisk()
        ends[run(disk, FailingPort(disk, Fault("fdatasync", errno.EIO, after=after - 1)))] += 1
        check_states(disk)
        disk.kill()
        reopen(disk)
        check_states(disk)
    assert ends["went on"] <= 1
    assert ends.total() == 8


def run(disk: RecordingDisk, port: FailingPort) -> str:
    """Play a scene on failing files; how it ended."""
    try:
        play("cancel", 0, disk, random.Random(0), port)
    except refold.RefoldError as told:
        return type(told).__name__
    return "went on"


def reopen(disk: RecordingDisk) -> None:
    """What is read after a failure is durable once it was opened again."""
    folder = JsonlFolder(FOLDER, disk)
    for session in folder.list():
        log = folder.open(session)
        for record in folder.read(session).records:
            disk.acknowledge(session, record.seq, record.encoded)
        log.close()


def check_states(disk: RecordingDisk) -> None:
    """A part of the states, from the last one on, keep all that was acknowledged."""
    for state in islice(crash_states(disk, drawn=4), 0, None, 199):
        folder = JsonlFolder(FOLDER, state.disk())
        for session in folder.list():
            folder.open(session).close()
        assert check_promises(folder, Journal.of(state.marks)) == [], (state.kind, state.lost)


def delete(folder: Path) -> None:
    next(folder.glob("*.jsonl")).unlink()


def replace(folder: Path) -> None:
    log = next(folder.glob("*.jsonl"))
    copy = log.with_suffix(".copy-of-mine")
    copy.write_bytes(log.read_bytes())
    copy.replace(log)


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("renamed"))


@pytest.mark.parametrize("harm", [delete, replace, rename])
async def test_a_log_that_is_taken_away_stops_the_session_with_one_clear_error(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "sessions"

    @refold.tool
    async def disturb() -> str:
        """Do something to the files."""
        harm(folder)
        return "done"

    model = Script([[Say("I will."), Call("disturb")], Say("never said")])
    async with refold.open(folder, providers=[model]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[disturb])
        with pytest.raises(refold.ActorCrashed) as caught:
            await agent.ask("Disturb the files.")
    assert isinstance(caught.value.__cause__, LogFailed)
    assert len(model.bodies) == 1


async def test_a_clock_that_goes_back_by_an_hour_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = [3_600_000]
    monkeypatch.setattr(the_runtime, "now_ms", lambda: now_ms() + ahead[0])
    async with refold.open("memory:", providers=[Script([Say("one"), Say("two")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("first")
        ahead[0] = 0
        turn = await agent.ask("second")
        assert turn.reason.kind == "completed"
        events = read_events(runtime.store, agent.session_id)
        assert_within_rules(events)
        assert events[-1].time < events[0].time
