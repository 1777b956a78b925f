"""Logs of which next to nothing is left: who vouches for one has it named, and size costs once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import refold
from refold.runtime.storage import SessionHeader, TooLarge, frame_header, open_sessions
from refold.runtime.storage.session_header import HEADER_BYTES
from tests.refold.cli_stores import CliStore
from tests.runtime.storage.logs import event

LEFT: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "one byte": lambda data: data[:1],
    "half a header": lambda data: data[:40],
    "a header without its newline": lambda data: data[: data.index(b"\n")],
    "only a newline": lambda _: b"\n",
    "zeros": lambda data: bytes(len(data)),
    "zeros and a newline": lambda data: bytes(len(data) - 1) + b"\n",
    "many zeros": lambda _: bytes(3 << 20),
    "no newline in a megabyte": lambda _: b"x" * (HEADER_BYTES + 1),
}


def damaged(store: CliStore, session: str) -> None:
    """It is named as damaged by each command that looks at all sessions."""
    checked = store.run("check", "--all", "--json")
    reports = {found["session"]: found for found in orjson.loads(checked.out)["sessions"]}
    assert checked.code == 4
    assert not reports[session]["good"]
    assert "is damaged at byte" in reports[session]["findings"][0]
    verified = store.run("verify", "--all")
    assert verified.code == 4
    assert f"refold: {session}: " in verified.err
    listed = orjson.loads(store.run("sessions", "--json").out)["sessions"]
    assert {row["session"]: row["state"] for row in listed}[session] == "damaged"
    assert store.run("check", session).code == 4
    assert session in store.ids()


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
async def test_a_log_that_its_head_file_vouches_for_is_named_whatever_is_left(
    own_store: CliStore, left: Callable[[bytes], bytes]
) -> None:
    with own_store.opened() as sessions:
        sessions.open("tour").close()  # writes its head file
    own_store.log("tour").write_bytes(left(own_store.raw("tour")))
    damaged(own_store, "tour")
    async with refold.open(own_store.path) as runtime:
        assert "tour" in await runtime.list()


@pytest.mark.parametrize("left", ["zeros and a newline", "only a newline"])
def test_rows_that_a_head_file_vouches_for_are_named_too(any_store: CliStore, left: str) -> None:
    any_store.write("gone", event(0, "todo/write", todos=[]))
    any_store.put("gone", LEFT[left](any_store.raw("gone")))
    damaged(any_store, "gone")


def test_zeros_before_records_that_call_something_durable_are_no_empty_log(
    own_store: CliStore,
) -> None:
    data = own_store.raw("tour")
    assert not own_store.head("tour").exists()
    own_store.log("tour").write_bytes(bytes(600) + data[600:])
    damaged(own_store, "tour")


@pytest.mark.parametrize("left", ["nothing", "one byte", "half a header", "zeros", "many zeros"])
def test_what_nobody_vouches_for_never_was_a_session(own_store: CliStore, left: str) -> None:
    own_store.log("half").write_bytes(LEFT[left](own_store.raw("tour")))
    assert "half" not in own_store.ids()
    assert own_store.run("check", "--all").code == 0


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_plain_file_is_named_and_never_the_last(own_store: CliStore, kind: str) -> None:
    path = own_store.log("zzz")
    make: dict[str, Callable[[], object]] = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(own_store.log("tour")),
    }
    make[kind]()
    later = time.time() + 60
    os.utime(path, (later, later), follow_symlinks=False)
    assert own_store.run("show", "last").out == own_store.run("show", "tour").out
    checked = own_store.run("check", "--all")
    assert checked.code == 3
    assert "zzz" in checked.out
    assert own_store.run("verify", "--all").code == 3


def test_a_large_file_without_a_newline_costs_its_size_once(own_store: CliStore) -> None:
    spent = []
    for size in (4 << 20, 64 << 20):
        with own_store.log("zeros").open("wb") as file:
            file.truncate(size)
        os.utime(own_store.log("zeros"), (1, 1))
        begin = time.process_time()
        assert own_store.run("show", "last").code == 0
        spent.append(time.process_time() - begin)
    assert spent[1] < 2  # 64 MB took minutes


def test_no_more_than_a_bound_is_read_of_a_header(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_bytes(b"x" * (HEADER_BYTES * 3))
    assert open_sessions(tmp_path).list() == ["long"]
    fits = HEADER_BYTES - len(frame_header(SessionHeader("s", created_at=0, name="")))
    assert len(frame_header(SessionHeader("s", created_at=0, name="x" * fits))) == HEADER_BYTES
    with pytest.raises(TooLarge):
        frame_header(SessionHeader("s", created_at=0, name="x" * (fits + 1)))
