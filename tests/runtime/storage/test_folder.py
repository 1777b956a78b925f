"""A folder of logs: what is a session in it, what is made and removed, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from refold.runtime.storage import JsonlFolder, MemoryPort, NotFound, SessionHeader
from refold.runtime.storage.jsonl.log_files import LogFiles
from refold.runtime.storage.jsonl.names import FolderNames
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, event, framed, get, intercepted, put

ENDED = framed([[event(0, "turn/start"), event(1, "turn/end")]])[0]
TWIN = SessionHeader("twin", 1)
NAMES = FolderNames(FOLDER)


def folder_with(**files: bytes) -> tuple[JsonlFolder, MemoryPort]:
    """A store in memory whose folder holds files of these names; `__` stands for a dot."""
    port = MemoryPort()
    port.mkdir(FOLDER)
    for name, data in files.items():
        put(port, FOLDER / name.replace("__", "."), data)
    return JsonlFolder(FOLDER, port), port


def changes(port: MemoryPort) -> tuple[JsonlFolder, list[str]]:
    """The store over a port that notes what is removed and synced, in order."""
    seen: list[str] = []

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation in ("unlink", "sync_directory"):
            seen.append(f"{operation} {args[0].name}")

    return JsonlFolder(FOLDER, intercepted(port, before)), seen


def test_only_logs_are_sessions_also_one_that_is_being_taken_over() -> None:
    store, port = folder_with(demo__jsonl=ENDED, notes__txt=b"x", half__jsonl=b'{"crc":')
    put(port, NAMES.aside("moved"), ENDED.replace(b"demo", b"moved"))
    put(port, FOLDER / "no session.jsonl", ENDED)
    assert store.names() == ["demo", "half", "moved", "no session"]
    assert store.list() == ["demo", "moved"]


def test_a_log_that_a_takeover_has_set_aside_is_read_but_written_under_its_name_alone() -> None:
    port = MemoryPort()
    port.mkdir(FOLDER)
    put(port, NAMES.aside("demo"), ENDED)
    files = LogFiles(NAMES, port)
    port.close(files.open_file("demo", os.O_RDONLY))
    with pytest.raises(NotFound):
        files.open_file("demo", os.O_RDWR)
    JsonlFolder(FOLDER, port).open("demo").close()
    assert get(port, LOG) == ENDED


def test_what_is_not_there_is_not_made_by_opening_it(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path / "none")
    with pytest.raises(NotFound):
        store.open("demo")
    assert not (tmp_path / "none").exists()


def test_half_a_header_takes_nobody_s_name() -> None:
    begun = b'{"crc":"00'
    store, port = folder_with(demo__jsonl=ENDED, twin__jsonl=begun)
    store.fork("demo", 1, TWIN)
    assert len(store.read("twin").records) == 2
    assert store.beside("twin").quarantine == ("twin.torn-0-0",)
    store, port = folder_with(demo__jsonl=begun)
    store.adopt(HEADER, ENDED[ENDED.index(b"\n") + 1 :])
    assert get(port, LOG) == ENDED
    store, _ = folder_with(demo__jsonl=begun)
    log = store.create(HEADER)
    assert log.recovered is not None
    assert log.recovered.reason == "partial"


def test_what_was_adopted_is_vouched_for_if_it_holds_anything() -> None:
    store, _ = folder_with()
    store.adopt(HEADER, ENDED[ENDED.index(b"\n") + 1 :])
    store.adopt(TWIN, b"")
    mark = store.beside("demo").mark
    assert mark is not None
    assert (mark.seq, mark.end) == (1, len(ENDED))
    assert store.beside("twin").mark is None


def test_a_log_is_deleted_last_and_for_good() -> None:
    """Else a power cut could leave what stood beside it, and nobody would find that."""
    _, port = folder_with(demo__jsonl=ENDED, demo__head=b"x")
    store, seen = changes(port)
    store.delete("demo")
    mark, log = seen.index("unlink demo.head"), seen.index(f"unlink {LOG.name}")
    assert f"sync_directory {FOLDER.name}" in seen[mark:log]
    assert f"sync_directory {FOLDER.name}" in seen[log:]


def test_half_a_header_is_gone_for_good_when_its_name_is_taken() -> None:
    _, port = folder_with(demo__jsonl=b'{"crc":"00')
    store, seen = changes(port)
    with pytest.raises(NotFound):
        store.open("demo")
    assert f"sync_directory {FOLDER.name}" in seen[seen.index(f"unlink {LOG.name}") :]


def test_a_closed_log_is_forgotten_and_what_file_systems_are_synced_through_is_closed() -> None:
    store, port = folder_with()
    port.has_syncfs = True
    for _ in range(2):
        log = store.create(HEADER) if LOG not in port.paths() else store.open("demo")
        store.rounds.write([(log, [[event(log.next_seq)]])], durable=True)
        assert list(store.rounds.logs) == [log]
        assert store.is_held("demo") is True
        log.close()
        assert not store.rounds.logs
        store.rounds.stop()
        store.rounds.stop()
        assert not port._open
    assert store.is_held("demo") is False


def test_nothing_in_a_folder_grows_with_every_write_nor_has_troubles_of_its_own(
    tmp_path: Path,
) -> None:
    store = JsonlFolder(tmp_path)
    assert (store.problems(), store.write_number("demo")) == ((), 0)
    (tmp_path / "demo.jsonl").symlink_to(tmp_path / "elsewhere")
    assert store.written_at("demo") == store.written_at("none") == 0
    (tmp_path / "there.jsonl").touch()
    assert store.written_at("there") > 0
