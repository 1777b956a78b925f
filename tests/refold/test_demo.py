"""The tour: it tells the truth, cleans up after itself, and notices when a promise is broken."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from click.testing import CliRunner, Result

import refold
from refold.actors.request.script import Call, Say
from refold.cli.demo import command
from refold.demo import story
from refold.demo.account import RequestRow, account
from refold.demo.agent import answer
from refold.demo.chart import WIDTH, draw, equalities
from refold.demo.outcome import Outcome
from refold.demo.process import Child, open_child
from refold.demo.story import tell
from refold.runtime.envelope import Event, decode_line, draft
from refold.runtime.events import EndReason, StepEnd, TurnEnd
from refold.runtime.storage import JsonlFolder, open_sessions
from refold.runtime.storage.address import within
from refold.runtime.stream.chunks import Usage

ROOT = Path(refold.__file__).parent.parent
# In CI a missing wheel must not pass for a success.
HAS_ENGINE = os.environ.get("CI") == "true" or bool(importlib.util.find_spec("xllamacpp"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One tour for the tests that look at what it left: its store, and what it said."""
    store = tmp_path_factory.mktemp("tour") / "sessions"
    return store, run("--store", str(store), "--json")


@pytest.mark.crash
def test_the_tour_finds_every_promise_kept(tour: tuple[Path, Result]) -> None:
    store, result = tour
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["good"] is True
    assert set(found["checks"].values()) == {True}
    assert found["store"] == str(store)
    assert [row["step"] for row in found["requests"]] == [
        *("1.1", "1.2", "2.1", "2.2", "3.1"),
        *("4.1", "4.2", "4.3", "5.1"),
    ]


@pytest.mark.crash
def test_the_killed_process_is_the_first_owner_and_is_gone(tour: tuple[Path, Result]) -> None:
    store, result = tour
    found = json.loads(result.stdout)
    assert found["killed"]["exitStatus"] == -signal.SIGKILL
    first, *_, last = owners(store, found["session"])
    assert first.owner.pid == found["killed"]["pid"]
    assert last.owner.pid == os.getpid()
    assert not is_running(found["killed"]["pid"])


@pytest.mark.crash
def test_the_closers_stand_in_the_file_between_the_lives(tour: tuple[Path, Result]) -> None:
    store, result = tour
    found = json.loads(result.stdout)
    events = stored(store, found["session"])
    kinds = [events[closer["seq"]].type for closer in found["closers"]]
    assert kinds == ["session/owner", "tool/result", "step/end", "turn/end"]
    assert events[found["closers"][0]["seq"] - 1].type == "tool/call"


@pytest.mark.crash
def test_with_json_the_tale_goes_to_stderr(tour: tuple[Path, Result]) -> None:
    _, result = tour
    assert "SIGKILL" in result.stderr
    assert "SIGKILL: no warning" not in result.stdout


