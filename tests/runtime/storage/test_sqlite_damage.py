"""Damage in a SQLite file: never silent where a head file vouches, and one session's own affair."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.storage import (
    FileCorrupt,
    LogCorrupt,
    Scan,
    SessionHeader,
    SqliteFile,
    Unavailable,
    frame_header,
)
from tests.runtime.storage.databases import (
    Failing,
    break_index,
    break_page,
    closed,
    database_of,
    editing,
    fill,
    remove_heads,
    sql,
    texts,
)
from tests.runtime.storage.logs import HEADER, event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def _flip(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _flipped_lines(path: Path) -> list[tuple[int, bytes, int]]:
    """Each seq with its line and a bit to flip, every bit of every line."""
    lines = sql(path, "SELECT seq, line FROM lines ORDER BY seq")
    return [(seq, line, bit) for seq, line in lines for bit in range(len(line) * 8)]


def test_with_a_head_file_every_flipped_bit_of_a_line_is_refused(path: Path) -> None:
    store = closed(path)
    flips = _flipped_lines(path)
    assert len(flips) > 4000
    with editing(path) as db:
        for seq, line, bit in flips:
            db.execute("UPDATE lines SET line = ? WHERE seq = ?", (_flip(line, bit), seq))
            # The last newline tells nothing: without it, the record is as whole as before.
            if seq == 3 and bit // 8 == len(line) - 1:
                continue
            with pytest.raises(LogCorrupt) as damage:
                store.read("demo")
            assert "session demo in" in str(damage.value)
            db.execute("UPDATE lines SET line = ? WHERE seq = ?", (line, seq))


def test_without_a_head_file_a_flipped_bit_is_refused_or_a_torn_tail(path: Path) -> None:
    store = closed(path)
    remove_heads(path)
    whole = texts(store)
    torn = refused = 0
    with editing(path) as db:
        for seq, line, bit in _flipped_lines(path):
            db.execute("UPDATE lines SET line = ? WHERE seq = ?", (_flip(line, bit), seq))
            try:
                found = store.read("demo")
            except LogCorrupt:
                refused += 1
            else:
                assert found.torn is not None
                # Nothing believable calls the last batch durable, nor the one before it where
                # the line that the last is chained to is damaged, or begins at another place.
                assert seq >= 2 or (seq == 1 and bit // 8 == len(line) - 1)
                kept = [record.encoded for record in found.records]
                assert kept == whole[: len(kept)]
                torn += 1
            db.execute("UPDATE lines SET line = ? WHERE seq = ?", (line, seq))
    assert refused > torn > 0


@pytest.mark.parametrize("has_head", [True, False])
def test_flipped_bits_of_the_header_are_refused(path: Path, has_head: bool) -> None:
    store = closed(path)
    if not has_head:
        remove_heads(path)
    [(header,)] = sql(path, "SELECT header FROM sessions")
    for bit in range(len(header) * 8):
        sql(path, "UPDATE sessions SET header = ?", _flip(header, bit))
        with pytest.raises(RefoldError):
            store.read("demo")
    sql(path, "UPDATE sessions SET header = ?", header)
    assert len(texts(store)) == 4


def test_a_damaged_tail_is_cut_kept_and_reported(path: Path) -> None:
    store = closed(path)
    remove_heads(path)
    [(line,)] = sql(path, "SELECT line FROM lines WHERE seq = 3")
    damaged = _flip(line, 8 * 30)
    sql(path, "UPDATE lines SET line = ? WHERE seq = 3", damaged)
    assert store.read("demo").torn is not None
    for _ in range(2):  # a crash before the report is written changes nothing
        log = store.open("demo")
        assert log.recovered is not None
        assert log.recovered.dropped_bytes == len(damaged)
        assert log.recovered.dropped_records == 1
        assert log.next_seq == 3
        log.close()
    assert sql(path, "SELECT bytes FROM torn") == [(damaged,)]
    (name,) = store.beside("demo").quarantine
    assert name == f"demo.torn-{len(store.raw('demo'))}-0"
    log = store.open("demo")
    assert log.recovered is not None
    log.append([event(3, "session/recovered", quarantine=log.recovered.quarantine)])
    log.close()
    log = store.open("demo")
    assert log.recovered is None
    log.close()


def test_a_lost_newline_is_put_back(path: Path) -> None:
    store = closed(path)
    remove_heads(path)
    before = store.raw("demo")
    sql(path, "UPDATE lines SET line = substr(line, 1, length(line) - 1) WHERE seq = 3")
    assert store.raw("demo") == before[:-1]
    log = store.open("demo")
    assert log.recovered is not None
    assert (log.recovered.dropped_bytes, log.next_seq) == (0, 4)
    assert store.raw("demo") == before
    log.append([event(4)])
    log.close()
    assert store.read("demo").torn is None


def _read_or_refused(store: SqliteFile) -> Scan | LogCorrupt:
    try:
        return store.read("demo")
    except LogCorrupt as damage:
        return damage


@pytest.mark.parametrize("has_head", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM lines WHERE seq = 1",
        "DELETE FROM lines WHERE seq = 0",
        "UPDATE lines SET seq = 1099511627776 WHERE seq = 3",
        "UPDATE lines SET seq = 1099511627776 WHERE seq = 1",
        "UPDATE lines SET session = 7 WHERE seq = 2",
        "UPDATE lines SET line = x'' WHERE seq = 2",
        "UPDATE lines SET line = x'' WHERE seq = 3",
        "UPDATE lines SET line = CAST(line || line AS BLOB) WHERE seq = 3",
        "UPDATE lines SET line = CAST('\n' || line AS BLOB) WHERE seq = 3",
    ],
)
def test_a_hole_between_rows_is_damage_and_ends_the_reading(
    path: Path, change: str, has_head: bool
) -> None:
    store = closed(path)
    if not has_head:
        remove_heads(path)
    sql(path, change)
    found = _read_or_refused(store)
    if isinstance(found, LogCorrupt):
        assert found.readable is not None
        assert len(found.readable.records) < 4 or "|| line" in change
        with pytest.raises(LogCorrupt):
            store.open("demo")
        return
    assert not has_head or "|| line" in change
    assert found.torn is not None
    log = store.open("demo")
    assert log.recovered is not None
    log.append([event(log.next_seq)])
    log.close()
    assert store.read("demo").torn is None


def test_a_reader_meets_a_hole(path: Path) -> None:
    store = closed(path)
    reader = store.reader("demo")
    reader.read_new(1)
    sql(path, "DELETE FROM lines WHERE seq = 1")
    with pytest.raises(LogCorrupt, match="expected seq 1"):
        reader.read_new()
    sql(path, "DELETE FROM lines WHERE seq >= 0")
    with pytest.raises(LogCorrupt, match="became shorter"):
        reader.read_new()


def test_rows_that_are_gone_are_noticed_where_the_head_file_covers_them(path: Path) -> None:
    store = closed(path)
    sql(path, "DELETE FROM lines WHERE seq = 3")
    with pytest.raises(LogCorrupt, match="seq 3 was durable"):
        store.read("demo")
    sql(path, "DELETE FROM lines")
    with pytest.raises(LogCorrupt):
        store.open("demo")


def _uncheckpointed(path: Path, many: int) -> tuple[bytes, bytes]:
    """The file and the write-ahead log of a store that was killed after `many` commits."""
    store = SqliteFile(path)
    log = store.create(HEADER)
    for seq in range(many):
        log.append([event(seq, text="t" * 300)])
        log.sync()
    log.write_mark()
    wal = path.with_name("sessions.db-wal")
    return path.read_bytes(), wal.read_bytes()


def _put(folder: Path, source: Path, data: bytes, wal: bytes) -> Path:
    """A copy of a store as a crash leaves it."""
    folder.mkdir()
    path = folder / source.name
    path.write_bytes(data)
    path.with_name(path.name + "-wal").write_bytes(wal)
    heads = path.with_name(path.name + "-beside")
    heads.mkdir()
    for head in source.with_name(source.name + "-beside").iterdir():
        (heads / head.name).write_bytes(head.read_bytes())
    return path


def test_a_flipped_bit_that_makes_sqlite_drop_committed_rows_is_noticed(
    path: Path, tmp_path: Path
) -> None:
    data, wal = _uncheckpointed(path, 30)
    middle = len(wal) // 2
    for number, place in enumerate((middle, 40, len(wal) - 5000, 8)):
        damaged = _put(tmp_path / str(number), path, data, _flip(wal, place * 8))
        # SQLite itself finds nothing wrong, and less than there was:
        assert sql(damaged, "PRAGMA integrity_check") == [("ok",)]
        assert sql(damaged, "SELECT count(*) FROM lines") < [(30,)]
        store = SqliteFile(damaged)
        for ask in (store.read, store.open):
            with pytest.raises(RefoldError) as refused:
                ask("demo")
            assert isinstance(refused.value, LogCorrupt) or number in (1, 3)
    whole = _put(tmp_path / "whole", path, data, wal)
    assert len(texts(SqliteFile(whole))) == 30


def _judge(path: Path, before: dict[str, list[bytes]]) -> str:
    """What became of a damaged file: every session as it was, or named in an error."""
    store = SqliteFile(path)
    try:
        try:
            names = store.list()
        except RefoldError:
            return "refused"
        verdict = "the same"
        for name, whole in before.items():
            try:
                found = store.read(name)
            except RefoldError:
                verdict = "named"
            else:
                assert [record.encoded for record in found.records] == whole, name
                assert name in names or verdict == "named"
        return verdict
    finally:
        store.close()


@pytest.mark.parametrize("tries", [400, pytest.param(30_000, marks=pytest.mark.slow)])
def test_any_flipped_bit_of_the_whole_file_changes_no_session_silently(
    path: Path, tries: int
) -> None:
    store = closed(path, "a", "b", "c", sizes=(3, 20, 5))
    before = {name: texts(store, name) for name in "abc"}
    store.close()
    data = path.read_bytes()
    chance = random.Random(7)
    verdicts: dict[str, int] = {}
    for _ in range(tries):
        path.write_bytes(_flip(data, chance.randrange(len(data) * 8)))
        verdict = _judge(path, before)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    assert verdicts["named"] > tries / 10
    assert verdicts["the same"] > 0  # free space, indexes


def _page_of(path: Path, needle: bytes) -> int:
    return path.read_bytes().index(needle) // 4096


def _long_session(store: SqliteFile, name: str) -> None:
    log = store.create(SessionHeader(name, 1))
    for seq in range(40):
        log.append([event(seq, text=f"{name} at {seq} " + "t" * 1000)])
        log.sync()
    log.close()


def test_a_corrupt_page_is_the_affair_of_the_sessions_in_it(path: Path) -> None:
    store = SqliteFile(path)
    for name in ("a", "b", "c"):
        _long_session(store, name)
    store.close()
    break_page(path, _page_of(path, b"b at 30 "))
    store = SqliteFile(path)
    assert store.list() == ["a", "b", "c"]
    assert all(store.written_at(name) for name in "ac")
    assert len(texts(store, "a")) == len(texts(store, "c")) == 40
    for ask in (store.read, store.open):
        with pytest.raises(LogCorrupt, match="session b in") as damage:
            ask("b")
        assert damage.value.readable is not None
        kept = damage.value.readable.records
        assert 20 < len(kept) <= 30
        assert "refold export ID --readable" in str(damage.value)
        assert damage.value.expected_seq == len(kept)
        assert damage.value.offset == kept[-1].offset + kept[-1].length
        assert b"b at 0 " in kept[0].encoded
    assert b"b at 0 " in store.raw("b")  # as far as it can be read
    for name in "ac":
        log = store.open(name)
        log.append([event(40)])
        log.close()
    with pytest.raises(FileCorrupt, match="refold export ID --readable"):
        store.delete("b")
    assert 0 < len(store.problems()) <= 5
    store.close()


def test_a_corrupt_page_behind_a_hole_leaves_what_is_before_the_hole(path: Path) -> None:
    store = SqliteFile(path)
    _long_session(store, "b")
    store.close()
    sql(path, "DELETE FROM lines WHERE seq = 5")
    break_page(path, _page_of(path, b"b at 30 "))
    with pytest.raises(LogCorrupt) as damage:
        SqliteFile(path).read("b")
    assert damage.value.expected_seq == 5


@pytest.mark.parametrize("index", ["sqlite_autoindex_torn_1", "sqlite_autoindex_sessions_1"])
def test_a_damaged_index_keeps_nobody_from_reading_and_is_found(path: Path, index: str) -> None:
    assert SqliteFile(path).problems() == ()
    store = closed(path, "a", "b")
    assert store.problems() == ()
    store.close()
    break_index(path, index)
    assert store.list() == ["a", "b"]
    assert [len(texts(store, name)) for name in "ab"] == [4, 4]
    assert 0 < len(store.problems()) <= 5
    assert all("\n" not in problem for problem in store.problems())
    with pytest.raises(FileCorrupt, match="refold export ID --readable"):
        store.delete("a")
    store.close()


def test_many_problems_are_told_in_few_lines(path: Path) -> None:
    store = SqliteFile(path)
    for name in ("a", "b"):
        _long_session(store, name)
    store.close()
    for place in range(10, 40, 3):
        break_page(path, _page_of(path, b"a at %d " % place))
    store = SqliteFile(path)
    assert 0 < len(store.problems()) <= 5
    assert all(problem and "\n" not in problem for problem in store.problems())
    store.close()


def test_an_error_in_reading_is_no_corruption(path: Path) -> None:
    store = closed(path)
    store.list()
    database = database_of(store)
    assert database._reader is not None
    inner = database._reader
    for start in ("SELECT", "SELECT coalesce(CAST(line"):
        ioerr = Failing(inner, start, sqlite3.SQLITE_IOERR_READ)
        database._reader = cast("sqlite3.Connection", ioerr)
        for ask in (store.read, store.open, store.raw):
            with pytest.raises(Unavailable, match="on purpose"):
                ask("demo")
    ioerr = Failing(inner, "SELECT CAST(header", sqlite3.SQLITE_IOERR_READ)
    database._reader = cast("sqlite3.Connection", ioerr)
    assert store.written_at("demo") == 0
    store.close()
    assert len(texts(store)) == 4


def test_a_schema_that_is_no_text_any_more_is_told(path: Path) -> None:
    store = closed(path)
    store.close()
    data = path.read_bytes()
    damaged = data.replace(
        b"CREATE TABLE sessions (", b"CREATE TABLE \xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8 ("
    )
    assert damaged != data
    path.write_bytes(damaged)
    for ask in (store.list, lambda: store.read("demo")):
        with pytest.raises(FileCorrupt):
            ask()


def test_what_sqlite_says_may_be_no_text(path: Path) -> None:
    store = closed(path)
    store.list()

    class Mumbling(Failing):
        def execute(self, statement: str, *values: object) -> None:
            del statement, values
            b"\xac".decode()

    database = database_of(store)
    assert database._reader is not None
    database._reader = cast("sqlite3.Connection", Mumbling(database._reader, "", 0))
    with pytest.raises(Unavailable, match="its schema cannot be read"):
        store.list()
    store.close()


def test_a_damaged_id_does_not_stop_the_list_of_the_others(path: Path) -> None:
    store = closed(path, "good", "xyzzy")
    store.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"xyzzy", b"xy\xff\xfey"))
    store = SqliteFile(path)
    assert store.list()[0] == "good"
    assert len(store.list()) == 2
    assert len(texts(store, "good")) == 4
    for name in ("xyzzy", store.list()[1]):
        with pytest.raises(RefoldError):
            store.read(name)


def _header(path: Path, name: str) -> None:
    other = frame_header(SessionHeader("other", 1))
    sql(path, "UPDATE sessions SET header = ? WHERE id = ?", other, name)


def _line(path: Path, name: str) -> None:
    flipped = "CAST('!' || substr(line, 2) AS BLOB)"
    lines = "SELECT number FROM sessions WHERE id = ?"
    sql(path, f"UPDATE lines SET line = {flipped} WHERE seq = 1 AND session = ({lines})", name)


def _hole(path: Path, name: str) -> None:
    lines = "SELECT number FROM sessions WHERE id = ?"
    sql(path, f"DELETE FROM lines WHERE seq = 1 AND session = ({lines})", name)


def _end(path: Path, name: str) -> None:
    lines = "SELECT number FROM sessions WHERE id = ?"
    sql(path, f"DELETE FROM lines WHERE seq = 3 AND session = ({lines})", name)


def _no_header(path: Path, name: str) -> None:
    sql(path, "UPDATE sessions SET header = x'' WHERE id = ?", name)


DAMAGES: list[Callable[[Path, str], None]] = [_header, _line, _hole, _end, _no_header]


def test_five_damaged_sessions_of_fifty_are_named_and_the_others_go_on(path: Path) -> None:
    names = [f"s{number:02}" for number in range(50)]
    store = closed(path, *names)
    bad = dict(zip(names[3::10], DAMAGES, strict=True))
    for name, damage in bad.items():
        damage(path, name)
    assert store.list() == names
    fill(store, SessionHeader("new", 1))
    for name in names:
        if name not in bad:
            log = store.open(name)
            log.append([event(4)])
            log.close()
            assert len(texts(store, name)) == 5
            continue
        for ask in (store.read, store.open):
            with pytest.raises(RefoldError) as refused:
                ask(name)
            assert name in str(refused.value)
        if bad[name] in (_line, _hole, _end):
            assert isinstance(refused.value, LogCorrupt)
            assert refused.value.readable is not None
            kept = refused.value.readable.records
            assert [record.seq for record in kept] == [0, 1, 2][: len(kept)]
            assert kept
            assert refused.value.expected_seq == (3 if bad[name] is _end else 1)
    store.close()
