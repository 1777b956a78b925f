"""What both synchronous stores do alike: copies, repairs by command, removal, and their times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from refold.runtime.storage import (
    Fenced,
    JsonlFolder,
    MaintainedStore,
    NoSuchStore,
    NotFound,
    SessionBusy,
    SessionHeader,
    Unavailable,
    open_sessions,
    scan,
)
from refold.runtime.storage.address import within
from refold.runtime.storage.durable_mark import vanished
from refold.runtime.storage.port import OS
from tests.runtime.storage.logs import FOLDER, LOG, PowerCut, cut_at, event, framed, get, memory

HEADER = SessionHeader("one", 1_000)


@pytest.fixture(params=["folder", "sqlite:///sessions.db"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MaintainedStore]:
    monkeypatch.chdir(tmp_path)
    with closing(open_sessions(request.param)) as sessions:
        assert sessions.address == request.param
        yield sessions


def write(store: MaintainedStore, count: int, header: SessionHeader = HEADER) -> bytes:
    log = store.create(header)
    log.append(*([event(seq)] for seq in range(count)))
    log.close()
    return store.raw(header.id)


def lines(data: bytes) -> bytes:
    return data.partition(b"\n")[2]


def test_a_log_that_is_replaced_is_kept_as_a_copy_and_its_dropped_bytes_are_reported(
    store: MaintainedStore,
) -> None:
    before = write(store, 3)
    kept = lines(before).splitlines(keepends=True)[0]
    end = len(before) - len(lines(before)) + len(kept)
    copy = store.replace(HEADER, kept, (end, before[end:]))
    assert Path(copy).read_bytes() == before
    assert store.raw("one") == before[:end]
    assert store.beside("one").mark is None
    log = store.open("one")
    assert log.recovered is not None
    assert (log.recovered.dropped_bytes, log.recovered.dropped_records) == (len(before) - end, 2)
    assert log.recovered.quarantine == f"one.torn-{end}-0"
    log.append([event(1)])
    log.close()
    assert store.beside("one").quarantine == (f"one.torn-{end}-0",)


def test_nothing_dropped_leaves_nothing_to_report(store: MaintainedStore) -> None:
    before = write(store, 3)
    copy = store.replace(HEADER, lines(before), (len(before), b""))
    assert Path(copy).read_bytes() == store.raw("one") == before
    log = store.open("one")
    assert log.recovered is None
    log.close()


def test_a_crash_at_any_step_of_a_repair_leaves_the_old_log_or_the_new_and_loses_nothing() -> None:
    data, ends = framed([[event(0)], [event(1)], [event(2)]])
    damaged = data.replace(b'"seq":1,', b'"seq":7,')
    new, dropped = data[: ends[1]], damaged[ends[1] :]
    header = scan(data, "demo", path="x").header
    step = 0
    for step in count():
        _, port = memory(damaged)
        try:
            crashing = JsonlFolder(FOLDER, cut_at(port, step))
            crashing.replace(header, data[ends[0] : ends[1]], (ends[1], dropped))
        except PowerCut:
            assert get(port, LOG) in (damaged, new)
        else:
            break
        store = JsonlFolder(FOLDER, port)
        if get(port, LOG) == damaged:
            store.replace(header, data[ends[0] : ends[1]], (ends[1], dropped))
        assert get(port, LOG) == new
        assert get(port, FOLDER / "demo.damaged-0") == damaged
        log = store.open("demo")
        assert log.recovered is not None
        assert log.recovered.dropped_bytes == len(dropped)
        log.close()
    assert step > 8


def test_a_log_without_events_can_be_gone_on_with(store: MaintainedStore) -> None:
    before = write(store, 2)
    store.replace(HEADER, b"", (len(before) - len(lines(before)), lines(before)))
    store.adopt(attrs.evolve(HEADER, id="empty"), b"")
    for session in ("one", "empty"):
        log = store.open(session)
        log.append([event(0)])
        log.close()
        assert len(store.read(session).records) == 1


def test_an_open_log_is_neither_replaced_nor_deleted(store: MaintainedStore) -> None:
    before = write(store, 2)
    log = store.open("one")
    with pytest.raises(SessionBusy):
        store.replace(HEADER, b"", (0, b""))
    with pytest.raises(SessionBusy):
        store.delete("one")
    log.close()
    assert store.raw("one") == before


def test_nothing_of_a_deleted_log_is_left(store: MaintainedStore, tmp_path: Path) -> None:
    before = write(store, 2)
    write(store, 2, attrs.evolve(HEADER, id="one-more"))
    for session in ("one", "one-more"):
        end = len(store.raw(session)) - len(before.splitlines(keepends=True)[-1])
        rest = store.raw(session)
        header = attrs.evolve(HEADER, id=session)
        store.replace(header, lines(rest[:end]), (end, rest[end:]))
        store.open(session).close()
        for name in ("violation-3.json", "head.new", "index"):
            (store.reports / f"{session}.{name}").write_bytes(b"private")
    store.delete("one")
    assert store.list() == ["one-more"]
    with pytest.raises(NotFound):
        store.delete("one")
    left = [path.name for path in tmp_path.rglob("*")]
    assert not [name for name in left if "one." in name]
    for kept in ("damaged-0", "violation-3.json", "head", "head.new", "index"):
        assert any(name.endswith(f"one-more.{kept}") for name in left)
    assert store.beside("one").quarantine == ()
    assert store.beside("one-more").quarantine
    assert lines(write(store, 2)) == lines(before)


def test_a_reader_knows_when_its_lines_are_no_more_the_session_s(store: MaintainedStore) -> None:
    before = write(store, 2)
    reader = store.reader("one")
    assert reader.is_current()
    store.replace(HEADER, lines(before), (len(before), b""))
    assert not reader.is_current()
    reader.close()
    reader = store.reader("one")
    store.delete("one")
    assert not reader.is_current()
    reader.close()


def test_a_log_that_only_grows_stays_the_reader_s(store: MaintainedStore) -> None:
    write(store, 2)
    log = store.open("one")
    reader = store.reader("one")
    log.append([event(2)])
    assert reader.is_current()
    assert len(reader.read_new()) == 3
    reader.close()
    log.close()


def test_a_new_fork_was_written_later_than_its_parent(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0, "turn/end", turn=1, reason={"kind": "completed"})])
    log.close()
    store.fork("one", None, SessionHeader("two", 2_000_000_000_000))
    assert store.written_at("two") >= store.written_at("one") > 0  # a file's clock is coarse
    if store.address.startswith("sqlite:"):
        assert store.written_at("two") == 2_000_000_000_000 * 1_000_000
    assert store.written_at("three") == 0


@pytest.mark.parametrize(
    ("address", "meant"),
    [
        ("a/b", "/x/a/b"),
        ("/a", "/a"),
        ("sqlite:///a.db", "sqlite:////x/a.db"),
        ("sqlite:////a.db", "sqlite:////a.db"),
        ("sqlite:///~/a.db", "sqlite:////home/me/a.db"),
    ],
)
def test_a_relative_address_is_taken_from_a_folder(
    address: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert within(Path("/x"), address) == meant
    assert open_sessions(within(Path("/x"), address)).address == meant


def test_a_store_in_memory_has_no_path_to_take_from_a_folder() -> None:
    assert within(Path("/x"), "memory:") == "memory:"


@pytest.mark.parametrize("address", ["sqlite:///", "sqlite://a.db", "sqlite:a.db", "http://x"])
def test_an_address_of_no_store_is_refused(address: str) -> None:
    with pytest.raises(NoSuchStore, match="names no store"):
        open_sessions(address)


def test_a_file_in_a_folder_s_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="give a store's folder, or sqlite:///FILE"):
        open_sessions(tmp_path / "file").list()
    with pytest.raises(Unavailable, match="give a store's folder, or sqlite:///FILE"):
        open_sessions(tmp_path / "file").create(HEADER)


def test_a_store_is_there_once_it_was_written_to(store: MaintainedStore) -> None:
    assert not store.is_there()
    assert (store.list(), store.vanished(), store.is_there()) == ([], [], False)
    write(store, 1)
    assert store.is_there()
    store.delete("one")
    assert (store.is_there(), store.vanished()) == (True, [])


def test_a_session_that_is_made_or_deleted_meanwhile_has_not_vanished(
    store: MaintainedStore,
) -> None:
    write(store, 1)
    heads = store.reports

    def deleted() -> list[str]:
        store.delete("one")
        return store.list()

    def made() -> list[str]:
        before = store.list()
        write(store, 1, SessionHeader("two", 0))
        return before

    assert vanished(OS, heads, list) == ["one"]
    assert vanished(OS, heads, deleted) == []
    assert vanished(OS, heads, made) == []
    assert vanished(OS, heads, list) == ["two"]


@pytest.mark.parametrize(("level", "stands"), [("power", 0), ("process", 3)])
@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_who_was_taken_over_is_told_what_was_acknowledged_at_its_level(
    scheme: str, level: Any, stands: int, tmp_path: Path
) -> None:
    def owner(seq: int, term: int) -> bytes:
        who = {"host": "h", "pid": 1, "boot": "b"}
        return event(seq, "session/owner", term=term, owner=who)

    where = f"{scheme}{tmp_path / 'store'}"
    old = open_sessions(where).create(SessionHeader("demo", 1, durability=level))
    old.append([owner(0, 1)])
    if level == "power":
        old.sync()
    for seq in (1, 2, 3):
        old.append([event(seq)])
    for lock in (tmp_path / "store.lock", tmp_path / "store" / ".lock"):
        if lock.exists():
            lock.unlink()
    new = open_sessions(where).open("demo")
    new.append([owner(4, 2)])
    new.sync()
    with pytest.raises(Fenced) as fenced:
        old.append([event(4)])
    assert fenced.value.durable_seq == stands
    assert f"the events up to seq {stands} stand" in str(fenced.value)
    old.close()
    new.close()
