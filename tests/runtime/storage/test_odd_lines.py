"""Which lines an opening reads whatever their type: those that a reader of the whole refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from refold.runtime.envelope import decode_line
from refold.runtime.errors import RefoldError
from refold.runtime.events import FOLDED, UnknownEvent
from refold.runtime.odd_events import STRUCTURAL
from refold.runtime.storage import MemoryPort, scan
from refold.runtime.storage import index as index_module
from refold.runtime.storage.index import read_index
from refold.runtime.storage.odd_lines import odd_lines
from refold.runtime.storage.walk import Records
from tests.runtime.storage.logs import FOLDER, HEADER, event, framed, memory

INDEX = FOLDER / "demo.index"

TEXTS = ["plain", '"}},{"', "},", '},"surfaceOp":"append"}', "\\", "}}", 'data":{', "\u2028"]


def data(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.randrange(5 if depth else 3)
    if kind == 4:
        return {chance.choice(TEXTS): data(chance, depth - 1) for _ in range(chance.randrange(3))}
    if kind == 3:
        return [data(chance, depth - 1) for _ in range(chance.randrange(3))]
    return [chance.choice(TEXTS), chance.randrange(9), None][kind]


def of_step(chance: random.Random) -> dict[str, Any]:
    """The data of a call or a seal, now and then with more or less than it should have."""
    fields = {
        "turn": 1,
        "step": 2,
        "callId": chance.choice(TEXTS),
        "name": chance.choice(TEXTS),
        "arguments": chance.choice(TEXTS),
        "codec": "chat/1",
        "requestDigest": "0",
        "wireDigest": "0",
        "wireBytes": 5,
        "sharedPrefixBytes": 0,
        "invariants": "off",
    }
    kept = [key for key in fields if chance.random() < 0.9]
    return {key: chance.choice([fields[key]] * 9 + [data(chance)]) for key in kept}


def lines(chance: random.Random, count: int) -> Iterator[bytes]:
    types = ["poke", "assistant/chunk", 'a"time":1', *STRUCTURAL, "approval/asked", "llm/retry"]
    for seq in range(count):
        type_ = chance.choice(types)
        inner = of_step(chance) if type_ in STRUCTURAL else data(chance)
        if type_ in ("step/start", "step/end") and chance.random() < 0.7:
            inner = {"turn": 1, "step": 1}
        record: dict[str, Any] = {
            "type": type_,
            "seq": seq,
            "time": chance.choice([7, 1_760_000_000_000]),
        }
        more = {chance.choice(["lang", "surfaceOp", "sourceEventSeqs"]): data(chance)}
        if chance.random() < 0.1:
            record |= more
        record["data"] = inner if chance.random() < 0.9 else {"x": inner}
        if chance.random() < 0.2:
            record |= more
        yield orjson.dumps(record)


def must_be_read(encoded: bytes) -> bool:
    """What a reader of the whole log finds, who decodes every line."""
    try:
        found = decode_line(encoded)
    except RefoldError:
        return True
    return found.type in STRUCTURAL and isinstance(found.data, UnknownEvent)


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_odd_where_a_reader_of_all_would_refuse_them(seed: int) -> None:
    encoded = [*lines(random.Random(seed), 400)]
    log, _ = framed([[one] for one in encoded])
    records = scan(log, "demo", path="x").records
    assert isinstance(records, Records)
    odd = set(odd_lines(records.data, records.where, 0))
    for place, one in enumerate(encoded):
        if orjson.loads(one)["type"] not in FOLDED:  # which an opening reads in any case
            assert (place in odd, one) == (must_be_read(one), one)
    assert 40 < len(odd) < 360
    assert odd_lines(records.data, records.where, 200) == sorted(at for at in odd if at >= 200)


ODD = event(0)[:-1] + b',"lang":{"code":"en"}}'


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FEWEST", 5)


def at(seq: int, encoded: bytes = ODD) -> bytes:
    return encoded.replace(b'"seq":0', b'"seq":%d' % seq)


def last_step(seq: int) -> list[bytes]:
    seal = {
        "turn": 1,
        "step": 1,
        "codec": "chat/1",
        "requestDigest": "0",
        "wireDigest": "0",
        "wireBytes": 1,
        "sharedPrefixBytes": 0,
        "invariants": "off",
    }
    start = event(seq, "step/start", turn=1, step=1)
    return [start, event(seq + 1, "request/sealed", **seal)]


def read_at_opening(store: Any) -> list[int]:
    log = store.open("demo")
    found = [record.seq for record in log.records.since_step(("turn/end",))]
    log.close()
    return found


def test_places_are_kept_with_the_index_and_found_behind_it() -> None:
    store, port = memory()
    log = store.create(HEADER)
    log.append([event(0, "turn/end"), at(1), *map(event, range(2, 30)), *last_step(30)])
    log.close()
    for _ in range(2):
        assert read_at_opening(store) == [0, 1, 30, 31]
        saved = read_index(port, INDEX)
        assert saved is not None
        assert saved.where.odd == [1]
    log = store.open("demo")
    log.append([event(32, "turn/end"), at(33), *map(event, range(34, 60)), *last_step(60)])
    log.close()
    assert store.read("demo").indexed == 62
    assert read_at_opening(store) == [0, 1, 32, 33, 60, 61]


def test_an_index_of_an_older_version_is_not_taken_at_its_word() -> None:
    store, port = memory()
    log = store.create(HEADER)
    log.append([event(0, "turn/end"), at(1), *map(event, range(2, 30)), *last_step(30)])
    log.close()
    saved = read_index(port, INDEX)
    assert saved is not None
    saved.where.odd.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "_VERSION", 1)
        index_module.write_index(port, INDEX, saved)
    assert read_at_opening(store) == [0, 1, 30, 31]


def test_a_log_that_was_closed_without_an_index_is_looked_through() -> None:
    store, port = memory(framed([[event(0, "turn/end"), at(1), *last_step(2)]])[0])
    assert isinstance(port, MemoryPort)
    assert read_at_opening(store) == [0, 1, 2, 3]
