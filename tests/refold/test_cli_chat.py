"""`refold chat` in a real terminal and in a pipe."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from refold.cli.chat import command
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import AssistantMessage, UserMessage
from refold.runtime.messages import text_of
from refold.runtime.storage import JsonlFolder, open_sessions
from refold.runtime.verify import verify_requests
from tests.agents import assert_within_rules
from tests.refold.cli_stores import HOSTILE
from tests.refold.terminal import Terminal, environment, terminal

ANSWERS = f"""
import refold
from refold import Call, Fail, Hang, Say, Think

HOSTILE = {HOSTILE!r}
said = []


def answer(body):
    last = body["messages"][-1]
    text = last["content"]
    if last["role"] == "tool":
        return Say("The tool is done.")
    said.append(text)
    match text:
        case "hang":
            return [Say("partial text"), Hang()]
        case "stumble" if said.count("stumble") == 1:
            return [Say("void text"), Fail("OVERLOADED", HOSTILE, retry_after_ms=1)]
        case "stumble":
            return Say("better text")
        case "fail":
            return Fail("INVALID_REQUEST", HOSTILE)
        case "look":
            return [Think("a look"), Call("look", {{"page": HOSTILE}})]
        case "spoil" | "fill":
            return Call(text)
        case "stick":
            return Call("stick")
        case "hostile":
            return [Think(HOSTILE, pieces=len(HOSTILE)), Say(HOSTILE, pieces=len(HOSTILE))]
        case "long":
            return Say("x" * 100_000 + "END", pieces=100)
        case "half a line":
            return [Say("one\\ntwo begins"), Hang()]
    return Say(f"You said {{text[:20]}}.", pieces=3)


script = refold.Script(answer)
"""

TOOLS = f"""
import resource
import threading
from pathlib import Path
import trio


async def look(page: str) -> str:
    "Look."
    return {HOSTILE!r}


async def stick() -> str:
    "Hold on to everything until the file `go` is there."
    with trio.CancelScope(shield=True):
        print("stuck", flush=True)
        while not Path("go").exists():
            await trio.sleep(0.01)
    return "let go"


async def spoil() -> str:
    "Change what the log says was called."
    (log,) = Path("sessions").glob("*.jsonl")
    log.write_bytes(log.read_bytes().replace(b"spoil", b"spoyl"))
    return "done"


