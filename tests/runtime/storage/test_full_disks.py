"""SQLite stores on a file system that is really full, and write-ahead logs that somebody holds."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from refold.runtime.storage import OS, JsonlFolder, SqliteFile, StoreRefused
from refold.runtime.storage import port as port_module
from refold.runtime.storage.port import Port
from tests.runtime.storage.databases import closed
from tests.runtime.storage.logs import HEADER, event, intercepted

FULL = """
import json, sys
from pathlib import Path
from refold.runtime.errors import RefoldError
from refold.runtime.storage import SessionHeader, SqliteFile
from tests.crash.starving import mount_small
from tests.runtime.storage.logs import event

small = Path(sys.argv[1])
small.mkdir()
if not mount_small(small):
    print(json.dumps({"impossible": True}))
    sys.exit()
store = SqliteFile(small / "s.db")
log = store.create(SessionHeader("demo", 1))
log.append([event(0), event(1, "turn/end")])
log.close()
store.close()
with (small / "filler").open("ab", buffering=0) as filler:
    for size in (4096, 1):
        try:
            while True:
                filler.write(bytes(size))
        except OSError:
            pass

def said(work):
    try:
        return repr(work())
    except RefoldError as error:
        return type(error).__name__ + ": " + str(error)

def fork():
    store.fork("demo", None, SessionHeader("fork", 1))

def begin():
    SqliteFile(small / "new.db").create(SessionHeader("demo", 1)).append([event(0)])

store = SqliteFile(small / "s.db")
found = {
    "list": said(store.list),
    "read": said(lambda: len(store.read("demo").records)),
    "raw": said(lambda: store.raw("demo").count(b"\\n")),
    "follow": said(lambda: len(store.reader("demo").read_new())),
    "fork": said(fork),
    "new": said(begin),
    "drafts": [path.name for path in small.iterdir() if ".new-" in path.name],
}
(small / "filler").unlink()
found["later"] = said(lambda: fork() or sorted(store.list()))
print(json.dumps(found))
"""


def test_a_closed_store_on_a_full_disk_can_be_read_and_a_new_one_leaves_nothing(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "small")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = json.loads(ran.stdout)
    if "impossible" in found:
        pytest.skip("this system lets no user mount a file system in a namespace")
    assert (found["list"], found["read"], found["raw"]) == ("['demo']", "2", "3")
    assert found["follow"] == "2"
    for refused in ("fork", "new"):
        assert found[refused].startswith("StoreFull: there is no room")
    assert found["drafts"] == []
    assert found["later"] == "['demo', 'fork']"


def test_a_write_ahead_log_that_a_reader_lets_grow_is_told_of_and_not_at_every_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refold.runtime.storage.sqlite.database.WAL_BYTES", 1 << 20)
    path = tmp_path / "sessions.db"
    store = closed(path)
    log, place = store.open("demo"), 4

    def write(count: int) -> list[str]:
        nonlocal place
        caplog.clear()
        for _ in range(count):
            log.append([event(place, text="x" * 100_000)])
            place += 1
        return [told.getMessage() for told in caplog.records]

    with caplog.at_level(logging.WARNING), closing(sqlite3.connect(path)) as other:
        assert write(30) == []
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM lines").fetchall()
        [once, again] = write(60)
        assert "sessions.db-wal has grown to 2 MB" in once
        assert "has grown to 4 MB" in again
        assert "end its transaction" in once
        other.rollback()
        assert write(30) == []
    assert path.with_name("sessions.db-wal").stat().st_size < 3 << 20
    log.close()


@pytest.mark.parametrize(
    ("magic", "name"),
    [
        (0x19830326, "a BeeGFS file system"),
        (0x20030528, "an OrangeFS file system"),
        (0x786F4256, "a shared folder of VirtualBox"),
        (0xBACBACBC, "a shared folder of VMware"),
        (0x7C7C6673, "a shared folder of Parallels"),
        (0x6969, "an NFS file system"),
    ],
)
@pytest.mark.parametrize("kind", [JsonlFolder, SqliteFile])
def test_a_file_system_of_others_is_refused_and_nothing_is_left_in_it(
    kind: type[JsonlFolder | SqliteFile],
    magic: int,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_module, "_magic", lambda _path: magic)
    for where in (tmp_path / "store", tmp_path / "a" / "b"):
        with pytest.raises(StoreRefused, match=name):
            kind(where).create(HEADER)
    assert [*tmp_path.iterdir()] == []


def test_a_file_system_that_no_disk_of_this_machine_holds_is_refused_unless_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`/proc` stands for one: its files are on no device. So are those of a `tmpfs`."""
    with monkeypatch.context() as patch:
        patch.setattr(port_module, "_magic", lambda _path: 0x12345678)
        assert "without a disk of this machine (type 0x12345678)" in OS.file_system(Path("/proc"))
    monkeypatch.setattr(port_module, "_magic", lambda _path: 0x01021994)
    assert OS.file_system(Path("/proc")) == "local"


def test_a_refused_folder_that_is_there_gets_no_lock_file(tmp_path: Path) -> None:
    def named(operation: str, _args: tuple[object, ...]) -> str | None:
        return "an NFS file system" if operation == "file_system" else None

    port: Port = intercepted(OS, named)
    for kind in (JsonlFolder(tmp_path, port), SqliteFile(tmp_path / "s.db", port)):
        with pytest.raises(StoreRefused):
            kind.create(HEADER)
    assert [*tmp_path.iterdir()] == []
