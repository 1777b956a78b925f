"""Where an export may be written: never over a session, a store or a device."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from refold.cli.shared.exit_codes import CannotDo
from refold.runtime.storage import MaintainedStore
from refold.runtime.storage.files import reported

_MAGIC = b"SQLite format 3\0"
_BESIDE = ("-", ".lock", ".new")
"""What the names of a SQLite file's own files go on with after its name."""


def check_target(file: Path, source: MaintainedStore) -> None:
    """Raise `CannotDo` if writing `file` would destroy or disturb anything but a file.

    `source` is the store that is exported from; no folder of it is written to.
    """
    with reported(file):
        found = next(_objections(file, source), None)
        if found is not None:
            raise CannotDo(
                f"{file} is {found}, which no export takes the place of; name a plain file in "
                "another folder, --to another store, or redirect the output"
            )


def _objections(file: Path, source: MaintainedStore) -> Iterator[str]:
    kind = _kind(file)
    if kind == "link":
        yield "a symbolic link"
    elif kind == "other":
        yield "no plain file"
    folder = file.parent.resolve()
    if folder == source.reports.resolve() or _holds_store(folder):
        yield "in a store's own folder"
    base = folder.with_name(folder.name.removesuffix("-beside"))
    if base != folder and _is_database(base):
        yield "in the folder of a SQLite file's own files"
    for name in _names(folder):
        rest = file.name.removeprefix(name)
        if not rest and _is_database(folder / name):
            yield "a SQLite file"
        elif rest != file.name and rest.startswith(_BESIDE) and _is_database(folder / name):
            yield f"called as one of the files of {name}, a SQLite file"


def _kind(path: Path) -> str:
    """`absent`, `file`, `link` or `other`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return "absent"
    if stat.S_ISLNK(mode):
        return "link"
    return "file" if stat.S_ISREG(mode) else "other"


def _holds_store(folder: Path) -> bool:
    """Whether a folder has the lock of a store, or a log with what stands beside one."""
    names = _names(folder)
    logs = (name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl"))
    beside = (".head", ".index", ".lock")
    return ".lock" in names or any(log + end in names for log in logs for end in beside)


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except FileNotFoundError:
        return set()


def _is_database(path: Path) -> bool:
    """Whether a plain file begins as SQLite's do; nothing else is opened, since a pipe waits."""
    if _kind(path) != "file":
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
