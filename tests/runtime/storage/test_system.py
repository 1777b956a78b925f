"""The parts of the store that ask the operating system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refold.runtime.events import Owner
from refold.runtime.storage import OS, MemoryPort, owners, this_process
from refold.runtime.storage.owners import is_running


def test_a_local_disk_is_local_and_a_missing_folder_an_error(tmp_path: Path) -> None:
    assert OS.file_system(tmp_path) == "local"
    with pytest.raises(FileNotFoundError):
        OS.file_system(tmp_path / "missing")


def test_on_other_systems_no_file_system_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "other")
    assert OS.file_system(tmp_path / "missing") == "local"


def test_this_process_names_itself() -> None:
    here = this_process()
    assert (here.host, here.pid) == (os.uname().nodename, os.getpid())
    boot, _, space = here.boot.partition("/")
    assert (len(boot), space.isdigit()) == (36, True)


def test_a_machine_without_a_boot_id_has_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> str:
        raise FileNotFoundError

    owners._boot.cache_clear()
    monkeypatch.setattr(Path, "read_text", fail)
    assert this_process().boot == ""
    owners._boot.cache_clear()


@pytest.mark.parametrize(
    ("error", "running"),
    [(None, True), (PermissionError, True), (ProcessLookupError, False), (OverflowError, False)],
)
def test_a_process_runs_unless_the_system_knows_of_none(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None, running: bool
) -> None:
    def kill(_pid: int, _signal: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr("os.kill", kill)
    here = this_process()
    assert is_running(Owner(here.host, 12345, here.boot)) is running
    assert not is_running(here)
    assert not is_running(Owner(here.host, 12345, "an earlier boot"))


def test_the_port_in_memory_answers_as_the_system_does(tmp_path: Path) -> None:
    port = MemoryPort()
    with pytest.raises(FileNotFoundError):
        port.open(tmp_path, os.O_RDONLY)
    fd = port.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    with pytest.raises(FileExistsError):
        port.open(tmp_path / "a", os.O_CREAT | os.O_EXCL)
    port.link(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileExistsError):
        port.link(tmp_path / "a", tmp_path / "b")
    assert port.pwrite(fd, b"x", 2) == 1
    assert port.pread(fd, 9, 0) == b"\0\0x"
    assert port.fstat(fd).links == 2
    other = port.open(tmp_path / "b", os.O_RDWR)
    assert port.flock(fd)
    assert not port.flock(other)
    port.close(fd)
    assert port.flock(other)
