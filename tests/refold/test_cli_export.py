"""`refold export`."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import attrs
import orjson
import pytest

from refold.cli import export
from refold.runtime.storage import OS, SessionHeader, scan
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event, intercepted

LOSSLESS = {
    "separators": "\u2028\u2029\x85\x00\x7f",
    "emoji": "\U0001f9ea\u200d",
    "numbers": [2**63, -(2**63), 0.1 + 0.2, 1e-7, 5e-324, 1.0],
    "z": 1,
    "a": 2,
    "": {"nested": [{}]},
}


def test_the_stored_bytes_go_to_standard_output(any_store: CliStore) -> None:
    for session in any_store.ids():
        ran = any_store.run("export", session)
        assert (ran.code, ran.err) == (0, "")
        assert ran.raw == any_store.raw(session)


def test_a_file_gets_the_same_bytes_and_is_never_overwritten_unasked(
    any_store: CliStore, tmp_path: Path
) -> None:
    path = tmp_path / "copy.jsonl"
    ran = any_store.run("export", "tour", str(path))
    assert (ran.code, ran.out, one_sentence(ran.err)) == (0, f"{path}\n", True)
    assert path.read_bytes() == any_store.raw("tour")
    ran = any_store.run("export", "changed", str(path))
    assert (ran.code, one_sentence(ran.err), ran.out) == (3, True, "")
    assert "--force" in ran.err
    assert path.read_bytes() == any_store.raw("tour")
    assert any_store.run("export", "changed", str(path), "--force").code == 0
    assert path.read_bytes() == any_store.raw("changed")
    assert not list(tmp_path.glob("*.new*"))


STARVED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
from refold.cli import main
try:
    main(sys.argv[1:])
finally:  # who measures the program writes its own files when it ends
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
"""


