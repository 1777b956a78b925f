"""`refold show`."""

from __future__ import annotations

import orjson
import pytest

from refold.cli.shared.transcript import transcript
from refold.runtime.envelope import draft
from refold.runtime.events import (
    AgentFinished,
    AgentSpawned,
    ApprovalAsked,
    ApprovalDecided,
    CompactEnd,
    CompactStart,
    EndReason,
    InboxRemoved,
    LlmRetry,
    PromptBlocked,
    SessionRecovered,
    SteeringMessage,
    Todo,
    TodoWrite,
    TurnEnd,
)
from refold.runtime.messages import USER, Source, TextBlock
from refold.runtime.stream.failures import Failure
from tests.refold.cli_stores import CliStore
from tests.refold.test_render import hidden

TEXT = (TextBlock("text"),)


def told(data: object) -> list[str]:
    """What a transcript of one event says."""
    return list(transcript([draft(data).at(0, 0)]))


def test_a_transcript_reads_like_the_conversation(made_store: CliStore) -> None:
    ran = made_store.run("show", "tour")
    call = made_store.first("tour", "tool/call").data.call_id
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines[1:] == [
        "",
        "== turn 1, set off by a message ==",
        "user:",
        "  hello",
        "-- request header: script/x, 1 tool",
        "assistant 1.1 (script/x):",
        f'  call read_file {{"path":"a"}}  [{call}]',
        f"result of read_file {call}:",
        "  content of a",
        "assistant 1.2 (script/x):",
        "  (thinking) hm",
        "  done",
        "== turn 1 completed ==",
        "",
        "== turn 2, set off by a message ==",
        "user:",
        "  more",
        "assistant 2.1 (script/x):",
        "  again",
        "== turn 2 completed ==",
    ]


def test_a_fork_names_its_parent(made_store: CliStore) -> None:
    seed = next(e.seq for e in made_store.events("changed") if e.type == "turn/end") + 1
    title = made_store.run("show", made_store.fork).lines[0]
    assert f"a fork: its first {seed} events are those of changed" in title
    assert '"what if"' in title


def test_a_cancelled_turn_says_why(made_store: CliStore) -> None:
    assert "== turn 1 cancelled (enough) ==" in made_store.run("show", "cancelled").lines


def test_a_replacement_and_a_new_loop_instance_are_told(made_store: CliStore) -> None:
    out = made_store.run("show", "changed").out
    assert "takes the place of seqs" in out
    assert "context (from plugin compact):" in out
    assert "request header changed in /config/temperature" in out
    assert "a new loop instance begins; request header changed in /system" in out


def test_a_failed_tool_and_a_failed_turn_are_told(made_store: CliStore) -> None:
    out = made_store.run("show", "hostile").out
    assert "(TOOL_FAILED):\n  Error: ValueError: no such thing" in out
    assert "== turn 2 failed in step 1 INVALID_REQUEST: esc" in out


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (SteeringMessage(1, TEXT, Source("agent", session="a-b")), "steering (from agent a-b):"),
        (SessionRecovered(12, 1, "partial"), "-- recovered: 12 bytes (1 record) were cut"),
        (PromptBlocked(TEXT, USER, "no"), "-- a prompt was blocked: no"),
        (InboxRemoved((3, 4), "cancelled"), "-- pending input at seq 3, 4 was cancelled"),
        (LlmRetry(1, 1, 2, Failure("TIMEOUT", "slow"), 500), "-- attempt 2 failed (TIMEOUT)"),
        (CompactStart(None, "p", "m", (0, 1), "i", "d"), "-- compaction by p/m begins"),
        (CompactEnd(None), "-- compaction ends"),
        (CompactEnd(None, "full"), "-- compaction failed: full"),
        (ApprovalAsked(1, 1, "c"), "-- call c waits for an approval"),
        (ApprovalDecided(1, 1, "c", "denied", "ann"), "-- call c was denied by ann"),
        (AgentSpawned("child"), "-- agent child was spawned"),
        (AgentFinished("child", EndReason("completed")), "-- agent child completed"),
        (TodoWrite((Todo("sweep", "pending"),)), "-- todo (pending): sweep"),
        (TurnEnd(3, EndReason("interrupted")), "== turn 3 interrupted by a crash"),
        (TurnEnd(3, EndReason("disposed")), "== turn 3 ended when its agent was closed"),
        (TurnEnd(3, EndReason("max-tokens")), "== turn 3 ended at the limit of tokens"),
        (TurnEnd(3, EndReason("rejected", reason="no")), "== turn 3 rejected (no)"),
        (TurnEnd(3, EndReason("budget", limit="steps")), "== turn 3 ended at its budget of steps"),
    ],
)
def test_what_happened_beside_the_conversation_is_told(data: object, said: str) -> None:
    assert told(data)[0].startswith(said)


def test_events_are_one_line_each_with_seq_type_and_short_data(made_store: CliStore) -> None:
    events = made_store.events("tour")
    lines = made_store.run("show", "tour", "--events").lines
    assert [line.split()[:2] for line in lines] == [[str(e.seq), e.type] for e in events]
    assert max(map(len, lines)) <= 130
    assert '{"turn":1,"step":1}' in lines[made_store.first("tour", "step/start").seq]


def test_json_is_one_whole_event_a_line(made_store: CliStore) -> None:
    for session in ("tour", "hostile"):
        lines = made_store.run("show", session, "--json").out.removesuffix("\n").split("\n")
        events = made_store.events(session)
        assert list(map(orjson.loads, lines)) == [orjson.loads(e.encoded) for e in events]


@pytest.mark.parametrize("form", [["--events"], ["--json"], ["--json", "--events"]])
def test_from_begins_at_a_seq(made_store: CliStore, form: list[str]) -> None:
    whole = made_store.run("show", "tour", *form).lines
    assert made_store.run("show", "tour", *form, "--from", "10").lines == whole[10:]
    assert made_store.run("show", "tour", *form, "--from", "9999").lines == []


def test_a_transcript_from_a_seq_still_knows_the_names_of_calls(made_store: CliStore) -> None:
    seq = made_store.first("tour", "tool/result").seq
    lines = made_store.run("show", "tour", "--from", str(seq)).lines
    assert lines[1].startswith("result of read_file ")


def test_from_is_refused_unless_it_is_a_seq(made_store: CliStore) -> None:
    assert made_store.run("show", "tour", "--from", "-1").code == 2


@pytest.mark.parametrize("form", [[], ["--events"], ["--json"]])
def test_nothing_that_a_terminal_would_obey_is_ever_printed(
    made_store: CliStore, form: list[str]
) -> None:
    ran = made_store.run("show", "hostile", *form)
    assert "owned" in ran.out
    assert hidden(ran.out) == []
