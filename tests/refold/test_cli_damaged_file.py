"""A SQLite file whose own pages are damaged: it is read as far as it goes, and not written to."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from runtime.storage import SessionHeader, open_sessions
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


@pytest.mark.parametrize("index", ["sqlite_autoindex_torn_1", "sqlite_autoindex_sessions_1"])
def test_with_a_damaged_index_every_session_can_be_copied(
    store: CliStore, tmp_path: Path, index: str
) -> None:
    assert store.file is not None
    break_index(store.file, index)
    new = f"sqlite:///{tmp_path}/new.db"
    assert store.run("export", "good", "--to", new).code == 0
    assert store.run("delete", "good", "--yes").code == 4
