"""Typing in `refold chat`: the real line editor in a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold.runtime.envelope import decode_line
from refold.runtime.events import UserMessage
from refold.runtime.messages import text_of
from refold.runtime.storage import JsonlFolder
from tests.refold.terminal import Terminal, environment, terminal
from tests.snippets import ROOT

ANSWERS = """
import refold
from refold import Delay, Hang, Say


def answer(body):
    last = body["messages"][-1]["content"]
    match last:
        case "hang":
            return [Say("partial text"), Hang()]
        case "words":
            return Say(" ".join(f"word{number}" for number in range(60)), pieces=50)
        case "slow":
            return [Say("first "), Delay(0.3), Hang()]
    return Say(f"You said {len(last)}: {last}", pieces=3)


script = refold.Script(answer)
"""

EDITS = "\x1b[?2004h"
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "answers.py").write_text(ANSWERS)
    return tmp_path


@contextmanager
def chat(
    folder: Path, *arguments: str, columns: int = 80, joins: bool = False, **env: str
) -> Iterator[Terminal]:
    """A chat with the script, at its first prompt."""
    given = ["chat", *arguments, "--script", "answers.py"]
    with terminal(given, folder, env, columns, joins=joins) as person:
        person.expect(EDITS)
        yield person


def leave(person: Terminal) -> None:
    person.type("\x04")
    assert person.finish() == 0
    assert "Traceback" not in person.output


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def prompts(folder: Path) -> list[str]:
    """What the model was asked, over all sessions that were written."""
    store = JsonlFolder(folder / "sessions")
    events = [decode_line(r.encoded) for s in store.list() for r in store.read(s).records]
    return [text_of(e.data.content) for e in events if isinstance(e.data, UserMessage)]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["/quit" if number == 50 else f"line {number}" for number in range(100)]),
        "/quit",
        "/quit\n",
        "/help me\nwith this",
        "  indented\n\n\tand a tab\n",
        "a\\",
        "\x1b[2J and \x03 and \x04 inside",
    ],
)
def test_what_is_pasted_is_one_text_and_never_a_command(folder: Path, text: str) -> None:
    with chat(folder) as person:
        person.type(pasted(text))
        person.shows(text.rsplit(maxsplit=1)[-1])
        person.type("!\r")
        person.expect("tokens in")
        person.type("\x1b[A")  # out of the history it is text as well
        person.type("\r")
        person.expect("tokens in")
        leave(person)
    sent = prompts(folder)
    assert sent[0] == f"{text}!"
    assert [one.lstrip() for one in sent] == [f"{text}!".lstrip()] * 2


def test_a_command_may_be_given_a_pasted_text(folder: Path) -> None:
    with chat(folder) as person:
        person.type("/inject " + pasted("It rains.\n/quit") + "\r")
        person.expect("as context")
        person.type("hello\r")
        person.expect("tokens in")
        person.type("/messages\r")
        person.expect("It rains.")
        leave(person)
    assert prompts(folder) == ["hello"]


@pytest.mark.parametrize("keys", ["one\x1b\rtwo\r", "one\\\rtwo\r", "one\\\ntwo\n"])
def test_a_text_may_have_several_lines(folder: Path, keys: str) -> None:
    with chat(folder) as person:
        person.type(keys)
        person.expect("tokens in")
        leave(person)
    assert prompts(folder) == ["one\ntwo"]


TYPED = {
    "Persian": ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", 7),
    "Hindi": ("\u0928\u092e\u0938\u094d\u0924\u0947", 3),
    "CJK": ("日本語", 3),
    "a family": (FAMILY, 1),
    "accents": ("e\u0301a\u0308", 2),
    "a flag": ("\U0001f1e9\U0001f1ea", 1),
    "a skin tone": ("\U0001f44d\U0001f3fd", 1),
    "a selector": ("\u2764\ufe0f", 1),
}


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("name", TYPED)
def test_what_a_person_sees_as_one_character_is_shown_and_deleted_as_one(
    folder: Path, name: str, joins: bool
) -> None:
    text, characters = TYPED[name]
    with chat(folder, joins=joins) as person:
        person.type(f"a{text}")
        person.shows(f"> a{text}")
        person.type("\x7f" * characters + "b")
        person.shows("> ab")
        assert "".join(line for line in person.screen.lines if line.startswith("> ")) == "> ab"
        person.type("\x7f" + text + "\x1b[D" * characters + "X")
        person.type("\x1b[C" * characters + "Z\r")
        person.expect("tokens in")
        person.shows(f"aX{text}Z")
        person.type(f"{text}Y\x01\x1b[3~" + "\x1b[3~" * (characters - 1) + "\r")
        person.expect("tokens in")
        leave(person)
    assert prompts(folder) == [f"aX{text}Z", "Y"]


@pytest.mark.parametrize("columns", [50, 80])
def test_words_are_not_broken_at_the_edge(folder: Path, columns: int) -> None:
    with chat(folder, columns=columns) as person:
        person.type("words\r")
        person.expect("tokens in")
        rows = [line for line in person.screen.lines if line.startswith("word")]
        assert [word for row in rows for word in row.split()] == [f"word{n}" for n in range(60)]
        assert all(columns - 8 < len(row) < columns for row in rows[:-1])
        leave(person)


def test_a_long_line_follows_the_size_of_the_window(folder: Path) -> None:
    with chat(folder, columns=80) as person:
        person.type("a" * 60)
        person.shows("> " + "a" * 60)
        person.resize(50)
        person.shows_no_more("> " + "a" * 60)
        person.type("b\r")
        person.expect("tokens in")
        assert all(len(line) <= 50 for line in person.screen.lines[-4:])
        leave(person)
    assert prompts(folder) == ["a" * 60 + "b"]


def test_lines_come_back_in_the_next_chat_and_are_found_by_a_search(folder: Path) -> None:
    state = folder / "state"
    with chat(folder, XDG_STATE_HOME=str(state)) as person:
        for line in ("first one", "second"):
            person.type(f"{line}\r")
            person.expect("tokens in")
        leave(person)
    (kept,) = (path for path in state.rglob("*") if path.is_file())
    assert kept.stat().st_mode & 0o777 == 0o600
    with chat(folder, XDG_STATE_HOME=str(state)) as person:
        person.type("\x1b[A")
        person.shows("> second")
        person.type("\x03")
        person.shows_no_more("second")
        person.type("\x12fir")
        person.shows("first one")
        person.type("\r")
        person.type("\r")
        person.expect("tokens in")
        leave(person)
    assert sorted(prompts(folder)) == ["first one", "first one", "second"]


@pytest.mark.parametrize("home", ["/dev/null/none", ""])
def test_without_a_place_for_them_lines_are_forgotten_and_nothing_fails(
    folder: Path, home: str
) -> None:
    with chat(folder, HOME=home, XDG_STATE_HOME="") as person:
        person.type("hello\r")
        person.expect("tokens in")
        leave(person)


def test_a_command_s_name_is_completed(folder: Path) -> None:
    with chat(folder) as person:
        person.type("/usa\t")
        person.shows("> /usage")
        person.type("\x03/m\t")
        person.shows("/messages")
        person.shows("/model")
        person.type("\x03")
        leave(person)


def test_what_is_waited_for_is_shown_while_it_is(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\r")
        person.shows("(waiting for the model, 1 s)")
        person.type("\x03")
        person.expect("cancelled")
        person.shows_no_more("(waiting")
        leave(person)


def test_leaving_is_done_within_a_second_and_says_how_to_come_back(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hello\r")
        person.expect("tokens in")
        before = time.monotonic()
        person.type("\x04")
        person.expect("come back with: refold chat ")
        assert time.monotonic() - before < 5  # 1 s; the machine may be busy
        assert person.finish() == 0
    (session,) = JsonlFolder(folder / "sessions").list()
    assert f"refold chat {session}" in person.output


@pytest.mark.parametrize("end", ["\x04", "/quit\r"])
def test_the_terminal_is_left_as_it_was(folder: Path, end: str) -> None:
    with chat(folder) as person:
        assert not person.echoes()
        person.type(end)
        person.expect("not kept")
        assert person.echoes()
        assert person.finish() == 0
        assert person.screen.modes == {"?7", "?25"}


@pytest.mark.parametrize("busy", [False, True])
def test_a_chat_that_is_killed_leaves_the_terminal_in_order(folder: Path, busy: bool) -> None:
    with chat(folder) as person:
        person.type("hang\r" if busy else "abc")
        person.shows("partial text" if busy else "> abc")
        time.sleep(1)  # who keeps the terminal has begun by then
        assert not person.echoes()
        person.process.kill()
        person.expect("\x1b[?2004l")
        assert person.echoes()
        assert person.screen.modes == {"?7", "?25"}


@contextmanager
def shell(folder: Path) -> Iterator[Terminal]:
    """A shell that has jobs, and a chat in it, which is at its first prompt."""
    bash = ("/bin/bash", "--norc", "--noprofile", "-i")
    with terminal([], folder, {"PS1": "shell$ "}, program=bash) as person:
        person.shows("shell$")
        person.type(f"{sys.executable} -m refold chat --script answers.py\r")
        person.expect("Ctrl-D leaves")
        person.expect(EDITS)
        yield person


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_brings_the_line_back(folder: Path) -> None:
    with shell(folder) as person:
        person.type("abc")
        person.shows("> abc")
        person.type("\x1a")
        person.expect("Stopped")
        person.type("echo in the $((1 + 1))nd place\r")
        person.expect("in the 2nd place")
        person.type("fg\r")
        person.expect("refold chat")
        person.expect(EDITS)
        person.type("d\r")
        person.expect("You said 4: abcd")
        person.type("\x04")
        person.expect("come back with")
        person.type("exit\r")
        person.finish()


def test_a_shell_goes_on_after_a_chat_in_it_was_killed(folder: Path) -> None:
    with shell(folder) as person:
        person.type("abc")
        person.shows("> abc")
        (chat_process,) = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and _is_chat_of(entry, person.process.pid)
        ]
        os.kill(chat_process, signal.SIGKILL)
        person.expect("Killed")
        person.type("echo still $((40 + 2))\r")
        person.expect("still 42")
        person.type("exit\r")
        person.finish()


def _is_chat_of(entry: Path, shell: int) -> bool:
    try:
        parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == shell and b"refold" in (entry / "cmdline").read_bytes()
    except OSError:  # it ended meanwhile
        return False


def test_what_was_left_waits_is_shown_at_resume_and_is_not_sent_unseen(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\r")
        person.expect("partial text")
        person.type("drop table users\r")
        person.expect("queued")
        person.type("/quit\r")
        person.expect("come back with")
        person.finish()
    with chat(folder, "last") as person:
        person.shows("> hang")
        person.shows("partial text")
        person.shows("1. prompt: drop table users")
        person.shows("/pending send")
        person.type("hello\r")
        person.expect("You said 5: hello")
        assert "drop table users" not in prompts(folder)
        person.type("/pending\r")
        person.expect("1. prompt: drop table users")
        person.type("/pending drop 2\r")
        person.expect("1. prompt: drop table users")
        person.type("/pending drop 1\r")
        person.expect("taken back: 1 of 1")
        person.type("/pending\r")
        person.expect("nothing waits")
        leave(person)
    assert prompts(folder) == ["hang", "hello"]


def test_what_was_left_is_sent_when_that_is_said(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\r")
        person.expect("partial text")
        person.type("later\r")
        person.expect("queued")
        person.type("/quit\r")
        person.finish()
    with chat(folder, "last") as person:
        person.type("/pending send\r")
        person.expect("You said 5: later")
        person.expect("tokens in")
        leave(person)
    assert prompts(folder) == ["hang", "later"]


def test_commands_that_change_who_is_talked_to(folder: Path) -> None:
    with chat(folder) as person:
        person.type("one\r")
        person.expect("tokens in")
        person.type("two\r")
        person.expect("tokens in")
        person.type("/undo\r")
        person.expect("without the last turn")
        person.type("/messages\r")
        person.expect("You said 3: one")
        person.type("/model\r")
        person.expect("script/any answers")
        person.type("/model script/other\r")
        person.expect("script/other answers")
        person.type("/model nobody/x\r")
        person.expect("there is no provider 'nobody'")
        person.type("three\r")
        person.expect("You said 5: three")
        person.expect("tokens in")
        person.type("/tools\r")
        person.expect("there are none")
        person.type("/new\r")
        person.expect("script/other")
        person.type("four\r")
        person.expect("You said 4: four")
        person.expect("tokens in")
        first = re.findall(r"-- session (\S+),", person.output)[0]
        person.type(f"/resume {first}\r")
        person.expect("goes on after 2 turns")
        person.shows("> two")
        person.type("/resume nobody\r")
        person.expect("no session in")
        person.type("/resume\r")
        person.expect("say which session")
        leave(person)


def hidden_editor(folder: Path) -> dict[str, str]:
    """An environment in which the extra is not installed."""
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['prompt_toolkit'] = sys.modules['wcwidth'] = None\n"
    )
    return {"PYTHONPATH": f"{folder / 'hide'}:{ROOT}"}


@pytest.mark.parametrize("dumb", [False, True])
def test_without_the_editor_each_line_is_a_prompt(folder: Path, dumb: bool) -> None:
    env = {"TERM": "dumb"} if dumb else hidden_editor(folder)
    with terminal(["chat", "--script", "answers.py"], folder, env) as person:
        person.expect("> ")
        assert ("pip install 'refold[chat]'" in person.output) is not dumb
        person.type("hello\n")
        person.expect("You said 5: hello")
        person.expect("> ")
        person.type("hang\n")
        person.expect("partial text")
        person.type("\x03")
        person.expect("cancelled")
        person.type("/tools\n")
        person.expect("there are none")
        person.type("\x04")
        person.expect("come back with")
        assert person.finish() == 0
        assert "[chat]" not in person.output[person.output.index("You said") :]
    assert prompts(folder) == ["hello", "hang"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["chat", "--help"], ["sessions"], ["prompt", "x"]]
)
def test_only_a_chat_on_a_terminal_imports_the_editor(folder: Path, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom refold.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "assert not {'prompt_toolkit', 'wcwidth', 'asyncio'} & set(sys.modules)"
    )
    given = [*arguments, "--script", "answers.py"] if arguments[0] == "prompt" else arguments
    ran = subprocess.run(
        [sys.executable, "-c", code, *given],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
