"""What a store of logs promises, on a disk, in memory and in a SQLite file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from refold.runtime.errors import InvalidEvent, InvalidSessionId, LegacyEvent, NotLosslessJson
from refold.runtime.storage import (
    AlreadyExists,
    ForeignLog,
    JsonlFolder,
    LogClosed,
    LogCorrupt,
    MaintainedStore,
    NotFound,
    SeqMismatch,
    SessionBusy,
    SessionHeader,
    StoreRefused,
    scan,
)
from tests.runtime.storage.logs import (
    HEADER,
    LOG,
    batches,
    event,
    framed,
    get,
    intercepted,
    memory,
    owner_event,
    put,
    stores,
)


@pytest.fixture(params=["disk", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MaintainedStore:
    return stores(tmp_path / "a" / "b")[request.param]()


def test_what_was_appended_is_read_back(store: MaintainedStore) -> None:
    made = batches([1, 3, 2])
    log = store.create(HEADER)
    for batch in made:
        log.append(batch)
    assert (log.next_seq, log.durable_seq) == (6, -1)
    assert log.sync() == log.durable_seq == 5
    log.close()
    found = store.read("demo")
    assert found.header == HEADER
    assert [record.encoded for record in found.records] == [one for batch in made for one in batch]


def test_a_reopened_log_goes_on_where_it_stood(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0), event(1)])
    log.close()
    log = store.open("demo")
    assert (log.next_seq, log.durable_seq, log.recovered) == (2, 1, None)
    assert [record.seq for record in log.records.since_step(())] == [0, 1]
    assert [record.seq for record in log.records.since_step(())] == [0, 1]
    log.append([event(2)])
    log.close()
    found = store.read("demo")
    assert [(record.seq, record.dur) for record in found.records] == [(0, -1), (1, -1), (2, 1)]


def test_a_log_with_lines_longer_than_a_chunk_is_handed_over_whole(store: MaintainedStore) -> None:
    events = [event(seq, text="x" * 700_000) for seq in range(5)]
    log = store.create(HEADER)
    log.append(events)
    log.close()
    log = store.open("demo")
    assert [record.encoded for record in log.records.since_step(())] == events
    log.close()


def test_a_new_log_has_no_file_before_its_first_batch(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    assert log.sync() == -1
    assert store.list() == []
    assert list(log.records.since_step(())) == []
    with pytest.raises(NotFound):
        store.read("demo")
    log.append([])
    assert store.list() == []
    log.close()
    store.create(HEADER).close()
    assert store.list() == []


def test_later_frames_carry_what_is_durable(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0)])
    log.append([event(1)])
    log.sync()
    log.append([event(2)])
    log.append([event(3)])
    log.close()
    assert [record.dur for record in store.read("demo").records] == [-1, -1, 1, 1]


def test_a_batch_that_does_not_continue_the_log_is_refused(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    for bad in ([event(1)], [event(0), event(2)], [event(0), event(0)]):
        with pytest.raises(SeqMismatch):
            log.append(bad)
    log.append([event(0)])
    assert log.next_seq == 1
    log.close()
    assert len(store.read("demo").records) == 1


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"{}",
        b'{"seq":0,"type":"t","time":1,"data":1}',
        b'{"type":"t","seq":0,"time":1,\n"data":1}',
        b'{"type":"t","seq":0,"time":1,"data":1}\n',
    ],
)
def test_bytes_that_are_no_event_line_are_refused(store: MaintainedStore, bad: bytes) -> None:
    log = store.create(HEADER)
    with pytest.raises(InvalidEvent):
        log.append([bad])
    assert log.next_seq == 0
    log.close()


def test_vocabulary_that_was_given_up_is_never_written(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    with pytest.raises(LegacyEvent):
        log.append([event(0, "request/header-delta", delta={})])
    with pytest.raises(LegacyEvent):
        log.append([event(0, "request/header", header={}, reason="because")])
    log.append([event(0, "request/header", header={}, reason="initial")])
    log.close()


def test_an_existing_session_is_not_created_again(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0)])
    log.close()
    with pytest.raises(AlreadyExists):
        store.create(HEADER)
    store.open("demo").close()


def test_a_damaged_session_is_not_overwritten_by_a_new_one() -> None:
    store, port = memory(b"damaged\n")
    with pytest.raises(AlreadyExists):
        store.create(HEADER)
    assert get(port, LOG) == b"damaged\n"


def test_a_missing_session_is_not_found(store: MaintainedStore) -> None:
    for ask in (store.open, store.read, store.reader):
        with pytest.raises(NotFound):
            ask("demo")


def test_an_id_that_is_a_path_is_refused_everywhere(store: MaintainedStore) -> None:
    for ask in (store.open, store.read, store.reader):
        with pytest.raises(InvalidSessionId):
            ask("../demo")
    with pytest.raises(InvalidSessionId):
        store.create(SessionHeader("../demo", 1))
    with pytest.raises(InvalidSessionId):
        store.fork("demo", 0, SessionHeader("../demo", 1))


def test_a_second_writer_is_told_who_holds_the_session(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    with pytest.raises(SessionBusy) as caught:
        store.create(HEADER)
    assert caught.value.pid is None
    log.append([owner_event(0)])
    with pytest.raises(SessionBusy) as caught:
        store.open("demo")
    assert caught.value.pid == os.getpid()
    assert caught.value.host == os.uname().nodename
    assert caught.value.since == 1_760_000_000_000
    assert str(os.getpid()) in str(caught.value)
    log.close()
    store.open("demo").close()


def test_a_closed_log_takes_nothing_and_closes_only_once(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0)])
    log.close()
    again = store.open("demo")
    log.close()
    with pytest.raises(SessionBusy):
        store.open("demo")
    for use in (lambda: log.append([event(1)]), log.sync):
        with pytest.raises(LogClosed):
            use()
    again.close()


def test_records_of_a_closed_log_are_not_read(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0)])
    log.close()
    log = store.open("demo")
    log.close()
    with pytest.raises(LogClosed):
        list(log.records.since_step(()))


def test_the_owner_of_a_log_is_known_when_it_is_opened(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([owner_event(0)])
    log.close()
    log = store.open("demo")
    assert log.last_owner is not None
    assert log.last_owner.term == 1
    log.append([event(1, "session/released", term=1, reason="end")])
    log.close()
    log = store.open("demo")
    assert log.last_owner is not None
    assert log.last_owner.term == 1
    with pytest.raises(SessionBusy) as caught:
        store.open("demo")
    assert caught.value.pid is None
    log.close()


def test_of_what_stands_before_the_last_sealed_step_some_types_are_read(
    store: MaintainedStore,
) -> None:
    log = store.create(HEADER)
    types = ["a", "b"] * 8 + ["step/start", "a", "request/sealed", "b", "step/start", "a"]
    log.append([event(seq, type_, text="x" * 300_000) for seq, type_ in enumerate(types)])
    log.close()
    log = store.open("demo")
    found = [record.seq for record in log.records.since_step({"b"})]
    assert found == [*range(1, 16, 2), *range(16, 22)]
    log.close()


@pytest.mark.parametrize(
    ("types", "from_"), [(["a", "step/start", "a"], 1), (["a", "a"], 0), (["request/sealed"], 0)]
)
def test_without_a_sealed_step_the_last_step_counts(
    store: MaintainedStore, types: list[str], from_: int
) -> None:
    log = store.create(HEADER)
    log.append([event(seq, type_) for seq, type_ in enumerate(types)])
    log.close()
    log = store.open("demo")
    found = [record.seq for record in log.records.since_step(())]
    assert found == [*range(from_, len(types))]
    log.close()


def test_a_header_that_is_no_lossless_json_is_refused_at_once(store: MaintainedStore) -> None:
    with pytest.raises(NotLosslessJson):
        store.create(SessionHeader("demo", 1, cwd="\udcff"))
    store.create(HEADER).close()


def test_a_request_header_that_is_no_json_is_refused(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    with pytest.raises(InvalidEvent, match="not JSON"):
        log.append([b'{"type":"request/header","seq":0,"time":1,"data":}'])
    with pytest.raises(LegacyEvent):
        log.append([b'{"type":"request/header","seq":0,"time":1}'])
    log.close()


def test_closing_makes_everything_durable_and_says_so(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0)])
    log.close()
    assert log.durable_seq == 0


def test_listing_tells_sessions_damaged_or_not_and_nothing_else() -> None:
    store, port = memory(framed(batches([1, 1, 1]))[0])
    put(port, LOG.with_name("zz.jsonl"), b"damaged\n")
    put(port, LOG.with_name("half.jsonl"), b'{"crc":"0000')
    put(port, LOG.with_name("empty.jsonl"), b"")
    put(port, LOG.with_name("no id.jsonl"), framed([])[0])
    put(port, LOG.with_name("other.txt"), b"x\n")
    log = store.create(SessionHeader("aa", 1))
    log.append([event(0)])
    log.close()
    assert store.list() == ["aa", "demo", "zz"]


def test_reading_changes_no_file() -> None:
    data, _ = framed(batches([1, 2]))
    store, port = memory(data[:-3])
    before = sorted(port.listdir(LOG.parent))
    assert store.read("demo").torn is not None
    store.reader("demo").close()
    store.list()
    assert get(port, LOG) == data[:-3]
    assert sorted(port.listdir(LOG.parent)) == before


def test_a_foreign_log_is_read_and_never_opened_for_writing() -> None:
    store, _ = memory(b'{"type":"session","id":"x","createdAt":1}\n')
    assert store.read("demo").foreign
    with pytest.raises(ForeignLog, match="import it first"):
        store.open("demo")
    with pytest.raises(ForeignLog):
        store.reader("demo")
    with pytest.raises(ForeignLog):
        store.fork("demo", None, SessionHeader("twin", 1))


def test_a_head_file_refuses_the_damage_that_a_log_alone_cannot_see() -> None:
    data, ends = framed(batches([1, 2, 1]))
    store, port = memory(data)
    store.open("demo").close()
    for damaged in (data[: ends[2]], data[:-4], data[: ends[0]], data[:9], b""):
        put(port, LOG, damaged)
        for ask in (store.open, store.read):
            with pytest.raises(LogCorrupt):
                ask("demo")
        assert get(port, LOG) == damaged


def test_with_a_head_file_every_flipped_bit_of_the_log_is_refused() -> None:
    data, _ = framed(batches([1, 2, 1]))
    store, port = memory(data)
    store.open("demo").close()
    newline = len(data) - 1
    for bit in range(newline * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        put(port, LOG, bytes(damaged))
        with pytest.raises(LogCorrupt):
            store.read("demo")


def test_a_head_file_refuses_another_log_in_the_place_of_its_own() -> None:
    store, port = memory(framed(batches([1, 2, 1]))[0])
    store.open("demo").close()
    other, _ = framed([[event(seq, text="other") for seq in range(4)]])
    put(port, LOG, other)
    with pytest.raises(LogCorrupt, match="another record"):
        store.read("demo")


def test_a_damaged_head_file_is_passed_over() -> None:
    data, _ = framed(batches([1, 2, 1]))
    store, port = memory(data)
    store.open("demo").close()
    head = LOG.with_suffix(".head")
    for damaged in (b"", b"\n", bytes(80), get(port, head).replace(b'"seq":3', b'"seq":9')):
        put(port, head, damaged)
        assert len(store.read("demo").records) == 4


def test_a_head_file_of_a_log_that_is_gone_does_not_judge_its_successor() -> None:
    store, port = memory(framed(batches([1, 2, 1]))[0])
    store.open("demo").close()
    port.unlink(LOG)
    log = store.create(HEADER)
    log.append([event(0)])
    log.sync()
    assert len(store.read("demo").records) == 1
    log.close()


def test_an_idle_log_can_write_its_head_without_a_sync() -> None:
    data, _ = framed(batches([1]))
    store, port = memory(data)
    log = store.open("demo")
    syncs: list[str] = []
    quiet = JsonlFolder(
        LOG.parent,
        intercepted(port, lambda name, _args: syncs.append(name) if "sync" in name else None),
    )
    log.close()
    log = quiet.open("demo")
    log.append([event(1)])
    log.sync()
    syncs.clear()
    log.write_mark()
    assert syncs == []
    put(port, LOG, data)
    with pytest.raises(LogCorrupt):
        quiet.read("demo")


def test_files_are_private_to_their_user(tmp_path: Path) -> None:
    log = JsonlFolder(tmp_path / "s").create(HEADER)
    log.append([event(0)])
    log.close()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    for file in (tmp_path / "s").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _link(path: Path, real: Path) -> None:
    path.symlink_to(real)


def _twin(path: Path, real: Path) -> None:
    path.hardlink_to(real)


def _pipe(path: Path, real: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path, real: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_link, _twin, _pipe, _folder])
def test_anything_but_a_plain_file_is_refused(tmp_path: Path, make: object) -> None:
    (tmp_path / "real").write_bytes(framed(batches([1]))[0])
    assert callable(make)
    make(tmp_path / "demo.jsonl", tmp_path / "real")
    store = JsonlFolder(tmp_path)
    for ask in (store.open, store.read, store.reader):
        with pytest.raises(StoreRefused):
            ask("demo")
    assert store.list() == ["demo"]
    with pytest.raises(StoreRefused):
        store.create(HEADER)


def test_a_network_file_system_is_refused_for_writing_and_not_for_reading() -> None:
    _, port = memory(framed(batches([1]))[0])

    def before(operation: str, _args: tuple[object, ...]) -> str | None:
        return "an NFS file system" if operation == "file_system" else None

    store = JsonlFolder(LOG.parent, intercepted(port, before))
    with pytest.raises(StoreRefused, match="NFS"):
        store.open("demo")
    with pytest.raises(StoreRefused, match="NFS"):
        store.create(SessionHeader("new", 1))
    assert len(store.read("demo").records) == 1


def test_the_bytes_on_disk_are_those_of_the_frames(tmp_path: Path) -> None:
    made = batches([2, 1])
    log = JsonlFolder(tmp_path).create(HEADER)
    for batch in made:
        log.append(batch)
        log.sync()
    log.close()
    data = (tmp_path / "demo.jsonl").read_bytes()
    assert data == framed(made)[0]
    assert scan(data, "demo", path="").torn is None
