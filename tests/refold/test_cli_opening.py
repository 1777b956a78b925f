"""Naming sessions and steps, the state that a log is in, and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.refold.cli_stores import CliStore
from tests.refold.test_render import hidden

ONE_LOG = ["show", "usage"]


def one_sentence(err: str) -> bool:
    return err.startswith("refold: ") and err.count("\n") == 1 and "Traceback" not in err


def title(store: CliStore, name: str) -> str:
    ran = store.run("show", name)
    assert ran.code == 0, ran.err
    return ran.lines[0].split()[1].rstrip(",")


def test_a_session_is_named_by_its_id_or_the_beginning_of_one(made_store: CliStore) -> None:
    assert title(made_store, "tour") == "tour"
    assert title(made_store, "to") == "tour"
    assert title(made_store, made_store.fork[:8]) == made_store.fork


def test_last_is_the_one_that_was_written_to_last(own_store: CliStore) -> None:
    assert title(own_store, "last") == "tour"
    later = own_store.log("tour").stat().st_mtime + 60
    os.utime(own_store.log("changed"), (later, later))
    assert title(own_store, "last") == "changed"


def test_an_id_wins_over_last_and_over_a_beginning(own_store: CliStore) -> None:
    own_store.rewrite("tour", "last", lambda event: event.encoded)
    own_store.rewrite("tour", "tour2", lambda event: event.encoded)
    assert title(own_store, "last") == "last"
    assert title(own_store, "tour") == "tour"


def test_a_path_to_a_log_names_its_store_too(made_store: CliStore, tmp_path: Path) -> None:
    elsewhere = CliStore(tmp_path / "elsewhere")
    assert title(elsewhere, str(made_store.log("tour"))) == "tour"


def test_the_store_option_wins_over_the_environment(made_store: CliStore, tmp_path: Path) -> None:
    elsewhere = CliStore(tmp_path)
    assert elsewhere.run("show", "tour").code == 3
    assert elsewhere.run("show", "tour", "--store", str(made_store.path)).code == 0


@pytest.mark.parametrize("name", ["../tour", "a/b", "", "x" * 65, ".b", "\x1b[31m", "tour\n"])
@pytest.mark.parametrize("command", ONE_LOG)
def test_what_is_no_id_is_refused_in_one_sentence(
    made_store: CliStore, command: str, name: str
) -> None:
    ran = made_store.run(command, name)
    assert ran.code == 2
    assert one_sentence(ran.err)
    assert "is not a session id" in ran.err
    assert hidden(ran.err) == []
    assert ran.out == ""


def test_an_unknown_session_is_told_from_an_empty_store(
    made_store: CliStore, tmp_path: Path
) -> None:
    ran = made_store.run("show", "nobody")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "'nobody'" in ran.err
    assert "5 sessions" in ran.err
    ran = CliStore(tmp_path / "absent").run("show", "last")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "--store" in ran.err


def test_a_beginning_of_two_ids_is_refused_with_both(own_store: CliStore) -> None:
    own_store.rewrite("tour", "tourist", lambda event: event.encoded)
    ran = own_store.run("show", "tou")
    assert (ran.code, one_sentence(ran.err)) == (2, True)
    assert "tour, tourist" in ran.err


def test_a_store_that_is_no_folder_cannot_be_opened(made_store: CliStore) -> None:
    ran = made_store.run("show", "last", "--store", str(made_store.log("tour")))
    assert (ran.code, one_sentence(ran.err)) == (3, True)


def test_a_step_is_named_by_turn_and_step_or_any_of_its_seqs(made_store: CliStore) -> None:
    boundary = [event.seq for event in made_store.events("tour") if event.type == "step/start"][1]
    ends = [event.seq for event in made_store.events("tour") if event.type == "step/end"]
    by_name = made_store.run("request", "tour", "1.2")
    assert by_name.code == 0
    for seq in (boundary, boundary + 1, ends[1]):
        assert made_store.run("request", "tour", str(seq)).out == by_name.out


@pytest.mark.parametrize(
    "name", ["9.9", "1", "0", "99999", "x", "1.", "1.1.1", "\x1b[2J", "\u0663.\u0661"]
)
def test_a_step_that_is_none_is_refused_with_what_there_is(made_store: CliStore, name: str) -> None:
    ran = made_store.run("request", "tour", name)
    assert (ran.code, one_sentence(ran.err)) == (2, True)
    assert "1.1, 1.2, 2.1" in ran.err
    assert hidden(ran.err) == []


def damaged(store: CliStore) -> int:
    """Flip a byte inside the tour's second step; the seq of the damaged event."""
    seq = [event.seq for event in store.events("tour") if event.type == "step/start"][1]
    data = bytearray(store.log("tour").read_bytes())
    lines = bytes(data).split(b"\n")
    data[sum(len(line) + 1 for line in lines[: seq + 1]) + 60] ^= 1
    store.log("tour").write_bytes(data)
    return seq


def test_a_damaged_log_is_shown_with_its_gap(own_store: CliStore) -> None:
    count = len(own_store.events("tour"))
    seq = damaged(own_store)
    ran = own_store.run("show", "tour", "--events")
    assert ran.code == 4
    assert one_sentence(ran.err)
    assert f"expected seq {seq}" in ran.err
    assert ran.lines[seq] == f"-- seq {seq} cannot be read"
    assert len(ran.lines) == count


def test_every_command_tells_of_damage_with_its_own_code(own_store: CliStore) -> None:
    damaged(own_store)
    for arguments in (
        ["show", "tour"],
        ["usage", "tour"],
        ["request", "tour", "1.1"],
        ["diff", "tour", "1.1", "1.1"],
        ["verify", "tour"],
    ):
        ran = own_store.run(*arguments)
        assert ran.code == 4, arguments
        assert "is damaged at byte" in ran.err
        assert ran.out


def test_a_torn_tail_is_told_and_left_alone(own_store: CliStore) -> None:
    log = own_store.log("tour")
    whole = own_store.run("show", "tour").out
    log.write_bytes(log.read_bytes() + b'{"crc":"0123')
    before = log.read_bytes()
    ran = own_store.run("show", "tour")
    assert ran.code == 0
    assert ran.out == whole
    assert "torn tail" in ran.err
    assert "12 bytes" in ran.err
    assert log.read_bytes() == before
    assert [path.name for path in own_store.path.iterdir() if path.suffix != ".jsonl"] == []


def test_a_log_of_another_version_cannot_be_opened(own_store: CliStore) -> None:
    own_store.log("newer").write_text(
        '{"type":"session","version":7,"id":"newer","createdAt":0}\n', "utf-8"
    )
    ran = own_store.run("show", "newer")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "newer refold" in ran.err


def test_a_closed_pipe_ends_the_program_without_a_word(made_store: CliStore) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "refold", "show", "tour"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "REFOLD_STORE": str(made_store.path)},
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_an_output_without_unicode_gets_escapes(own_store: CliStore) -> None:
    own_store.rewrite("tour", "accents", lambda e: e.encoded.replace(b"again", "déjà".encode()))
    ran = subprocess.run(
        [sys.executable, "-m", "refold", "show", "accents"],
        capture_output=True,
        env={**os.environ, "REFOLD_STORE": str(own_store.path), "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert rb"d\xe9j\xe0" in ran.stdout


def test_an_error_never_prints_what_a_terminal_would_obey(made_store: CliStore) -> None:
    ran = made_store.run("show", "last", "--store", "/nowhere/\x1b[2J\u202e")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert hidden(ran.err) == []