async def fill() -> str:
    "Leave no room for any file, for a second."
    (log,) = Path("sessions").glob("*.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    threading.Timer(1, resource.setrlimit, (resource.RLIMIT_FSIZE, (soft, hard))).start()
    return "full"
"""


EDITS = "\x1b[?2004h"
"""What a terminal is sent when the line editor has begun: pastes are to be marked."""


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, and a configuration that names tools."""
    (tmp_path / "answers.py").write_text(ANSWERS)
    (tmp_path / "chat_tools.py").write_text(TOOLS)
    (tmp_path / "refold.toml").write_text(
        'tools = ["chat_tools:look", "chat_tools:stick", "chat_tools:spoil", "chat_tools:fill"]\n'
    )
    return tmp_path


@contextmanager
def chat(folder: Path, *arguments: str, **env: str) -> Iterator[Terminal]:
    """A chat with the script, at its first prompt."""
    with terminal(["chat", *arguments, "--script", "answers.py"], folder, env) as person:
        person.expect(EDITS)
        yield person


def say(person: Terminal, line: str, answered: str = "tokens in") -> str:
    """Type a line and wait for the end of its turn; returns what came before."""
    person.type(f"{line}\r")
    return person.expect(answered)


def piped(folder: Path, lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "refold", "chat", *arguments],
        cwd=folder,
        env=environment(),
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def events_of(folder: Path, session: str | None = None) -> list[Event]:
    """The events of a session, the only one if none is named; its log is whole and verified."""
    store = JsonlFolder(folder / "sessions")
    records = store.read(session or store.list()[0]).records
    assert all(verdict.verified for verdict in verify_requests(records))
    events = [decode_line(record.encoded) for record in records]
    assert_within_rules(events)
    return events


def prompts(events: list[Event]) -> list[str]:
    found = [event.data for event in events if event.type == "user/message"]
    return [text_of(one.content) for one in found if isinstance(one, UserMessage)]


def ends(events: list[Event]) -> list[str]:
    return [event.data.reason.kind for event in events if event.type == "turn/end"]


def test_text_is_shown_while_the_turn_runs_and_ctrl_c_cancels_the_turn_only(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\n")
        person.expect("partial text")
        person.type("\x03")
        person.expect("== turn 1 cancelled (user) ==")
        assert "You said hello." in say(person, "hello")
        person.type("\x04")
        assert person.finish() == 0
    events = events_of(folder)
    assert ends(events) == ["aborted", "completed"]
    kept = next(event.data for event in events if event.type == "assistant/message")
    assert isinstance(kept, AssistantMessage)
    assert (kept.interrupted, text_of(kept.content)) == (True, "partial text")


def test_a_turn_is_told_in_its_order(folder: Path) -> None:
    with chat(folder, NO_COLOR="1") as person:
        person.resize(400)
        say(person, "look")
        person.type("/quit\n")
        assert person.finish() == 0
    shown = person.screen.lines
    told = shown[shown.index("> look") :]
    starts = ["> look", "(thinking) a look", "  call look {", "  result of look: esc \\x1b"]
    starts += ["The tool is done.", "-- ", "> /quit", "-- come back with: refold chat "]
    assert len(told) == len(starts), told
    assert all(line.startswith(start) for line, start in zip(told, starts, strict=False)), told
    assert re.fullmatch(r"-- \d+ tokens in, \d+ of them cached, \d+ out", told[5])


def test_a_failed_attempt_s_text_is_said_to_be_void(folder: Path) -> None:
    with chat(folder) as person:
        came = say(person, "stumble")
        void, again = came.index("void text"), came.index("better text")
        assert void < came.index("attempt 1 failed (OVERLOADED: esc \\x1b") < again


def test_a_failed_turn_is_told_and_the_prompt_comes_back(folder: Path) -> None:
    with chat(folder) as person:
        came = say(person, "fail", answered="no usage")
        assert "== turn 1 failed in step 1 INVALID_REQUEST: esc \\x1b" in came
        assert "You said hello." in say(person, "hello")


def test_a_line_typed_during_a_turn_is_queued_and_gets_a_turn(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\n")
        person.expect("partial text")
        person.type("meanwhile\n")
        person.expect("queued")
        person.type("\x03")
        person.expect("cancelled")
        person.expect("You said meanwhile.")
        person.type("\x04")
        assert person.finish() == 0
    assert prompts(events_of(folder)) == ["hang", "meanwhile"]


def test_while_a_line_is_typed_whole_lines_appear_above_it(folder: Path) -> None:
    with chat(folder, NO_COLOR="1") as person:
        person.type("half a line\n")
        person.expect("two begins")
        person.type("abc")
        person.shows("> abc")
        person.shows_rows(["one", "two begins"], slice(-4, -2))
        assert person.screen.lines[-2].startswith("(waiting for the model, ")
        person.type("\x03")
        person.expect("no usage")
        person.shows("> abc")
        person.type("d\r")
        person.expect("You said abcd.")


def test_ctrl_c_at_the_prompt_clears_the_line(folder: Path) -> None:
    with chat(folder) as person:
        person.type("never mind")
        person.shows("> never mind")
        person.type("\x03")
        person.shows_no_more("never mind")
        say(person, "hello")
        time.sleep(1)  # until the agent is idle, which nothing shows
        person.type("\x03")
        person.expect("Ctrl-D or /quit leaves")
        person.type("\x04")
        assert person.finish() == 0
    assert prompts(events_of(folder)) == ["hello"]


def test_a_third_ctrl_c_leaves_once_a_tool_lets_go_and_the_log_is_whole(folder: Path) -> None:
    with chat(folder) as person:
        person.type("stick\n")
        person.expect("stuck")
        person.type("\x03")
        person.expect("cancelling the turn")
        person.type("\x03")
        person.expect("still cancelling")
        person.expect("Ctrl-C once more leaves")
        person.type("\x03")
        (folder / "go").touch()
        assert person.finish() == 130
    assert ends(events_of(folder)) == ["aborted"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_chat_leaves_log_and_terminal_in_order(
    folder: Path, number: signal.Signals
) -> None:
    with chat(folder) as person:
        person.type("hang\n")
        person.expect("partial text")
        assert not person.echoes()
        person.signal(number)
        person.expect("ended when its agent was closed")
        assert person.finish() == 128 + number
        assert person.echoes()
    assert ends(events_of(folder)) == ["disposed"]


def test_a_terminal_that_goes_away_ends_the_chat_and_the_log_is_whole(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\n")
        person.expect("partial text")
        assert person.hang_up() in (128 + signal.SIGHUP, -signal.SIGHUP)
    assert ends(events_of(folder)) == ["disposed"]


def test_after_a_stop_keys_come_one_by_one_again(folder: Path) -> None:
    with chat(folder) as person:
        person.type("ab")
        person.shows("> ab")
        person.signal(signal.SIGSTOP)
        person.echo()
        assert person.echoes()
        person.signal(signal.SIGCONT)
        person.expect(EDITS)
        assert not person.echoes()
        person.type("c\n")
        person.expect("You said abc.")


def test_a_session_that_fails_ends_the_chat_with_one_sentence(folder: Path) -> None:
    with chat(folder) as person:
        say(person, "hello")
        person.type("spoil\n")
        person.expect("INVARIANT")
        assert person.finish() == 1
    assert "Traceback" not in person.output
    assert sum(line.startswith("refold: ") for line in person.screen.lines) == 1


def test_a_chat_goes_on_when_there_is_room_again(folder: Path) -> None:
    with chat(folder) as person:
        say(person, "hello")
        person.type("fill\n")
        person.expect("there is no room")
        time.sleep(1.2)
        say(person, "and now", "You said and now.")
        person.type("\x04")
        assert person.finish() == 0
    events = events_of(folder)
    assert prompts(events) == ["hello", "fill", "and now"]
    assert ends(events) == ["completed", "error", "completed"]


def test_a_pasted_line_of_100_kb_arrives_whole(folder: Path) -> None:
    line = "".join(chr(ord("a") + number % 26) for number in range(100_000))
    with chat(folder) as person:
        say(person, pasted(line))
        person.type("\x04")
        assert person.finish() == 0
    assert prompts(events_of(folder)) == [line]


def test_an_answered_line_of_100_kb_is_shown_whole(folder: Path) -> None:
    with chat(folder) as person:
        say(person, "long")
        assert "x" * 100_000 + "END" in "".join(person.screen.lines)


@pytest.mark.parametrize("line", ["hostile", "look", "fail", "stumble"])
def test_what_a_terminal_would_obey_is_shown_and_not_sent(folder: Path, line: str) -> None:
    with chat(folder, NO_COLOR="1") as person:
        person.resize(400)
        person.type(f"{line}\n")
        person.expect("-- ")
        person.type("/messages\n/show\n\x04")
        assert person.finish() == 0
    assert "\\x1b]0;owned\\x07" in person.output
    assert not set(person.screen.modes) - {"?7", "?25"}, "a sequence of the text was obeyed"
    assert not re.search("[\x00-\x07\x0e-\x1a\x7f-\x9f\u202a-\u202e\u2066-\u2069]", person.output)
    assert "\x1b]" not in person.output
    assert "\x1b[2J" not in person.output
    shown = [text for text in person.screen.lines if "owned" in text]
    assert all("rover" in text or "..." in text for text in shown), "a carriage return was obeyed"


def test_there_is_colour_in_a_terminal_unless_no_color_is_set(folder: Path) -> None:
    with chat(folder) as person:
        say(person, "hello")
        assert "\x1b[2m" in person.output
    with chat(folder, NO_COLOR="1") as person:
        say(person, "hello")
        assert not re.search(r"\x1b\[0*[1-9][0-9;]*m", person.output)


def test_a_resumed_session_goes_on_with_its_tools(folder: Path) -> None:
    with chat(folder) as person:
        say(person, "hello")
        person.type("\x04")
        assert person.finish() == 0
    with chat(folder, "last") as person:
        person.shows("goes on after 1 turn")
        assert "result of look: esc" in say(person, "look")
        person.type("\x04")
        assert person.finish() == 0
    assert prompts(events_of(folder)) == ["hello", "look"]


def test_a_session_that_was_killed_in_a_turn_says_so_when_it_goes_on(folder: Path) -> None:
    with chat(folder) as person:
        person.type("hang\n")
        person.expect("partial text")
        person.process.kill()
        person.finish()
    with chat(folder, "last") as person:
        person.shows("== turn 1 interrupted by a crash")
        assert "You said hello." in say(person, "hello")


def test_commands_do_what_they_say(folder: Path) -> None:
    with chat(folder, "--name", "first") as person:
        say(person, "/fork", answered="there is nothing to fork yet")
        say(person, "/cancel", answered="there is no turn to cancel")
        say(person, "/show", answered="/show")
        say(person, "/inject It rains.", answered="as context")
        say(person, "hello")
        assert "/messages" in say(person, "/help", answered="empty line")
        assert "It rains." in say(person, "/messages", answered="You said hello.")
        say(person, "/usage", answered="\r\n1.1 ")
        say(person, "/show", answered="== turn 1 completed ==")
        say(person, "/nonsense", answered="there is no command /nonsense")
        say(person, " /etc is a folder")
        say(person, "/fork second", answered="this is session")
        say(person, "in the fork")
        person.type("/quit\n")
        assert person.finish() == 0
    store = JsonlFolder(folder / "sessions")
    names = {store.read(session).header.name: session for session in store.list()}
    first, second = (prompts(events_of(folder, names[name])) for name in ("first", "second"))
    assert first == ["hello", " /etc is a folder"]
    assert second == [*first, "in the fork"]


def test_steering_speaks_to_the_turn_that_runs_and_is_a_prompt_to_an_idle_agent(
    folder: Path,
) -> None:
    with chat(folder) as person:
        say(person, "/steer", answered="say what the turn should know")
        assert "You said hello." in say(person, "/steer hello")
        person.type("hang\n")
        person.expect("partial text")
        person.type("/steer hurry\n")
        person.expect("will hear that with its next step")
        person.type("\x03")
        person.expect("the turn did not hear this any more: hurry")
        person.expect("== turn 2 cancelled")
        person.type("\x04")
        person.finish()
    events = events_of(folder)
    kinds = [event.data.kind for event in events if event.type == "inbox/queued"]
    assert kinds == ["prompt", "prompt", "steer"]
    assert ends(events) == ["completed", "aborted"], "steering that was not used starts no turn"


def test_a_pipe_s_lines_are_prompts_and_only_answers_are_on_standard_output(folder: Path) -> None:
    ran = piped(folder, "hello\n\nlook\n/quit", "--script", "answers.py")
    assert ran.returncode == 0
    assert ran.stdout == "You said hello.\nThe tool is done.\nYou said /quit.\n"
    assert "call look" in ran.stderr
    assert "tokens in" in ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr
    events = events_of(folder)
    assert prompts(events) == ["hello", "look", "/quit"]
    assert ends(events) == ["completed"] * 3


def test_a_session_in_which_nothing_was_said_is_not_kept_and_that_is_told(folder: Path) -> None:
    ran = piped(folder, "\n", "--script", "answers.py")
    assert (ran.returncode, ran.stdout) == (0, "")
    named = re.findall(r"session ([0-9a-f-]+)", ran.stderr)
    assert len(set(named)) == 1
    assert f"nothing was said, so session {named[0]} was not kept" in ran.stderr
    assert not list(folder.glob("sessions/*.jsonl"))


def test_a_session_in_a_sqlite_file_is_talked_to_and_goes_on(folder: Path) -> None:
    store = ("--store", "sqlite:///chat.db", "--script", "answers.py")
    assert piped(folder, "hello\n", *store).stdout == "You said hello.\n"
    ran = piped(folder, "again\n", "last", *store)
    assert (ran.returncode, ran.stdout) == (0, "You said again.\n")
    assert "goes on after 1 turn" in ran.stderr
    with closing(open_sessions(f"sqlite:///{folder / 'chat.db'}")) as sessions:
        (session,) = sessions.list()
        records = sessions.read(session).records
        assert prompts([decode_line(record.encoded) for record in records]) == ["hello", "again"]
    assert not (folder / "sessions").exists()


def test_a_pipe_ends_with_1_after_a_failed_turn_and_asks_the_rest(folder: Path) -> None:
    ran = piped(folder, "fail\nhello\n", "--script", "answers.py")
    assert ran.returncode == 1
    assert ran.stdout == "You said hello.\n"
    assert "INVALID_REQUEST" in ran.stderr


def test_when_nobody_reads_the_answers_the_chat_ends_quietly(folder: Path) -> None:
    refold = f'"{sys.executable}" -m refold chat --script answers.py'
    line = f"(printf 'hello\\nhello\\n'; cat /dev/zero) | {refold} | true; echo ${{PIPESTATUS[1]}}"
    ran = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout == "141\n"
    assert "Traceback" not in ran.stderr
    events_of(folder)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "name a model with --model"),
        (["--model", "nobody/x"], 3, "there is no provider 'nobody'"),
        (["--model", "deepseek/x"], 3, "set DEEPSEEK_API_KEY"),
        (["missing"], 3, "there are no sessions in"),
        (["--script", "missing.py"], 3, "missing.py fails with FileNotFoundError"),
        (["--script", "chat_tools.py"], 3, "defines no `script`"),
        (["--script", "answers.py", "--config", "bad.toml"], 2, "bad.toml: tools"),
        (["last", "--name", "x"], 2, "--name is for a new session"),
    ],
)
def test_what_keeps_a_chat_from_beginning_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, sentence: str
) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    (folder / "bad.toml").write_text('tools = ["nowhere:nothing"]\n')
    ran = piped(folder, "hello\n", *arguments)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert sentence in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


def test_a_session_that_is_open_elsewhere_is_refused(folder: Path) -> None:
    with chat(folder) as person:
        say(person, "hello")
        ran = piped(folder, "hello\n", "last", "--script", "answers.py")
        assert ran.returncode == 3
        assert str(person.process.pid) in ran.stderr


def test_a_server_that_is_not_there_fails_the_turn(folder: Path) -> None:
    with (folder / "refold.toml").open("a") as config:
        config.write('[providers.gone]\nbase_url = "http://127.0.0.1:1/v1"\n')
    with terminal(["chat", "--model", "gone/x"], folder) as person:
        person.expect(EDITS)
        person.type("hello\r")
        person.expect("cannot reach")
        person.type("\x03")
        person.expect("cancelled")
        person.type("\x04")
        assert person.finish() == 0


EXAMPLES = re.findall(r"^  (.*refold chat.*)$", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_in_the_help_work(folder: Path, line: str) -> None:
    env = {**environment(), "DEEPSEEK_API_KEY": "none"}
    (folder / "local.py").write_text(f"{ANSWERS}\nscript = refold.Script(answer, name='local')\n")
    assert piped(folder, "hello\n", "--script", "local.py").returncode == 0
    ran = subprocess.run(
        ["sh", "-c", f'refold() {{ "{sys.executable}" -m refold "$@"; }}\n{line}'],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ("You said Hello!." in ran.stdout) == ("echo" in line)