@pytest.mark.parametrize("force", [False, True])
def test_without_room_no_file_is_left_and_none_is_lost(
    own_store: CliStore, tmp_path: Path, *, force: bool
) -> None:
    path = tmp_path / "copy.jsonl"
    if force:
        path.write_bytes(b"what was there")
    arguments = ["export", "tour", str(path), "--store", own_store.address, *["--force"] * force]
    command = [sys.executable, "-c", STARVED, *arguments]
    ran = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (ran.returncode, ran.stdout, one_sentence(ran.stderr)) == (1, "", True)
    assert "File too large" in ran.stderr
    left = {found.name: found.read_bytes() for found in tmp_path.glob("copy*")}
    assert left == ({"copy.jsonl": b"what was there"} if force else {})


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_durable_before_its_name_is_and_both_before_it_is_told(
    made_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, force: bool
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(export, "OS", intercepted(OS, lambda name, _: seen.append(name)))
    path = tmp_path / "copy.jsonl"
    assert made_store.run("export", "tour", str(path), *["--force"] * force).code == 0
    named = ["rename"] if force else ["link", "unlink"]
    assert seen == ["open", "pwrite", "fdatasync", "close", *named, "sync_directory"]


def refused(store: CliStore, path: Path, said: str) -> None:
    """No export is written to `path`, with --force or without, and that is said in one sentence."""
    for form in ([], ["--force"]):
        ran = store.run("export", "tour", str(path), *form)
        assert (ran.code, ran.out, one_sentence(ran.err)) == (3, "", True)
        assert said in ran.err
        assert "--force" not in ran.err


@pytest.mark.parametrize("leads", [True, False])
def test_a_link_is_never_replaced_or_followed(
    any_store: CliStore, tmp_path: Path, *, leads: bool
) -> None:
    path, other = tmp_path / "copy.jsonl", tmp_path / "other"
    path.symlink_to(other)
    if leads:
        other.write_bytes(b"what was there")
    refused(any_store, path, "a symbolic link")
    assert path.is_symlink()
    assert other.exists() is leads
    assert not leads or other.read_bytes() == b"what was there"


def test_what_is_no_plain_file_is_never_replaced(any_store: CliStore, tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    refused(any_store, pipe, "no plain file")
    for path in (folder, Path(), Path(".."), Path("/")):
        refused(any_store, path, "no plain file")
    assert (pipe.is_fifo(), [*folder.iterdir()]) == (True, [])


def test_a_device_is_never_replaced(any_store: CliStore, tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    refused(any_store, device, "no plain file")
    assert device.is_char_device()


@pytest.mark.parametrize("kind", ["file", "pipe", "link", "hard link"])
@pytest.mark.parametrize("name", ["copy.new", "copy.new-0"])
def test_what_has_the_name_of_a_draft_is_left_alone_and_in_nobody_s_way(
    any_store: CliStore, tmp_path: Path, kind: str, name: str
) -> None:
    draft, other = tmp_path / name, tmp_path / "other"
    other.write_bytes(b"mine")
    if kind == "file":
        draft.write_bytes(b"what was there")
    elif kind == "pipe":
        os.mkfifo(draft)
    elif kind == "hard link":
        draft.hardlink_to(other)
    else:
        draft.symlink_to(other)
    before = draft.lstat()
    for force in ((), ("--force",)):
        assert any_store.run("export", "tour", str(tmp_path / "copy"), *force).code == 0
        assert (tmp_path / "copy").read_bytes() == any_store.raw("tour")
    assert (draft.lstat().st_ino, draft.lstat().st_size) == (before.st_ino, before.st_size)
    assert other.read_bytes() == b"mine"


def test_an_export_that_is_killed_at_any_step_leaves_nothing_that_refuses_it_again(
    made_store: CliStore, tmp_path: Path
) -> None:
    """Before the file has its name there is none, so that the same command goes on."""
    step = 0
    for step in range(20):
        file = tmp_path / str(step) / "copy"
        file.parent.mkdir()
        program = (sys.executable, "-c", KILLED, str(step), "export", "tour", str(file))
        killed = subprocess.run(
            [*program, "--store", str(made_store.path)], check=False, capture_output=True
        )
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        again = made_store.run("export", "tour", str(file))
        assert again.code == (3 if file.exists() and again.code else 0), again.err
        assert file.read_bytes() == made_store.raw("tour")
    assert step > 4


KILLED = """
import os, signal, sys
from refold.runtime.storage.port import _System
from refold.cli import main
left = [int(sys.argv[1])]
def counted(name, call):
    def run(self, *args):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call(self, *args)
    setattr(_System, name, run)
armed = sys.argv.pop(1)
for name in ("link", "rename", "unlink", "pwrite", "fdatasync", "sync_directory"):
    counted(name, getattr(_System, name))
main(sys.argv[1:])
"""


def test_where_there_are_no_hard_links_a_file_is_not_overwritten_unasked_either(
    made_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(type(OS), "link", refuse)
    file = tmp_path / "copy"
    assert made_store.run("export", "tour", str(file)).code == 0
    assert file.read_bytes() == made_store.raw("tour")
    assert made_store.run("export", "changed", str(file)).code == 3
    assert file.read_bytes() == made_store.raw("tour")
    assert [found.name for found in tmp_path.iterdir() if "copy" in found.name] == ["copy"]


@pytest.mark.parametrize("name", ["changed.jsonl", "tour.jsonl", "new.jsonl", "tour.head", "x"])
def test_nothing_in_a_folder_of_sessions_is_written(
    any_store: CliStore, tmp_path: Path, name: str
) -> None:
    other = CliStore(tmp_path / "sessions")
    other.write("changed", event(0))
    link = tmp_path / "linked"
    link.symlink_to(other.path)
    before = {found.name: found.read_bytes() for found in other.path.iterdir()}
    for folder in (other.path, link):
        refused(any_store, folder / name, "in a store's own folder")
    assert {found.name: found.read_bytes() for found in other.path.iterdir()} == before


@pytest.mark.parametrize("gone", [".lock", "closed.head"])
def test_a_folder_of_sessions_is_known_by_its_lock_and_by_what_stands_beside_a_log(
    made_store: CliStore, tmp_path: Path, gone: str
) -> None:
    other = CliStore(tmp_path / "sessions")
    other.write("closed", event(0))
    (other.path / gone).unlink()
    refused(made_store, other.path / "x.jsonl", "in a store's own folder")


def test_the_folder_exported_from_is_not_written_though_it_has_no_lock(
    own_store: CliStore, tmp_path: Path
) -> None:
    assert not (own_store.path / ".lock").exists()
    before = own_store.raw("changed")
    (tmp_path / "linked").symlink_to(own_store.path)
    for folder in (own_store.path, tmp_path / "linked"):
        refused(own_store, folder / "changed.jsonl", "in a store's own folder")
        refused(own_store, folder / "new.jsonl", "in a store's own folder")
    assert own_store.raw("changed") == before
    assert not own_store.log("new").exists()


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal", ".lock", "-beside/x.head"])
def test_a_sqlite_file_and_its_own_files_are_never_written(
    any_store: CliStore, tmp_path: Path, end: str
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    other = CliStore(folder, file=folder / "other.db")
    other.write("kept", event(0))
    path = Path(f"{other.file}{end}")
    before = path.read_bytes() if path.exists() else None
    refused(any_store, path, "SQLite file" if "/" not in end else "own f")
    assert (path.read_bytes() if path.exists() else None) == before
    assert other.run("check", "--all").code == 0


def test_copies_of_several_sessions_go_to_one_folder_and_only_their_user_reads_them(
    any_store: CliStore, tmp_path: Path
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "uv.lock").write_text("of another program")
    for session in ("tour", "changed", "changed"):
        path = folder / f"{session}.jsonl"
        assert any_store.run("export", session, str(path), "--force").code == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    assert any_store.run("export", "tour", str(folder / "new.jsonl")).code == 0
    assert stat.S_IMODE((folder / "new.jsonl").stat().st_mode) == 0o600


def test_another_store_gets_the_same_bytes_and_back(any_store: CliStore, tmp_path: Path) -> None:
    sessions = any_store.ids()
    other, third = f"sqlite:///{tmp_path / 'other.db'}", str(tmp_path / "third")
    between = attrs.evolve(any_store, file=tmp_path / "other.db")
    last = attrs.evolve(any_store, path=tmp_path / "third", file=None)
    for session in sessions:
        ran = any_store.run("export", session, "--to", other)
        assert (ran.code, ran.out) == (0, f"{other}\n")
        assert between.run("export", session, "--to", third).code == 0
        assert between.raw(session) == last.raw(session) == any_store.raw(session)
    assert between.ids() == last.ids() == sessions
    assert last.run("verify", "--all").code == between.run("check", "--all").code == 0


def test_values_go_from_files_to_sqlite_and_back_with_equal_bytes(tmp_path: Path) -> None:
    first = CliStore(tmp_path / "first")
    second = attrs.evolve(first, file=tmp_path / "second.db")
    third = CliStore(tmp_path / "third")
    big = "\u00e9\U0001f9ea\u2028" * 2_200_000  # 20 MB
    first.write("odd", event(0, "note", **LOSSLESS), event(1, "note", text=big))
    assert first.run("export", "odd", "--to", second.address).code == 0
    assert second.run("export", "odd", "--to", third.address).code == 0
    assert third.raw("odd") == second.raw("odd") == first.raw("odd")
    assert len(first.raw("odd")) > 19_000_000


def test_a_session_can_be_called_something_else_there_and_nothing_is_overwritten(
    any_store: CliStore,
) -> None:
    ran = any_store.run("export", "tour", "--to", any_store.address)
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "exists already" in ran.err
    ran = any_store.run("export", "tour", "--to", any_store.address, "--id", "twin", "--json")
    assert (ran.code, orjson.loads(ran.out)) == (
        0,
        {
            "session": "twin",
            "to": any_store.address,
            "events": len(any_store.events("tour")),
            "bytes": len(any_store.raw("tour")),
            "leftOutBytes": 0,
        },
    )
    assert any_store.events("twin") == any_store.events("tour")
    assert any_store.run("check", "twin").code == 0


def test_a_torn_tail_is_left_out_and_told(any_store: CliStore) -> None:
    whole = any_store.raw("tour")
    any_store.put("tour", whole + b'{"crc":"0123')
    ran = any_store.run("export", "tour")
    assert (ran.code, ran.raw, one_sentence(ran.err)) == (0, whole, True)
    assert "12 bytes" in ran.err
    any_store.put("tour", whole[:-1])
    assert any_store.run("export", "tour").raw == whole


def test_nothing_of_a_damaged_log_is_exported_unless_it_is_wanted(
    any_store: CliStore, tmp_path: Path
) -> None:
    whole = any_store.raw("tour")
    data = bytearray(whole)
    data[len(whole) // 2] ^= 1
    any_store.put("tour", bytes(data))
    path = tmp_path / "copy.jsonl"
    ran = any_store.run("export", "tour", str(path))
    assert (ran.code, ran.out, path.exists()) == (4, "", False)
    assert "before the damage can be read" in ran.err
    assert "is damaged at byte" in ran.err
    ran = any_store.run("export", "tour", "--readable")
    assert ran.code == 0
    assert whole.startswith(ran.raw)
    found = scan(ran.raw, "tour", path="x")
    assert (found.torn, len(found.records) > 5) == (None, True)
    assert any_store.run("export", "tour", "--readable", "--to", str(tmp_path / "s")).code == 0
    assert CliStore(tmp_path / "s").raw("tour") == ran.raw
    assert any_store.raw("tour") == bytes(data)


def test_what_is_readable_of_a_damaged_fork_is_a_log(any_store: CliStore) -> None:
    fork, data = any_store.fork, bytearray(any_store.raw(any_store.fork))
    data[len(b"".join(data.splitlines(keepends=True)[:4])) + 50] ^= 1
    any_store.put(fork, bytes(data))
    found = scan(any_store.run("export", fork, "--readable").raw, fork, path="x")
    assert found.header.seed_length == len(found.records) > 0


def test_a_header_that_cannot_be_read_is_told(any_store: CliStore) -> None:
    data = bytearray(any_store.raw("tour"))
    data[40] ^= 1
    any_store.put("tour", bytes(data))
    ran = any_store.run("export", "tour", "--readable")
    assert (ran.code, ran.raw) == (4, b"")
    assert "nothing of tour can be exported" in ran.err


def test_a_sqlite_file_with_a_damaged_page_gives_what_is_readable(
    own_store: CliStore, tmp_path: Path
) -> None:
    store = attrs.evolve(own_store, path=tmp_path, file=tmp_path / "pages.db")
    events = [event(seq, "note", text="x" * 3000) for seq in range(40)]
    with store.opened() as sessions:
        log = sessions.create(SessionHeader("long", 0))
        log.append(*([encoded] for encoded in events))
        log.close()
    assert store.file is not None
    data = bytearray(store.file.read_bytes())
    at = data.index(b'"seq":30,') // 4096 * 4096
    data[at : at + 4096] = b"\xff" * 4096
    store.file.write_bytes(data)
    assert store.run("export", "long").code == 4
    ran = store.run("export", "long", "--readable")
    assert ran.code == 0
    found = scan(ran.raw, "long", path="x")
    assert [record.encoded for record in found.records] == events[: len(found.records)]
    assert 10 < len(found.records) <= 30


def test_a_foreign_log_is_exported_as_it_is_and_not_into_a_store(
    own_store: CliStore, tmp_path: Path
) -> None:
    lines = b'{"type":"session","id":"foreign","createdAt":0}\n' + event(0) + b"\n"
    own_store.log("foreign").write_bytes(lines)
    assert own_store.run("export", "foreign").raw == lines
    ran = own_store.run("export", "foreign", "--to", str(tmp_path / "x"))
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "import it first" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x.jsonl", "--to", "there"], "not both"),
        (["--id", "x"], "--id goes with --to"),
        (["x.jsonl", "--id", "x"], "--id goes with --to"),
        (["--json"], "--json goes with"),
        (["--to", "there", "--id", "../x"], "is not a session id"),
        (["--to", "sqlite:x"], "names no store"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(
    made_store: CliStore, arguments: list[str], said: str
) -> None:
    ran = made_store.run("export", "tour", *arguments)
    assert (ran.code, said in ran.err) == (2, True)


def test_a_terminal_is_not_written_a_log_to(
    made_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "is_terminal", lambda stream: stream is sys.stdout)
    ran = made_store.run("export", "tour")
    assert (ran.code, ran.out, "redirect the output" in ran.err) == (2, "", True)


def test_a_place_that_cannot_be_written_is_told(made_store: CliStore, tmp_path: Path) -> None:
    ran = made_store.run("export", "tour", str(tmp_path / "absent" / "x.jsonl"))
    assert (ran.code, one_sentence(ran.err)) == (3, True)


def test_nothing_that_a_terminal_would_obey_is_ever_printed(
    own_store: CliStore, tmp_path: Path
) -> None:
    path = tmp_path / "a\x1b[2J\u202e.jsonl"
    for form in ([], ["--force", "--json"], []):
        ran = own_store.run("export", "hostile", str(path), *form)
        assert hidden(ran.out + ran.err) == []
