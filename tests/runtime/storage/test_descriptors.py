"""Nothing that a store in a folder has done with keeps a descriptor, whatever came of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.storage import JsonlFolder, MemoryPort, Port, SessionHeader
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.jsonl.takeover import complete
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, event, framed, get, intercepted, put

TWIN = SessionHeader("twin", 1)
ENDED = [[event(0, "turn/start"), event(1, "turn/end")], [event(2, "turn/start")]]
FOREIGN_OWNER = event(0, "session/owner", term=1, owner={"host": "h", "pid": 1, "boot": "b"})


def write(store: JsonlFolder) -> None:
    store.open("demo").close()
    with closing(store.open("demo")) as log:
        log.append([event(log.next_seq)])
        log.sync()


def replace(store: JsonlFolder) -> None:
    store.replace(HEADER, b"", (0, b"what was dropped", b"and more"))


def read(store: JsonlFolder) -> None:
    store.read("demo")
    store.raw("demo")
    store.reader("demo").close()
    store.beside("demo")
    store.list()
    store.is_held("demo")


DEEDS: dict[str, tuple[bytes, Callable[[JsonlFolder], object]]] = {
    "write": (framed(ENDED)[0], write),
    "mend a torn tail": (framed(ENDED)[0][:-9], write),
    "take over": (framed([[FOREIGN_OWNER]])[0], write),
    "a header that was begun": (framed([])[0][:20], write),
    "create over one": (framed([])[0][:20], lambda store: store.create(HEADER).close()),
    "a damaged log": (framed(ENDED)[0].replace(b"turn/end", b"turn/and"), write),
    "fork": (framed(ENDED)[0], lambda store: store.fork("demo", 1, TWIN)),
    "fork to an id that is taken": (framed(ENDED)[0], lambda store: store.fork("demo", 1, HEADER)),
    "adopt": (b"", lambda store: store.adopt(TWIN, b"")),
    "replace": (framed(ENDED)[0], replace),
    "delete": (framed(ENDED)[0], lambda store: store.delete("demo")),
    "read": (framed(ENDED)[0][:-9], read),
}
CHANGES = {"pwrite", "copy_range", "fdatasync", "ftruncate", "sync_directory", "rename", "link"}


def failing(port: Port, place: int) -> Port:
    """The port, whose change number `place` fails."""
    count = 0

    def fail(operation: str, _args: object) -> None:
        nonlocal count
        count += operation in CHANGES
        if operation in CHANGES and count == place:
            raise OSError(errno.EIO, "Input/output error")

    return intercepted(port, fail)


@pytest.mark.parametrize("deed", DEEDS)
def test_nothing_stays_open(deed: str) -> None:
    data, do = DEEDS[deed]
    for place in range(9):
        port = MemoryPort()
        port.mkdir(FOLDER)
        put(port, FOLDER / ".lock", b"")
        if data:
            put(port, LOG, data)
        with suppress(RefoldError):
            do(JsonlFolder(FOLDER, failing(port, place)))
        assert not port._open, place


def test_nothing_stays_open_where_a_crash_is_tidied_up() -> None:
    port, names = MemoryPort(), FolderNames(FOLDER)
    port.mkdir(FOLDER)
    put(port, names.aside("demo"), framed(ENDED)[0])
    complete(port, names, "demo")
    assert get(port, LOG) == framed(ENDED)[0]
    assert not port._open
