"""`refold prompt`: one prompt, one answer, and an exit code that says how the turn ended."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli.prompt import command
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import TurnEnd, UserMessage
from refold.runtime.messages import text_of
from refold.runtime.request_header import RequestHeader
from refold.runtime.storage import JsonlFolder
from tests.agents import assert_within_rules
from tests.refold.terminal import environment, terminal

JOINED = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 {} \U0001f469\u200d\U0001f467"
"""Persian with a non-joiner, what is put in, and emoji with a joiner."""

ANSWERS = f"""
import refold
from refold import End, Fail, Hang, Say

JOINED = {JOINED!r}


def answer(body):
    last = body["messages"][-1]["content"]
    match last:
        case "fail":
            return Fail("INVALID_REQUEST", "no")
        case "hang":
            return [Say("partial"), Hang()]
        case "long":
            return [Say("cut"), End("max-tokens")]
        case "joined":
            return Say(JOINED.format("\\x1b[2J"), pieces=9)
    return Say(f"You said {{last}}.", pieces=3)


script = refold.Script(answer)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "answers.py").write_text(ANSWERS)
    return tmp_path


def prompt(
    folder: Path, *arguments: str, given: str | bytes = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "refold", "prompt", *arguments, "--script", "answers.py"],
        cwd=folder,
        env=environment(),
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def events_of(folder: Path) -> list[Event]:
    store = JsonlFolder(folder / "sessions")
    (session,) = store.list()
    events = [decode_line(record.encoded) for record in store.read(session).records]
    assert_within_rules(events)
    return events


def prompts(folder: Path) -> list[str]:
    found = [event.data for event in events_of(folder)]
    return [text_of(one.content) for one in found if isinstance(one, UserMessage)]


def test_the_answer_is_on_standard_output_and_the_rest_beside_it(folder: Path) -> None:
    ran = prompt(folder, "hello")
    assert (ran.returncode, ran.stdout) == (0, "You said hello.\n")
    session = re.search(r"session (\S+)", ran.stderr)
    assert session is not None
    more = prompt(folder, "more", "--session", session[1])
    assert (more.returncode, more.stdout) == (0, "You said more.\n")
    assert prompts(folder) == ["hello", "more"]


@pytest.mark.parametrize(
    "text", ["one\n/quit\n\ntwo\n", "/quit", "no end", "\tand blanks  \n\n", "-", "a\r\nb"]
)
def test_all_of_standard_input_is_one_prompt_as_it_is(folder: Path, text: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "refold", "prompt", "-", "--script", "answers.py"],
        cwd=folder,
        env=environment(),
        input=text.encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert prompts(folder) == [text]


def test_an_answer_is_written_as_it_is_into_a_pipe_and_escaped_on_a_terminal(folder: Path) -> None:
    assert prompt(folder, "joined").stdout == JOINED.format("\x1b[2J") + "\n"
    with terminal(["prompt", "joined", "--script", "answers.py"], folder) as person:
        person.expect(JOINED.format("\\x1b[2J"))
        assert person.finish() == 0


def test_with_json_the_events_of_the_turn_are_on_standard_output(folder: Path) -> None:
    assert prompt(folder, "before").returncode == 0
    ran = prompt(folder, "hello", "--json", "--session", "last")
    shown = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (shown[0]["type"], shown[-1]["type"]) == ("inbox/queued", "turn/end")
    stored = {event.seq: json.loads(event.encoded) for event in events_of(folder)}
    assert shown == [stored[event["seq"]] for event in shown]
    assert [event["seq"] for event in shown] == [*range(shown[0]["seq"], shown[-1]["seq"] + 1)]


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [("hello", 0, "completed"), ("fail", 1, "error"), ("long", 5, "max-tokens")],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_exit_code_says_how_the_turn_ended(
    folder: Path, text: str, code: int, kind: str, form: list[str]
) -> None:
    assert prompt(folder, text, *form).returncode == code
    (end,) = [event.data for event in events_of(folder) if isinstance(event.data, TurnEnd)]
    assert end.reason.kind == kind
    assert re.search(rf"^ +{code} ", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_turn_and_is_told_by_the_exit_code(
    folder: Path, number: signal.Signals
) -> None:
    with terminal(["prompt", "hang", "--script", "answers.py"], folder) as person:
        person.expect("partial")
        person.signal(number)
        assert person.finish() == 128 + number
    (end,) = [event.data for event in events_of(folder) if isinstance(event.data, TurnEnd)]
    assert end.reason.kind == "aborted"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([" \n"], 2, "the prompt is empty"),
        (["x", "--session", "nobody"], 3, "there are no sessions"),
        (["x", "--session", "nobody", "--name", "y"], 2, "--name is for a new session"),
        (["x", "--max-tokens", "0"], 2, "--max-tokens"),
        (["x", "--temperature", "-1"], 2, "--temperature"),
    ],
)
def test_what_keeps_a_prompt_from_being_sent_is_one_sentence(
    folder: Path, arguments: list[str], code: int, sentence: str
) -> None:
    ran = prompt(folder, *arguments)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert sentence in ran.stderr
    assert not (folder / "sessions").exists() or not any((folder / "sessions").iterdir())


def test_parameters_come_from_the_command_line_and_else_from_the_configuration(
    folder: Path,
) -> None:
    (folder / "refold.toml").write_text("max_tokens = 90\ntemperature = 0.5\n")
    assert prompt(folder, "one").returncode == 0
    assert prompt(folder, "two", "--session", "last", "--max-tokens", "70").returncode == 0
    headers = [event.data for event in events_of(folder)]
    configs = [one.header.config for one in headers if isinstance(one, RequestHeader)]
    assert [(one.max_tokens, one.temperature) for one in configs] == [(90, 0.5), (70, 0.5)]


EXAMPLES = re.findall(r"^  (.*refold prompt.*)$", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_in_the_help_work(folder: Path, line: str) -> None:
    assert prompt(folder, "first").returncode == 0
    ran = subprocess.run(
        ["sh", "-c", f'refold() {{ "{sys.executable}" -m refold "$@"; }}\n{line}'],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "You said" in ran.stdout
