"""Making a whole log: what is durable before what, and what a refusal leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.runtime.storage import AlreadyExists, JsonlFolder, MemoryPort, Unavailable
from refold.runtime.storage.durable_mark import DurableMark, write_mark
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.jsonl.torn_tail import FileQuarantine
from tests.runtime.storage.logs import (
    FOLDER,
    HEADER,
    LOG,
    batches,
    framed,
    get,
    intercepted,
    memory,
    put,
)

DATA, ENDS = framed(batches([2, 1]))
LINES = DATA[ENDS[0] :]


def steps(port: MemoryPort, act: Callable[[JsonlFolder], object]) -> list[str]:
    """What is done to the files, in order: each change with the name of its file."""
    seen: list[str] = []
    files: dict[int, str] = {}

    def before(operation: str, args: tuple[Any, ...]) -> object:
        if operation == "open":
            fd = port.open(*args)
            files[fd] = args[0].name
            return fd
        if operation in ("fdatasync", "pwrite"):
            seen.append(f"{operation} {files[args[0]]}")
        elif operation in ("link", "rename"):
            seen.append(f"{operation} {args[1].name}")
        elif operation in ("unlink", "sync_directory"):
            seen.append(f"{operation} {args[0].name}")
        return None

    act(JsonlFolder(FOLDER, intercepted(port, before)))
    return seen


def test_what_was_adopted_is_durable_before_it_has_its_name_and_its_name_at_the_end() -> None:
    """An older mark of that id, which would call the new log damaged, is gone for good by then."""
    _, port = memory()
    write_mark(port, FOLDER / "demo.head", DurableMark(9, 9, 9))
    seen = steps(port, lambda store: store.adopt(HEADER, LINES))
    named = seen.index(f"link {LOG.name}")
    forgotten = seen.index("unlink demo.head")
    assert forgotten < seen.index(f"sync_directory {FOLDER.name}", forgotten) < named
    written = max(at for at, step in enumerate(seen[:named]) if step.startswith("pwrite"))
    assert any(step.startswith("fdatasync") for step in seen[written:named])
    assert f"sync_directory {FOLDER.name}" in seen[named:]
    assert get(port, LOG) == DATA


def test_what_is_replaced_is_kept_durably_before_anything_else_has_its_name() -> None:
    _, port = memory(DATA[:-5])
    write_mark(port, FOLDER / "demo.head", DurableMark(2, len(DATA), 9))
    seen = steps(port, lambda store: store.replace(HEADER, LINES, (0,)))
    named = seen.index(f"rename {LOG.name}")
    (kept,) = [at for at, step in enumerate(seen) if step.startswith("rename demo.damaged")]
    assert any(step.startswith("fdatasync") for step in seen[:kept])
    assert f"sync_directory {FOLDER.name}" in seen[kept:named]
    assert "unlink demo.head" in seen[:named]
    assert f"sync_directory {FOLDER.name}" in seen[named:]


@pytest.mark.parametrize("failing", ["fdatasync", "pwrite", "rename"])
def test_a_replacement_that_fails_leaves_the_log_and_no_draft(failing: str) -> None:
    _, port = memory(DATA)
    kept: list[str] = []

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "rename" and "damaged" in args[1].name:
            kept.append(args[1].name)
        elif operation == failing and kept:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(Unavailable):
        JsonlFolder(FOLDER, intercepted(port, before)).replace(HEADER, b"", (0,))
    assert get(port, LOG) == DATA
    assert sorted(port.listdir(FOLDER)) == sorted([".lock", LOG.name, *kept])


def test_what_somebody_else_made_meanwhile_stands() -> None:
    _, port = memory()

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "link" and args[1] == LOG:
            put(port, LOG, b"made meanwhile")

    with pytest.raises(AlreadyExists):
        JsonlFolder(FOLDER, intercepted(port, before)).adopt(HEADER, LINES)
    assert get(port, LOG) == b"made meanwhile"
    assert sorted(port.listdir(FOLDER)) == [".lock", LOG.name]


def test_bytes_that_are_kept_already_are_made_sure_of_and_not_kept_twice() -> None:
    """Whoever kept them may have been killed before their name was durable."""
    _, port = memory(DATA)
    synced: list[Path] = []

    def before(operation: str, args: tuple[Any, ...]) -> None:
        if operation == "sync_directory":
            synced.append(args[0])

    quarantine = FileQuarantine(intercepted(port, before), FolderNames(FOLDER), "demo")
    for expected in (1, 2):
        quarantine.keep(7, b"torn")
        assert len(synced) == expected
    assert quarantine.names() == ["demo.torn-7-0"]


def test_where_there_is_no_folder_nothing_is_kept(tmp_path: Path) -> None:
    assert JsonlFolder(tmp_path / "none").beside("demo").quarantine == ()
