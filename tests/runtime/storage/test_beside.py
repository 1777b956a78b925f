"""What stands beside a log is advisory: nothing about it keeps a log from its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refold.runtime.storage import MaintainedStore, SessionHeader, open_sessions
from refold.runtime.storage.files import write_file
from refold.runtime.storage.port import OS
from tests.runtime.storage.logs import event

HEADER = SessionHeader("demo", 1)


@pytest.fixture(params=["", "sqlite:///"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MaintainedStore:
    name = "sessions.db" if request.param else "sessions"
    return open_sessions(f"{request.param}{tmp_path / name}")


def live(store: MaintainedStore) -> None:
    """A life of a session, from its first event to its deletion."""
    log = store.create(HEADER)
    log.append([event(0), event(1, "turn/end")])
    log.close()
    log = store.open("demo")
    log.append([event(2)])
    log.close()
    store.fork("demo", None, SessionHeader("forked", 1))
    assert [len(store.read(name).records) for name in store.list()] == [3, 2]
    store.delete("demo")
    assert store.list() == ["forked"]


def folder(path: Path) -> None:
    path.mkdir()


def full_folder(path: Path) -> None:
    path.mkdir()
    path.joinpath("mine").write_bytes(b"x")


def dead_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [folder, full_folder, dead_link])
@pytest.mark.parametrize("name", ["demo.head", "demo.index", "demo.head.new-0", "demo.head.new"])
def test_whatever_bears_the_name_of_an_advisory_file_is_in_nobody_s_way(
    store: MaintainedStore, name: str, make: Callable[[Path], None]
) -> None:
    store.reports.mkdir(parents=True, exist_ok=True)
    make(store.reports / name)
    live(store)
    if make is full_folder:
        assert (store.reports / name / "mine").read_bytes() == b"x"


@pytest.mark.parametrize("kind", ["hard link", "link"])
@pytest.mark.parametrize("name", ["demo.head", "demo.head.new", "demo.head.new-0", "demo.index"])
def test_nothing_is_written_through_a_link(store: MaintainedStore, name: str, kind: str) -> None:
    store.reports.mkdir(parents=True, exist_ok=True)
    victim = store.reports.parent / "victim"
    victim.write_bytes(b"mine")
    if kind == "link":
        (store.reports / name).symlink_to(victim)
    else:
        (store.reports / name).hardlink_to(victim)
    live(store)
    assert victim.read_bytes() == b"mine"


def test_two_that_write_one_file_share_no_draft(tmp_path: Path) -> None:
    """One is stopped between its draft and the name; the other runs whole meanwhile."""
    file, rename = tmp_path / "file", OS.rename

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(OS, name)

        def rename(self, source: Path, target: Path) -> None:
            write_file(OS, file, b"other", sync=True)
            assert file.read_bytes() == b"other"
            rename(source, target)

    write_file(Slow(), file, b"first", sync=True)  # type: ignore[arg-type]  # it hands all else on
    assert file.read_bytes() == b"first"
    assert [*tmp_path.iterdir()] == [file]