@pytest.mark.crash
def test_the_report_names_the_store_and_commands_that_work(tmp_path: Path) -> None:
    store = tmp_path / "my sessions"
    told = run("--keep", str(store))
    assert told.exit_code == 0
    assert "FAILED" not in told.stdout
    _, _, advice = told.stdout.partition("Look at the log yourself:\n")
    commands = [line.strip() for line in advice.splitlines()]
    assert commands[0] == f"export REFOLD_STORE='{store}'"
    for line in commands[1:]:
        name, *arguments = line.split()
        assert name == "refold"
        done = subprocess.run(
            [sys.executable, "-m", "refold", *arguments],
            env={**os.environ, "REFOLD_STORE": str(store), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout


@pytest.mark.crash
@pytest.mark.parametrize("store", ["sessions", "sqlite:///sessions.db"])
def test_the_tour_can_be_given_twice_on_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        told = run("--store", store)
        assert told.exit_code == 0
        assert f"REFOLD_STORE={within(tmp_path, store)}" in told.stdout
    with closing(open_sessions(store)) as sessions:
        assert len(sessions.list()) == 2


@pytest.mark.crash
async def test_a_child_that_ends_too_early_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until_stuck(child: Child, _say: object) -> str:
        await child.kill()
        return await real(child, print)

    real = story._until_stuck
    monkeypatch.setattr(story, "_until_stuck", until_stuck)
    with pytest.raises(story.DemoFailed, match="ended before it was inside its tool"):
        await tell(str(tmp_path), engine=False, say=lambda line: None)


@pytest.mark.crash
async def test_a_child_whose_parent_is_gone_ends_by_itself(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with open_child(str(tmp_path), None) as child:
            while (heard := await child.heard()) is not None and "stuck" not in heard:
                pass
            assert child._process.stdin
            await child._process.stdin.aclose()
            assert await child._process.wait() == 0


@pytest.mark.engine
@pytest.mark.crash
@pytest.mark.skipif(not HAS_ENGINE, reason="needs pip install 'refold[engine]'")
def test_on_a_real_engine_every_cached_count_is_the_whole_previous_request(tmp_path: Path) -> None:
    told = run("--engine", "--store", str(tmp_path))
    assert told.exit_code == 0, told.output
    assert "NOT EQUAL" not in told.stdout
    counted = [line for line in told.stdout.splitlines() if line.endswith("equal")]
    assert len(counted) == 8
    for line in counted:
        cached, expected = (int(word) for word in line.split() if word.isdigit())
        assert cached == expected > 0


def test_without_the_engine_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "xllamacpp" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = run("--engine")
    assert told.exit_code == 3
    (sentence,) = told.output.splitlines()
    assert "pip install 'refold[engine]'" in sentence
    assert list(tmp_path.iterdir()) == []


def test_a_broken_promise_is_named_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tale(*_arguments: object, **_options: object) -> Outcome:
        return attrs.evolve(GOOD, exit_status=0)

    monkeypatch.setattr(story, "tell", tale)
    told = run("--store", str(tmp_path))
    assert told.exit_code == 1
    assert "FAILED  SIGKILL ended the process" in told.stdout


def row(step: int, wire: int, kept: int, usage: Usage | None = None, life: int = 1) -> RequestRow:
    return RequestRow(1, step, 10 * step, life, wire, kept, 2, "", usage)


def closer(data: object, seq: int) -> Event:
    return draft(data).at(seq, 0)


ROWS = (
    row(1, 500, 0, Usage(100, 10, 0)),
    row(2, 700, 498, Usage(40, 5, 109), life=2),
    row(3, 900, 698, Usage(30, 5, 153), life=2),
)
CLOSERS = (closer(StepEnd(1, 1), 21), closer(TurnEnd(1, EndReason("interrupted")), 22))


def good_outcome() -> Outcome:
    result = decode_line(
        b'{"type":"tool/result","seq":20,"time":0,"data":{"turn":1,"step":1,"callId":"c",'
        b'"content":[],"isError":true},"surfaceOp":"append"}'
    )
    ends = (EndReason("completed"),)
    return Outcome("/s", "id", 1, -9, (result, *CLOSERS), ends, ROWS, engine=True)


GOOD = good_outcome()


def test_an_outcome_is_good_when_nothing_is_wrong() -> None:
    assert GOOD.good, GOOD.checks


@pytest.mark.parametrize(
    "wrong",
    [
        {"exit_status": 0},
        {"closers": CLOSERS},
        {"turns": ()},
        {"turns": (EndReason("completed"), EndReason("error"))},
        {"requests": ()},
        {"requests": ROWS[:1]},
        {"requests": (ROWS[0], attrs.evolve(ROWS[1], problem="digests differ"), ROWS[2])},
        {"requests": (ROWS[0], attrs.evolve(ROWS[1], kept_bytes=497), ROWS[2])},
        {"requests": (ROWS[0], attrs.evolve(ROWS[1], usage=Usage(41, 5, 108)), ROWS[2])},
        {"requests": (ROWS[0], attrs.evolve(ROWS[1], usage=None), ROWS[2])},
        {"requests": tuple(attrs.evolve(row, life=1) for row in ROWS)},
    ],
)
def test_an_outcome_with_one_broken_promise_is_not_good(wrong: dict[str, Any]) -> None:
    broken = attrs.evolve(GOOD, **wrong)
    assert not broken.good
    assert broken.as_json()["good"] is False


def test_cached_tokens_do_not_matter_without_an_engine() -> None:
    rows = (*ROWS[:2], attrs.evolve(ROWS[2], usage=Usage(30, 5, 0)))
    assert not attrs.evolve(GOOD, requests=rows).good
    assert attrs.evolve(GOOD, requests=rows, engine=False).good


@pytest.mark.crash
def test_a_request_that_the_file_does_not_explain_is_a_problem(tour: tuple[Path, Result]) -> None:
    store, result = tour
    records = list(JsonlFolder(store).read(json.loads(result.stdout)["session"]).records)
    changed = [
        attrs.evolve(record, encoded=record.encoded.replace(b"weigh amber", b"weigh amiss"))
        for record in records
    ]
    assert not any(row.problem for row in account(records))
    assert all(row.problem for row in account(changed))


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    head, *lines = draw(ROWS, tokens=False)
    assert head.split()[:4] == ["request", "sent", "kept", "new"]
    assert [line.split()[:4] for line in lines] == [
        ["1.1", "500", "0", "500"],
        ["1.2", "700", "498", "202"],
        ["1.3", "900", "698", "202"],
    ]
    bars = [line.split()[-1] for line in lines]
    assert bars[0] == "." * 22
    assert bars[-1] == "#" * 31 + "." * 9
    assert len(bars[-1]) == WIDTH


def test_token_counts_are_those_of_the_engine() -> None:
    lines = list(draw(ROWS, tokens=True))
    assert [line.split()[:4] for line in lines[1:]] == [
        ["1.1", "100", "0", "100"],
        ["1.2", "149", "109", "40"],
        ["1.3", "183", "153", "30"],
    ]


def test_a_chart_of_nothing_has_a_head_alone() -> None:
    assert len(list(draw((), tokens=True))) == 1
    assert len(list(draw((attrs.evolve(ROWS[0], usage=None),), tokens=True))) == 2


def test_a_count_that_is_not_equal_is_shouted() -> None:
    assert [line.split()[-1] for line in equalities(ROWS)] == ["equal", "equal"]
    unknown = attrs.evolve(ROWS[1], usage=None)
    first, second = equalities((ROWS[0], unknown, ROWS[2]))
    assert first.endswith("NOT EQUAL")
    assert " - " in first
    assert second.endswith("NOT EQUAL")


def body(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def test_the_scripted_model_depends_on_the_request_alone() -> None:
    asked = ("user", "Please weigh cedar, then dune.")
    cedar, dune = ("tool", "cedar weighs 2300 g"), ("tool", "dune weighs 400 g")
    assert answer(body(asked)) == Call("weigh", {"parcel": "cedar"})
    assert answer(body(asked, cedar)) == Call("weigh", {"parcel": "dune"})
    last = answer(body(asked, cedar, dune))
    assert isinstance(last, Say)
    assert last.text == "cedar weighs 2300 g; dune weighs 400 g."
    heaviest = answer(body(asked, cedar, dune, ("user", "Which was the heaviest?")))
    assert isinstance(heaviest, Say)
    assert "cedar" in heaviest.text


def stored(store: Path, session: str) -> list[Event]:
    return [decode_line(record.encoded) for record in JsonlFolder(store).read(session).records]


def owners(store: Path, session: str) -> list[Any]:
    return [event.data for event in stored(store, session) if event.type == "session/owner"]
