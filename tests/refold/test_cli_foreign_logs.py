"""What the command line says of logs that refold would not write, and of forks of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import refold
from refold import Reject, Say, Script
from tests.foreign import Line, answers, asks, begin, end, event, import_file, over, turn, write
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence

ORPHAN = [*begin(2), *asks(2), *answers(2, "x"), over(2), end(2)]
TWICE = [*begin(2), *asks(2, "c"), *answers(2, "c", "c"), over(2), end(2)]
DOUBLED = [*begin(2), *asks(2, "c", "c"), *answers(2, "c"), over(2), end(2)]
LOST = [*begin(2), *asks(2, "c"), over(2), end(2)]
LACKING = [*begin(2), event("step/start", turn=2), end(2)]

WRONG: dict[str, tuple[list[Line], str, list[int]]] = {
    "orphans": (ORPHAN, "the tool results at seq 14 answer no open call of the message", [14]),
    "orphans by a second result": (TWICE, "the tool results at seq 15 answer no open call", [15]),
    "doubled": (DOUBLED, "the assistant messages at seq 13 use a call id twice", [13]),
    "unanswered": (LOST, "at seq 13 hold tool calls that were never answered", [13]),
    "unreadable": (LACKING, "the step/start at seq 12 lacks a readable 'step'", [12]),
}
"""What may follow a sound turn, what is said then, and the seqs of `refold check`'s list."""


def check(store: CliStore, session: str, code: int) -> dict[str, Any]:
    ran = store.run("check", session, "--json")
    assert ran.code == code
    (found,) = orjson.loads(ran.out)["sessions"]
    return dict(found)


@pytest.mark.parametrize("what", WRONG)
def test_import_says_what_no_session_can_go_on_with_and_takes_it(
    any_store: CliStore, tmp_path: Path, what: str
) -> None:
    lines, said, seqs = WRONG[what]
    file = import_file(tmp_path / "foreign.jsonl", [*turn(1, "c"), *lines])
    ran = any_store.run("import", str(file))
    assert (ran.code, ran.out) == (0, "odd\n")
    assert said in ran.err
    assert "fork the session at seq 9" in ran.err
    found = check(any_store, "odd", 1)
    assert (found[what.split(maxsplit=1)[0]], found["forkAt"], found["good"]) == (seqs, 9, False)
    assert any(said in finding for finding in found["findings"])
    ran = any_store.run("import", str(file), "--id", "again", "--json")
    assert said in orjson.loads(ran.out)["unusable"]


def test_import_says_nothing_of_a_history_that_can_be_gone_on_with(
    any_store: CliStore, tmp_path: Path
) -> None:
    odd = end(2).having(reason={"kind": "handed-over"}, cost=1)
    lines = [*turn(1, "call-1"), *turn(2, "call-1")[:-1], odd]
    ran = any_store.run("import", str(import_file(tmp_path / "f.jsonl", lines)), "--json")
    assert (ran.code, ran.err, "unusable" in orjson.loads(ran.out)) == (0, "", False)
    assert check(any_store, "odd", 0)["good"]


@pytest.mark.parametrize("at", [[], ["--at", "turn:2"]])
@pytest.mark.parametrize("what", WRONG)
def test_a_fork_of_what_no_session_can_go_on_with_is_refused(
    any_store: CliStore, what: str, at: list[str]
) -> None:
    lines, said, _ = WRONG[what]
    write(any_store.address, [*turn(1, "c"), *lines])
    before = any_store.ids()
    ran = any_store.run("fork", "odd", *at)
    assert (ran.code, ran.out, one_sentence(ran.err)) == (1, "", True)
    assert said in ran.err
    assert "fork the session at seq 9" in ran.err
    assert any_store.ids() == before
    assert any_store.run("fork", "odd", "--at", "9").code == 0


@pytest.mark.parametrize("what", WRONG)
def test_repair_names_the_fork_that_leaves_it_out(any_store: CliStore, what: str) -> None:
    lines, said, _ = WRONG[what]
    write(any_store.address, [*turn(1, "c"), *lines])
    ran = any_store.run("repair", "odd", "--yes", "--json")
    told = orjson.loads(ran.out)
    assert (ran.code, told["fork"]) == (1, "refold fork odd --at 9")
    assert any(said in limit for limit in told["beyondRepair"])


def test_an_open_turn_of_such_a_log_is_not_for_the_next_opening(any_store: CliStore) -> None:
    write(any_store.address, [*turn(1, "c"), *ORPHAN[:-1]])
    assert "next opening" not in any_store.run("check", "odd").out


async def test_a_fork_of_a_session_whose_inbox_was_used_is_sound(tmp_path: Path) -> None:
    async def reject_bad(view: refold.PromptView) -> refold.Reject | None:
        return Reject("no") if "bad" in str(view.content) else None

    store = CliStore(tmp_path / "s")
    async with refold.open(store.path, providers=[Script(lambda _: Say("fine"))]) as runtime:
        seams = refold.Seams(prompt_submit=(reject_bad,))
        agent = await runtime.start_agent(model="script/m", session_id="parent", seams=seams)
        await agent.ask("bad")
        await agent.ask("good")
        fork = await runtime.fork("parent", model="script/m")
        await fork.ask("and here")
        grandchild = await runtime.fork(fork.session_id, model="script/m")
        await grandchild.ask("and there")
        names = ["parent", fork.session_id, grandchild.session_id]
    for name in names:
        assert check(store, name, 0)["findings"] == []
        assert store.run("repair", name, "--yes").code == 0


@pytest.mark.parametrize(
    "command", [["show"], ["usage"], ["verify", "--allow-unsealed"], ["export", "-"], ["sessions"]]
)
def test_events_of_another_version_are_shown_like_others(
    any_store: CliStore, tmp_path: Path, command: list[str]
) -> None:
    calm = turn(1, "c")
    odd = [
        *[line.having(more=1) if not line.fields else line for line in calm[:-1]],
        end(1).having(reason={"kind": "handed-over"}, cost=1),
    ]
    said = []
    for name, lines in (("odd", odd), ("calm", calm)):
        write(any_store.address, lines, name)
        named = [name if part == "-" else part for part in command]
        arguments = named if command[0] in ("sessions", "export") else [*command, name]
        ran = any_store.run(*arguments)
        said.append((ran.code, ran.err.replace(name, "")))
    assert said[0] == said[1]


def test_a_kind_that_is_not_known_is_shown_as_it_is(any_store: CliStore) -> None:
    start = begin(1)[0].having(trigger={"kind": "timer", "source": {"kind": "user"}})
    write(any_store.address, [start, end(1).having(reason={"kind": "handed-over"})])
    told = any_store.run("show", "odd").out
    assert "turn 1, set off as 'timer'" in told
    assert "turn 1 ended as 'handed-over'" in told
