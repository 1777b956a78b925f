"""`refold show --follow`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import orjson
import pytest

from refold.cli import show
from refold.runtime.storage import JsonlFolder, JsonlLog
from tests.refold.cli_stores import CliStore, Ran
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event
from tests.snippets import ROOT


@pytest.fixture
def log(own_store: CliStore) -> Iterator[JsonlLog]:
    """The log of `tour`, open for writing."""
    opened = JsonlFolder(own_store.path).open("tour")
    yield opened
    opened.close()


def follow(
    monkeypatch: pytest.MonkeyPatch, store: CliStore, *actions: Callable[[], object], form: str = ""
) -> Ran:
    """Follow `tour`; each pause between two looks does the next action, the last is a Ctrl-C."""
    rest = list(actions)

    def pause(seconds: float) -> None:
        assert 0 < seconds <= 0.5
        if not rest:
            raise KeyboardInterrupt
        rest.pop(0)()

    monkeypatch.setattr(show, "time", SimpleNamespace(sleep=pause))
    return store.run("show", "tour", "--follow", *form.split())


def note(log: JsonlLog, text: str) -> None:
    log.append([event(log.next_seq, "note", text=text)])


def test_events_are_shown_as_they_are_appended(
    own_store: CliStore, log: JsonlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood = own_store.run("show", "tour", "--events").lines
    ran = follow(
        monkeypatch,
        own_store,
        lambda: note(log, "one"),
        lambda: None,
        lambda: log.append([event(log.next_seq), event(log.next_seq + 1, "note", text="two")]),
        form="--events",
    )
    assert (ran.code, ran.err) == (130, "")
    assert ran.lines[: len(stood)] == stood
    assert [line.split()[0] for line in ran.lines] == [str(n) for n in range(len(stood) + 3)]
    assert ran.lines == own_store.run("show", "tour", "--events").lines


def test_what_is_not_complete_yet_is_not_shown(
    own_store: CliStore, log: JsonlLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = log.next_seq
    note(log, "late")
    path, whole = own_store.log("tour"), own_store.log("tour").read_bytes()
    path.write_bytes(whole[:-20])
    seen: list[int] = []
    ran = follow(
        monkeypatch,
        own_store,
        lambda: seen.append(len(own_store.events("tour"))),
        lambda: path.write_bytes(whole),
        form=f"--json --from {count - 1}",
    )
    assert seen == [count]
    assert [orjson.loads(line)["seq"] for line in ran.lines] == [count - 1, count]


def test_a_transcript_goes_on_and_knows_what_came_before(
    own_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = own_store.run("show", "tour").out
    path, whole = own_store.log("tour"), own_store.log("tour").read_bytes()
    cut = whole.index(b"\n", whole.index(b'"tool/call"')) + 1
    path.write_bytes(whole[:cut])
    ran = follow(monkeypatch, own_store, lambda: path.write_bytes(whole))
    assert ran.out == told
    assert "result of read_file" in ran.out


def test_a_log_that_was_copied_to_a_new_file_is_followed_there(
    own_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, draft = own_store.log("tour"), own_store.path / "draft"

    def replace() -> None:
        shutil.copy(path, draft)
        draft.rename(path)

    def append() -> None:
        log = JsonlFolder(own_store.path).open("tour")
        note(log, "after")
        log.close()

    ran = follow(monkeypatch, own_store, replace, append, form="--events")
    assert ran.lines == own_store.run("show", "tour", "--events").lines
    assert "after" in ran.lines[-1]


def test_a_log_that_goes_away_ends_it_with_a_sentence(
    own_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = follow(monkeypatch, own_store, own_store.log("tour").unlink)
    assert (ran.code, one_sentence(ran.err)) == (3, True)


def test_damage_ends_it_with_a_sentence(
    own_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage() -> None:
        with own_store.log("tour").open("ab") as file:
            file.write(b"no event\n")

    ran = follow(monkeypatch, own_store, damage)
    assert (ran.code, one_sentence(ran.err)) == (4, True)
    assert "== turn 2 completed ==" in ran.lines


def test_only_a_session_of_ours_that_is_there_can_be_followed(own_store: CliStore) -> None:
    own_store.log("foreign").write_text('{"type":"session","id":"foreign","createdAt":0}\n')
    for name in ("nobody", "foreign"):
        ran = own_store.run("show", name, "--follow")
        assert (ran.code, one_sentence(ran.err)) == (3, True)


@pytest.mark.parametrize("form", ["", "--events", "--json"])
def test_nothing_that_a_terminal_would_obey_is_ever_printed(
    own_store: CliStore, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    own_store.log("tour").unlink()
    own_store.rewrite("hostile", "tour", lambda e: e.encoded)
    ran = follow(monkeypatch, own_store, form=form)
    assert "owned" in ran.out
    assert hidden(ran.out) == []


@contextmanager
def running(store: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`refold` in a process of its own, which ends with the block and after 30 seconds anyway."""
    process = subprocess.Popen(
        [sys.executable, "-m", "refold", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "REFOLD_STORE": str(store),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "",
        },
    )
    late = Timer(30, process.kill)
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        process.kill()
        process.communicate()


def test_another_process_is_followed_until_ctrl_c(own_store: CliStore, log: JsonlLog) -> None:
    # The example of the help, and the two processes that it is for.
    assert "refold show last --follow" in str(show.command.help)
    count = log.next_seq
    with running(own_store.path, "show", "last", "--follow", "--json") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(count)]
        for number in range(3):
            note(log, f"note {number}")
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out, err) == (130, "", "")
    assert [orjson.loads(line)["seq"] for line in lines] == list(range(count + 3))
