"""A SQLite file whose own pages are damaged: it is read as far as it goes, and not written to."""

from __future__ import annotations

import shlex
from pathlib import Path

import orjson
import pytest

from refold.runtime.storage import FileCorrupt, SessionHeader, open_sessions
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.runtime.storage.databases import break_index, break_page
from tests.runtime.storage.logs import event

ADVICE = "refold export ID --readable --to sqlite:///NEW"


@pytest.fixture
def store(tmp_path: Path) -> CliStore:
    """The sessions `bad` and `good` in a file; of the first, a page in the middle is damaged."""
    made = CliStore(tmp_path, file=tmp_path / "two.db")
    for name in ("bad", "good"):
        with made.opened() as sessions:
            log = sessions.create(SessionHeader(name, 1))
            for seq in range(40):
                log.append([event(seq, text=f"{name} at {seq} " + "t" * 1000)])
            log.close()
    assert made.file is not None
    break_page(made.file, made.file.read_bytes().index(b"bad at 30 ") // 4096)
    return made


@pytest.mark.parametrize("command", ["repair", "delete"])
@pytest.mark.parametrize("session", ["bad", "good"])
def test_what_would_write_is_refused_before_it_asks(
    store: CliStore, command: str, session: str
) -> None:
    before = store.raw(session)
    for yes in ([], ["--yes"]):
        ran = store.run(command, session, *yes, said="y\n")
        assert (ran.code, ran.out, one_sentence(ran.err)) == (4, "", True)
        assert "two.db is damaged" in ran.err
        assert ADVICE in ran.err
    assert store.raw(session) == before
    assert store.ids() == ["bad", "good"]


def test_reading_tells_what_works_and_it_does(store: CliStore, tmp_path: Path) -> None:
    ran = store.run("show", "bad")
    assert ran.code == 4
    assert ADVICE in ran.err
    assert "refold repair" not in ran.err
    new = f"sqlite:///{tmp_path}/new.db"
    for name, count in {"good": 40, "bad": None}.items():
        told = ADVICE.replace("ID", name).replace("sqlite:///NEW", new)
        assert store.run(*shlex.split(told)[1:]).code == 0
        found = open_sessions(new).read(name)
        assert found.torn is None
        assert len(found.records) == count or (count is None and 20 < len(found.records) <= 30)


def test_what_stands_behind_a_damaged_page_is_shown_with_its_gap(store: CliStore) -> None:
    ran = store.run("show", "bad", "--events")
    assert (ran.code, "two.db" in ran.err) == (4, True)
    (gap,) = [place for place, line in enumerate(ran.lines) if line.endswith("cannot be read")]
    before, after = ran.lines[:gap], ran.lines[gap + 1 :]
    assert [int(line.split()[0]) for line in before] == [*range(len(before))]
    last = [int(line.split()[0]) for line in after]
    assert last == [*range(40 - len(after), 40)]
    assert 20 < len(before) <= 30 < 40 - len(after) < 40
    lost = f"seqs {len(before)} to {39 - len(after)} cannot be read"
    assert ran.lines[gap] == f"-- {lost}"
    assert store.run("export", "bad", "--readable").code == 0
    with store.opened() as sessions, pytest.raises(FileCorrupt):
        sessions.fork("bad", 3, SessionHeader("fork", 1))  # writing could take more of it


@pytest.mark.parametrize("index", ["sqlite_autoindex_torn_1", "sqlite_autoindex_sessions_1"])
def test_with_a_damaged_index_every_session_can_be_copied(
    store: CliStore, tmp_path: Path, index: str
) -> None:
    assert store.file is not None
    break_index(store.file, index)
    new = f"sqlite:///{tmp_path}/new.db"
    assert store.run("export", "good", "--to", new).code == 0
    assert store.run("delete", "good", "--yes").code == 4


@pytest.mark.parametrize("index", ["sqlite_autoindex_torn_1", "sqlite_autoindex_sessions_1"])
def test_a_check_of_all_finds_what_reading_does_not_meet(tmp_path: Path, index: str) -> None:
    store = CliStore(tmp_path, file=tmp_path / "two.db")
    for name in ("one", "other"):
        store.write(name, event(0))
    assert store.run("check", "--all").code == 0
    assert store.file is not None
    break_index(store.file, index)
    ran = store.run("check", "--all", "--json")
    assert (ran.code, one_sentence(ran.err)) == (4, True)
    assert "two.db is damaged" in ran.err
    assert ADVICE in ran.err
    assert ADVICE in orjson.loads(ran.out)["error"]
