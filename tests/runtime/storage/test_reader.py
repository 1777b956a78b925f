"""A reader follows a log by its bytes alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refold.runtime.storage import JsonlFolder, LogCorrupt, LogReader, MemoryPort, NotFound
from tests.runtime.storage.logs import HEADER, LOG, batches, event, framed, memory, put


def _grow(port: MemoryPort, data: bytes) -> None:
    fd = port.open(LOG, os.O_RDWR | os.O_CREAT)
    port.ftruncate(fd, 0)
    port.pwrite(fd, data, 0)
    port.close(fd)


def _seqs(reader: LogReader) -> list[int]:
    return [record.seq for record in reader.read_new()]


def test_each_record_is_delivered_once_and_verified(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    log = store.create(HEADER)
    with pytest.raises(NotFound):
        store.reader("demo")
    log.append([event(0)])
    reader = store.reader("demo")
    assert reader.header == HEADER
    assert _seqs(reader) == [0]
    assert _seqs(reader) == []
    log.append([event(1), event(2)])
    log.append([event(3)])
    assert _seqs(reader) == [1, 2, 3]
    assert reader.bytes_read == (tmp_path / "demo.jsonl").stat().st_size
    reader.close()
    log.close()


def test_a_log_that_grows_byte_by_byte_is_delivered_in_whole_batches() -> None:
    data, ends = framed(batches([1, 3, 2]))
    store, port = memory(data[: ends[0]])
    reader = store.reader("demo")
    got: list[int] = []
    for size in range(ends[0], len(data) + 1):
        _grow(port, data[:size])
        got += _seqs(reader)
        assert len(got) == {0: 0, 1: 1, 2: 4, 3: 6}[sum(end <= size for end in ends) - 1]
    assert got == list(range(6))


def test_a_batch_that_was_taken_back_was_never_delivered() -> None:
    data, ends = framed(batches([1, 3]))
    other, _ = framed([*batches([1]), [event(1, text="instead")]])
    store, port = memory(data[: ends[1]])
    reader = store.reader("demo")
    assert _seqs(reader) == [0]
    _grow(port, data[:-1])
    assert _seqs(reader) == []
    _grow(port, other)
    assert _seqs(reader) == [1]


def test_a_broken_chain_is_told_with_its_place() -> None:
    data, ends = framed(batches([1, 1, 1]))
    store, port = memory(data[: ends[1]])
    reader = store.reader("demo")
    reader.read_new()
    _grow(port, data[: ends[1] + 30] + b"#" + data[ends[1] + 31 :])
    for _ in range(2):
        with pytest.raises(LogCorrupt) as caught:
            reader.read_new()
        assert (caught.value.offset, caught.value.expected_seq) == (ends[1], 1)
        assert caught.value.line == 3


def test_a_log_that_became_shorter_is_told() -> None:
    data, ends = framed(batches([1, 1]))
    store, port = memory(data)
    reader = store.reader("demo")
    reader.read_new()
    _grow(port, data[: ends[1]])
    with pytest.raises(LogCorrupt, match="shorter"):
        reader.read_new()


def test_a_long_log_is_read_in_pieces_of_whole_batches() -> None:
    data, _ = framed(batches([1, 40, 1, 2]))
    store, _ = memory(data)
    reader = store.reader("demo")
    pieces = []
    while records := reader.read_new(max_bytes=300):
        pieces.append([record.seq for record in records])
    assert [seq for piece in pieces for seq in piece] == list(range(44))
    assert len(pieces) > 2
    assert pieces[0] == [0]


def test_a_record_can_be_read_again() -> None:
    data, _ = framed(batches([1, 3]))
    store, _ = memory(data)
    reader = store.reader("demo")
    for record in reader.read_new():
        read = reader.bytes_read
        assert reader.reread(record) == record
        assert reader.bytes_read == read + record.length
    reader.close()


def test_a_reader_of_a_half_written_header_finds_nothing() -> None:
    store, port = memory(b'{"crc":"00')
    with pytest.raises(NotFound):
        store.reader("demo")
    assert port._open == {}
    put(port, LOG, b"no header\n")
    with pytest.raises(LogCorrupt):
        store.reader("demo")
    assert port._open == {}
