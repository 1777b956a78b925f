"""The kinds of stores, and the address that each is found under."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from refold.runtime.errors import Refused
from refold.runtime.storage.address import MEMORY, SCHEME, is_address
from refold.runtime.storage.jsonl import JsonlFolder, MemoryFolder
from refold.runtime.storage.local_store import MaintainedStore
from refold.runtime.storage.port import OS, Port
from refold.runtime.storage.sqlite import SqliteFile


@attrs.define(eq=False)
class NoSuchStore(Refused):
    """A store's address that nothing is found under."""

    where: str

    def __str__(self) -> str:
        return (
            f"{self.where!r} names no store; give a folder's path, or sqlite:///FILE "
            "(sqlite:////FILE where the path is absolute)"
        )


@attrs.frozen
class Kind:
    """One kind of store: which addresses are its own, and how it is opened there.

    `on_disk`: its work may wait for a disk, and outlives the program.
    """

    has: Callable[[str], bool]
    open: Callable[[str, Port], MaintainedStore]
    on_disk: bool = True


KINDS = (
    Kind(lambda text: text == MEMORY, lambda _text, _port: MemoryFolder(), on_disk=False),
    Kind(
        lambda text: text.startswith(SCHEME),
        lambda text, port: SqliteFile(Path(text.removeprefix(SCHEME)), port),
    ),
    Kind(is_address, lambda text, port: JsonlFolder(Path(text), port)),
)
"""The first that has an address opens it. One more kind is a folder beside `jsonl`, and a row."""


def open_kind(where: str | Path, port: Port = OS) -> tuple[MaintainedStore, Kind]:
    """The store at `where`, and of which kind it is; a `Path` is always that of a folder.

    Nothing is made or read yet. Raises `NoSuchStore`.
    """
    if isinstance(where, Path):
        return JsonlFolder(where, port), KINDS[-1]
    kind = next((kind for kind in KINDS if is_address(where) and kind.has(where)), None)
    if kind is None:
        raise NoSuchStore(where)
    return kind.open(where, port), kind


def open_sessions(where: str | Path, port: Port = OS) -> MaintainedStore:
    """The store at `where`: a folder's path, `sqlite:///` and the path of a file, or `memory:`.

    Nothing is made or read yet. Raises `NoSuchStore`.
    """
    return open_kind(where, port)[0]
