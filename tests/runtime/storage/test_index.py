"""The index file makes opening faster and changes nothing else, whatever it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.runtime.storage import (
    JsonlFolder,
    LogCorrupt,
    MemoryPort,
    Scan,
    SessionHeader,
    SqliteFile,
)
from refold.runtime.storage import index as index_module
from refold.runtime.storage.index import read_index
from refold.runtime.storage.walk import Records
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, event, get, memory, put

INDEX = FOLDER / "demo.index"

TYPES = ["turn/start", "assistant/chunk", "weird \u2028 type", "assistant/chunk", "turn/end"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FEWEST", 5)


def written(count: int = 40) -> tuple[JsonlFolder, MemoryPort]:
    """A store whose log was closed, so that an index of all its records stands beside it."""
    store, port = memory()
    log = store.create(HEADER)
    for seq in range(0, count, 2):
        log.append(
            [event(seq, TYPES[seq % 5], text="é" * seq), event(seq + 1, TYPES[(seq + 1) % 5])]
        )
        log.sync()
    log.close()
    return store, port


def facts(found: Scan) -> tuple[object, ...]:
    return (found.header, [*found.records], found.end, found.torn)


def without_index(port: MemoryPort, log: bytes) -> Scan:
    bare, _ = memory(log)
    return bare.read("demo")


def test_a_scan_with_an_index_says_what_one_without_says() -> None:
    store, port = written()
    found = store.read("demo")
    assert found.indexed == 40
    bare = without_index(port, get(port, LOG))
    assert bare.indexed == 0
    assert facts(found) == facts(bare)
    assert isinstance(found.records, Records)
    assert isinstance(bare.records, Records)
    assert found.records.where == bare.records.where


def test_what_came_after_the_index_is_walked() -> None:
    store, port = written()
    saved = get(port, INDEX)
    log = store.open("demo")
    log.append([event(40), event(41)])
    log.sync()
    found = store.read("demo")
    assert (found.indexed, len(found.records)) == (40, 42)
    assert facts(found) == facts(without_index(port, get(port, LOG)))
    log.close()
    assert get(port, INDEX) == saved  # two more are not worth writing it again


def test_an_index_is_written_again_once_the_log_has_grown_by_an_eighth() -> None:
    store, _ = written()
    log = store.open("demo")
    log.append([event(seq) for seq in range(40, 47)])
    log.close()
    assert store.read("demo").indexed == 47


def test_a_log_of_more_types_than_an_index_can_number_is_closed_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "_MOST_TYPES", 2)
    store, port = written()
    assert "demo.index" not in port.listdir(FOLDER)
    assert len(store.read("demo").records) == 40


def test_a_short_log_has_no_index() -> None:
    _, port = written(4)
    assert "demo.index" not in port.listdir(FOLDER)


def test_no_flipped_bit_of_an_index_changes_what_is_read() -> None:
    store, port = written()
    saved, expected = get(port, INDEX), facts(store.read("demo"))
    for at in range(len(saved)):
        for bit in range(8):
            put(port, INDEX, saved[:at] + bytes([saved[at] ^ 1 << bit]) + saved[at + 1 :])
            assert facts(store.read("demo")) == expected
            assert store.read("demo").indexed == 0
    for size in range(len(saved)):
        put(port, INDEX, saved[:size])
        assert facts(store.read("demo")) == expected


def test_an_index_of_another_log_is_passed_over() -> None:
    store, port = written()
    other = memory()[0]
    log = other.create(SessionHeader("demo", 5, durability="power"))
    log.append([event(seq) for seq in range(40)])
    log.close()
    assert isinstance(other._port, MemoryPort)
    put(port, INDEX, get(other._port, INDEX))
    assert store.read("demo").indexed == 0


def test_a_flipped_bit_of_the_log_is_named_though_an_index_stands_beside_it() -> None:
    store, port = written()
    data = get(port, LOG)
    at = data.index(b'"seq":7,')
    put(port, LOG, data[:at] + b"X" + data[at + 1 :])
    with pytest.raises(LogCorrupt) as damage:
        store.read("demo")
    assert damage.value.expected_seq == 7


def test_a_log_cut_below_its_index_is_judged_by_its_bytes() -> None:
    store, port = written()
    port.unlink(FOLDER / "demo.head")
    data = get(port, LOG)
    for size in range(len(data) - 300, len(data)):
        put(port, LOG, data[:size])
        assert facts(store.read("demo")) == facts(without_index(port, data[:size]))


def test_a_check_that_is_left_out_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test: an index that is taken at its word hides damage."""
    store, port = written()
    data = get(port, LOG)
    at = data.index(b'"seq":7,')
    put(port, LOG, data[:at] + b"X" + data[at + 1 :])
    monkeypatch.setattr(index_module.SavedIndex, "fits", lambda *_: True)
    assert store.read("demo").torn is None


def test_a_sqlite_file_has_indexes_too(tmp_path: Path) -> None:
    store = SqliteFile(tmp_path / "s.db")
    log = store.create(HEADER)
    log.append([event(seq, TYPES[seq % 5]) for seq in range(40)])
    log.close()
    assert store.read("demo").indexed == 40
    again = store.open("demo")
    assert [record.seq for record in again.records.since_step(TYPES)] == list(range(40))
    again.close()
    store.delete("demo")
    assert [*(tmp_path / "s.db-beside").iterdir()] == []
    store.close()


def test_an_index_that_is_no_plain_file_is_passed_over(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    log = store.create(HEADER)
    log.append([event(seq) for seq in range(10)])
    log.close()
    path = tmp_path / "demo.index"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert read_index(store._port, path) is None
    assert store.read("demo").indexed == 0
