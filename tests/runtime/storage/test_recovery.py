"""Opening after a crash: what is cut, kept, reported, and what a second crash changes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from refold.runtime.events import SessionRecovered
from refold.runtime.storage import (
    AlreadyExists,
    JsonlFolder,
    JsonlLog,
    LogFailed,
    MemoryPort,
    NotFound,
    Port,
    SessionHeader,
    Unavailable,
    this_process,
)
from refold.runtime.storage.quarantine import lost_note
from tests.runtime.storage.logs import (
    FOLDER,
    HEADER,
    LOG,
    PowerCut,
    batches,
    cut_at,
    event,
    framed,
    get,
    intercepted,
    memory,
    owner_event,
    put,
)

SIZES = [1, 3, 2]


def _quarantined(port: Port) -> list[str]:
    return sorted(name for name in port.listdir(FOLDER) if ".torn-" in name)


def _kept(log: JsonlLog) -> list[bytes]:
    return [record.encoded for record in log.records.since_step(())]


def test_a_log_cut_at_any_byte_opens_with_its_whole_batches() -> None:
    made = batches(SIZES)
    data, ends = framed(made)
    for size in range(ends[0], len(data) + 1):
        store, port = memory(data[:size])
        log = store.open("demo")
        kept = max(index for index, end in enumerate(ends) if end <= size + 1)
        assert _kept(log) == [one for batch in made[:kept] for one in batch]
        assert log.durable_seq == log.next_seq - 1
        assert get(port, LOG) == data[: ends[kept]]
        _check_report(log, port, data[ends[kept] : size], newline=size == ends[kept] - 1)
        log.append([event(log.next_seq)])
        log.close()
        assert store.read("demo").torn is None


def _check_report(log: JsonlLog, port: Port, dropped: bytes, *, newline: bool) -> None:
    report = log.recovered
    if newline:
        assert report is not None
        assert (report.dropped_bytes, report.reason) == (0, "missing-newline")
        assert report.quarantine is None
    elif not dropped:
        assert report is None
        assert _quarantined(port) == []
    else:
        assert report is not None
        assert report.dropped_bytes == len(dropped)
        assert report.quarantine is not None
        assert get(port, FOLDER / report.quarantine) == dropped


def test_a_half_written_header_is_set_aside_and_the_id_is_free() -> None:
    data, ends = framed(batches([1]))
    for size in range(ends[0]):
        store, port = memory(data[:size])
        with pytest.raises(NotFound) as caught:
            store.open("demo")
        assert caught.value.found_bytes == size
        assert _quarantined(port) == ["demo.torn-0-0"]
        log = store.create(HEADER)
        assert log.recovered is not None
        assert (log.recovered.dropped_bytes, log.recovered.quarantine) == (size, "demo.torn-0-0")
        log.close()


def test_creating_over_a_half_written_header_sets_it_aside_too() -> None:
    store, port = memory(b'{"crc":"00')
    log = store.create(HEADER)
    assert log.recovered is not None
    assert log.recovered.quarantine == "demo.torn-0-0"
    log.append([event(0)])
    log.close()
    assert get(port, FOLDER / "demo.torn-0-0") == b'{"crc":"00'
    log = store.open("demo")
    assert log.recovered is None
    log.close()


def test_a_report_that_the_log_never_got_is_made_again_until_it_has_it() -> None:
    data, ends = framed(batches(SIZES))
    store, _ = memory(data[: ends[2] + 20])
    reports = []
    for _ in range(2):
        log = store.open("demo")
        reports.append(log.recovered)
        log.close()
    assert reports[0] is not None
    assert reports[1] is not None
    assert reports[0].quarantine == reports[1].quarantine
    assert reports[1].dropped_bytes == 20
    log = store.open("demo")
    log.append([event(log.next_seq, "session/recovered", quarantine=reports[0].quarantine)])
    log.close()
    log = store.open("demo")
    assert log.recovered is None
    log.close()


def test_different_tails_torn_at_one_place_are_all_kept_and_named() -> None:
    data, ends = framed(batches(SIZES))
    store, port = memory(data[: ends[2]] + b"{first")
    store.open("demo").close()
    port.unlink(LOG.with_suffix(".head"))
    put(port, LOG, data[: ends[2]] + b"{second")
    log = store.open("demo")
    names = f"demo.torn-{ends[2]}-0,demo.torn-{ends[2]}-1"
    assert log.recovered is not None
    assert log.recovered.quarantine == names
    assert log.recovered.dropped_bytes == len(b"{first{second")
    assert log.recovered.dropped_records == 2
    log.close()


def test_a_note_of_lost_events_counts_them_and_no_bytes_also_beside_others() -> None:
    data, ends = framed(batches(SIZES))
    store, port = memory(data[: ends[2]])
    put(port, FOLDER / f"demo.torn-{ends[2]}-0", lost_note(12))
    names = f"demo.torn-{ends[2]}-0"
    log = store.open("demo")
    assert log.recovered == SessionRecovered(0, 12, "lost-events", names)
    log.close()
    port.unlink(LOG.with_suffix(".head"))
    put(port, LOG, data[: ends[2]] + b"{second")
    log = store.open("demo")
    names += f",demo.torn-{ends[2]}-1"
    assert log.recovered == SessionRecovered(len(b"{second"), 13, "partial", names)
    log.close()


def _steps(run: Callable[[Port], object], prepare: Callable[[], MemoryPort]) -> list[MemoryPort]:
    """The state that a power cut before each change of `run` leaves."""
    states = []
    for step in count():
        port = prepare()
        try:
            run(cut_at(port, step))
        except PowerCut:
            states.append(_restarted(port))
        else:
            assert step > 3
            return states
    raise AssertionError


def _restarted(port: MemoryPort) -> MemoryPort:
    """The files of a dead machine: descriptors and locks are gone."""
    fresh = MemoryPort()
    fresh._files = port._files
    return fresh


def _tear(data: bytes) -> Callable[[], MemoryPort]:
    return lambda: memory(data)[1]


def test_a_crash_at_any_step_of_a_recovery_loses_neither_record_nor_report() -> None:
    made = batches(SIZES)
    data, ends = framed(made)
    for tail in (data[ends[2] : -9], b"\0" * 7):
        for port in _steps(
            lambda port: JsonlFolder(FOLDER, port).open("demo"), _tear(data[: ends[2]] + tail)
        ):
            log = JsonlFolder(FOLDER, port).open("demo")
            assert _kept(log) == [one for batch in made[:2] for one in batch]
            assert log.recovered is not None
            names = (log.recovered.quarantine or "").split(",")
            assert [get(port, FOLDER / name) for name in names] == [tail]
            log.close()


def _create_and_append(port: Port) -> None:
    log = JsonlFolder(FOLDER, port).create(HEADER)
    log.append([event(0), event(1)])
    log.sync()
    log.append([event(2)])
    log.close()


def test_a_crash_at_any_step_of_writing_leaves_whole_batches() -> None:
    for port in _steps(_create_and_append, lambda: memory()[1]):
        store = JsonlFolder(FOLDER, port)
        try:
            log = store.open("demo")
        except NotFound:
            log = store.create(HEADER)
        assert log.next_seq in {0, 2, 3}
        log.append([event(log.next_seq)])
        log.close()
        assert store.read("demo").torn is None


def _prepared_for_fork() -> MemoryPort:
    store, port = memory()
    log = store.create(HEADER)
    log.append([event(0), event(1, "turn/end")])
    log.close()
    return _restarted(port)


def test_a_crash_at_any_step_of_a_fork_leaves_it_whole_or_absent() -> None:
    twin = SessionHeader("twin", 1)
    for port in _steps(
        lambda port: JsonlFolder(FOLDER, port).fork("demo", None, twin), _prepared_for_fork
    ):
        store = JsonlFolder(FOLDER, port)
        if store.list() == ["demo"]:
            store.fork("demo", None, twin)
        else:
            assert len(store.read("twin").records) == 2
            with pytest.raises(AlreadyExists):
                store.fork("demo", None, twin)
        store.open("twin").close()
        assert "twin.fork" not in port.listdir(FOLDER)


def _writes(store_port: Port, action: Callable[[Port], object]) -> list[tuple[str, Any]]:
    seen: list[tuple[str, Any]] = []

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "pwrite":
            seen.append((operation, (args[2], bytes(args[1]))))
        elif operation in {"fdatasync", "ftruncate", "sync_directory"}:
            seen.append((operation, None))

    action(intercepted(store_port, before))
    return seen


@pytest.mark.parametrize("sizes", [SIZES, [1, 1]])
def test_what_is_not_known_to_be_durable_is_written_again_in_place_and_synced(
    sizes: list[int],
) -> None:
    data, ends = framed(batches(sizes))
    _, port = memory(data)
    seen = _writes(port, lambda port: JsonlFolder(FOLDER, port).open("demo"))
    assert seen == [("pwrite", (ends[-2], data[ends[-2] :])), ("fdatasync", None)]


def test_a_log_that_never_was_durable_is_written_again_whole_with_its_folder() -> None:
    data, _ = framed(batches(SIZES), synced=False)
    _, port = memory(data)
    seen = _writes(port, lambda port: JsonlFolder(FOLDER, port).open("demo"))
    assert seen == [("pwrite", (0, data)), ("fdatasync", None), ("sync_directory", None)]


def test_the_tail_is_safe_in_quarantine_before_it_is_cut() -> None:
    data, ends = framed(batches(SIZES))
    _, port = memory(data[:-5])
    seen = _writes(port, lambda port: JsonlFolder(FOLDER, port).open("demo"))
    assert [operation for operation, _ in seen[:5]] == [
        "pwrite", "fdatasync", "sync_directory", "ftruncate", "fdatasync",
    ]  # fmt: skip
    assert seen[0][1] == (0, data[ends[2] : -5])


def test_a_log_whose_named_owner_still_runs_goes_on_in_a_file_of_its_own() -> None:
    store, port = memory(framed([[owner_event(0, pid=1)], [event(1)]])[0])
    old = port.lstat(LOG).identity
    log = store.open("demo")
    assert port.lstat(LOG).identity != old
    log.append([event(2)])
    log.close()
    assert len(store.read("demo").records) == 3


def test_a_log_whose_named_owner_is_gone_stays_in_its_file() -> None:
    store, port = memory(framed([[owner_event(0, pid=2**22 + 1)], [event(1)]])[0])
    old = port.lstat(LOG).identity
    store.open("demo").close()
    assert port.lstat(LOG).identity == old


def test_a_log_from_before_a_restart_of_the_machine_stays_in_its_file() -> None:
    owner = {"host": this_process().host, "pid": os.getpid(), "boot": "before"}
    store, port = memory(framed([[event(0, "session/owner", term=1, owner=owner)]])[0])
    old = port.lstat(LOG).identity
    store.open("demo").close()
    assert port.lstat(LOG).identity == old


def test_a_lost_newline_before_zeros_is_put_back_and_the_zeros_reported() -> None:
    data, _ = framed(batches(SIZES))
    store, port = memory(data[:-1] + bytes(9))
    for _ in range(2):
        log = store.open("demo")
        assert get(port, LOG) == data
        assert log.recovered is not None
        assert log.recovered.dropped_bytes == 9
        assert log.recovered.quarantine == f"demo.torn-{len(data) - 1}-0"
        log.close()


def test_a_log_that_this_process_has_open_is_gone_on_with_in_a_copy() -> None:
    store, port = memory(framed([[owner_event(0)], [event(1)]])[0])
    log = store.open("demo")
    old = port.lstat(LOG).identity
    port.unlink(FOLDER / ".lock")
    JsonlFolder(FOLDER, port).open("demo").close()
    assert port.lstat(LOG).identity != old
    with pytest.raises(LogFailed):
        log.append([event(2)])
    log.close()
    old = port.lstat(LOG).identity
    store.open("demo").close()
    assert port.lstat(LOG).identity == old  # which this process has left


@pytest.mark.parametrize("made_here", [True, False])
def test_what_this_process_has_open_is_known_whatever_the_lock_file_says(made_here: bool) -> None:
    """Somebody put another lock file there: nothing tells of it but that the file is open here."""
    data = framed([[owner_event(0)], [event(1)]])[0]
    store, port = memory(None if made_here else data)
    log = store.create(HEADER) if made_here else store.open("demo")
    log.append([owner_event(log.next_seq)])
    log.sync()
    beside = store.create(SessionHeader("beside", 1))
    beside.append([event(0)])
    beside.close()
    port.unlink(FOLDER / ".lock")
    put(port, FOLDER / ".lock", b"")
    other, moved = JsonlFolder(FOLDER, port), []
    for name in ("demo", "beside"):
        path = FOLDER / f"{name}.jsonl"
        before = port.lstat(path).identity
        other.open(name).close()
        moved.append(port.lstat(path).identity != before)
    assert moved == [True, False]
    with pytest.raises(LogFailed):
        log.append([event(log.next_seq)])
    log.close()


@pytest.mark.parametrize("failing", range(1, 4))
def test_a_takeover_whose_folder_cannot_be_synced_keeps_nobody_out(failing: int) -> None:
    owner = {"host": "elsewhere", "pid": 1, "boot": "another"}
    data = framed([[event(0, "session/owner", term=1, owner=owner)]])[0]
    _, port = memory(data)
    syncs = 0

    def fail(operation: str, _args: object) -> None:
        nonlocal syncs
        syncs += operation == "sync_directory"
        if operation == "sync_directory" and syncs == failing:
            raise OSError(errno.EIO, "Input/output error")

    store = JsonlFolder(FOLDER, intercepted(port, fail))
    with pytest.raises(Unavailable):
        store.open("demo")
    log = store.open("demo")
    assert log.next_seq == 1
    log.close()
    assert [name for name in port.listdir(FOLDER) if "copy" in name or "aside" in name] == []


def test_a_log_of_another_machine_is_gone_on_with_in_a_copy() -> None:
    owner = {"host": "elsewhere", "pid": 1, "boot": "another"}
    store, port = memory(framed([[event(0, "session/owner", term=1, owner=owner)]])[0])
    old = port.lstat(LOG).identity
    store.open("demo").close()
    assert port.lstat(LOG).identity != old
