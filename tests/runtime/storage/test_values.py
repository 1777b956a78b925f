"""What goes from one kind of store to another and back is the same, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refold.runtime.envelope import decode_line
from refold.runtime.errors import LegacyEvent
from refold.runtime.json import encode
from refold.runtime.storage import (
    JsonlFolder,
    MaintainedStore,
    SessionHeader,
    SqliteFile,
    frame_batch,
    frame_header,
)
from tests.runtime.storage.logs import HEADER, stores

VALUES: dict[str, Any] = {
    "a line separator": "a\u2028b",
    "a paragraph separator": "a\u2029b",
    "a next line": "a\u0085b",
    "a form feed and a group separator": "a\x0b\x0c\x1c\x1db",
    "a NUL": "a\x00b",
    "an emoji": "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-5}\N{ZERO WIDTH JOINER}",
    "2^63": 2**63,
    "the largest number": 2**64 - 1,
    "the smallest number": -(2**63),
    "0.1+0.2": 0.1 + 0.2,
    "1e-7": 1e-7,
    "keys against the alphabet": {"z": 1, "a": {"y": 2, "b": 3}, "": None},
    "an empty list in a list": [[], {}, ""],
    "20 MB": "\u00e9x" * 7_000_000,
}


def encoded(value: Any) -> bytes:
    return encode({"type": "assistant/chunk", "seq": 0, "time": 1, "data": {"value": value}})


RAW: dict[str, bytes] = {
    "escapes of the other spelling": rb'{"a":"\u2028\u0000\ud83d\ude00\/"}',
    "numbers of the other spelling": b'{"a":1e-07,"b":1.0,"c":1E3,"d":10000000000000000000000}',
    "blanks and the same key twice": b'{ "a" : 1 , "a" : 2 }',
}


def raw(data: bytes) -> bytes:
    return b'{"type":"assistant/chunk","seq":0,"time":1,"data":%b}' % data


CASES = {name: encoded(value) for name, value in VALUES.items()}
CASES |= {name: raw(data) for name, data in RAW.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_the_same_after_files_sqlite_and_files(name: str, tmp_path: Path) -> None:
    event = CASES[name]
    first, middle = JsonlFolder(tmp_path / "a"), SqliteFile(tmp_path / "s.db")
    last = JsonlFolder(tmp_path / "b")
    log = first.create(HEADER)
    log.append([event])
    log.close()
    start = len(frame_header(HEADER))
    whole = first.raw("demo")
    middle.adopt(HEADER, whole[start:])
    last.adopt(HEADER, middle.raw("demo")[start:])
    assert last.raw("demo") == middle.raw("demo") == whole
    for store in (first, middle, last):
        (record,) = store.read("demo").records
        assert record.encoded == event
        (read,) = store.reader("demo").read_new()
        assert read.encoded == event
    if name in VALUES:
        assert decode_line(record.encoded).encoded == event


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_sqlite_stores_itself_has_the_bytes_of_a_file(
    name: str, tmp_path: Path
) -> None:
    made = []
    for store in (JsonlFolder(tmp_path), SqliteFile(tmp_path / "s.db")):
        log = store.create(HEADER)
        log.append([CASES[name]])
        log.close()
        made.append(store.raw("demo"))
    assert made[0] == made[1]


LEGACY = [
    raw(b"{}").replace(b"assistant/chunk", b"request/header-delta"),
    raw(b'{"header":{},"reason":"fallback"}').replace(b"assistant/chunk", b"request/header"),
]


def _put_by_hand(store: MaintainedStore, header: SessionHeader, lines: bytes) -> None:
    """A log that a store would not have taken, put where its own are."""
    if isinstance(store, SqliteFile):
        store.adopt(header, b"")
        with store._database.transaction(durable=True) as db:
            values = [(seq, line + b"\n") for seq, line in enumerate(lines.split(b"\n")[:-1])]
            db.executemany("INSERT INTO lines SELECT max(number), ?, ? FROM sessions", values)
    else:
        folder = Path(store.address)
        folder.mkdir(exist_ok=True)
        (folder / f"{header.id}.jsonl").write_bytes(frame_header(header) + lines)


@pytest.mark.parametrize("kind", ["disk", "sqlite"])
@pytest.mark.parametrize("event", LEGACY, ids=["delta", "fallback"])
def test_a_log_of_given_up_vocabulary_is_refused_on_every_way_in(
    kind: str, event: bytes, tmp_path: Path
) -> None:
    store = stores(tmp_path)[kind]()
    end = b'{"type":"turn/end","seq":1,"time":1,"data":{}}'
    lines, _ = frame_batch([event, end], 0, -1)
    with pytest.raises(LegacyEvent):
        store.adopt(SessionHeader("new", 1), lines)
    assert store.list() == []
    _put_by_hand(store, HEADER, lines)
    for ask in (store.read, store.open, lambda name: store.reader(name).read_new()):
        with pytest.raises(LegacyEvent):
            ask("demo")
    with pytest.raises(LegacyEvent):
        store.fork("demo", None, SessionHeader("twin", 1))
    assert store.list() == ["demo"]
    assert store.raw("demo") == frame_header(HEADER) + lines
