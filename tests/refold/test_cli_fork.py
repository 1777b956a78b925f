"""`refold fork`."""

from __future__ import annotations

import re

import orjson
import pytest

from refold.runtime.storage import JsonlFolder, SessionHeader
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import damaged, one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event


def ends(store: CliStore, session: str) -> list[int]:
    return [e.seq for e in store.events(session) if e.type == "turn/end"]


def forked_at(store: CliStore, session: str, *at: str) -> int:
    """The seq that a fork was made at; its events are compared with its parent's."""
    ran = store.run("fork", session, *at, "--json")
    assert (ran.code, ran.err) == (0, "")
    made = orjson.loads(ran.out)
    assert made["parent"] == session
    assert store.events(made["session"]) == store.events(session)[: made["at"] + 1]
    return int(made["at"])


def test_a_fork_is_a_session_of_its_own_and_its_id_is_printed(own_store: CliStore) -> None:
    before = own_store.log("changed").read_bytes()
    ran = own_store.run("fork", "changed", "--name", "another try")
    (new,) = ran.lines
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", new)
    assert (ran.code, one_sentence(ran.err)) == (0, True)
    header = JsonlFolder(own_store.path).read(new).header
    seed = ends(own_store, "changed")[-1] + 1
    assert (header.parent_session, header.seed_length, header.name) == (
        "changed",
        seed,
        "another try",
    )
    assert own_store.log("changed").read_bytes() == before
    assert own_store.run("check", new).code == 0
    assert own_store.run("verify", new).code == 0


def test_a_place_is_a_seq_a_turn_or_the_last_step_of_one(own_store: CliStore) -> None:
    first, second = ends(own_store, "tour")
    assert forked_at(own_store, "tour") == second
    assert forked_at(own_store, "tour", "--at", str(first)) == first
    assert forked_at(own_store, "tour", "--at", "turn:1") == first
    assert forked_at(own_store, "tour", "--at", "1.2") == first
    assert forked_at(own_store, "tour", "--at", "2.1") == second


@pytest.mark.parametrize("at", ["9", "1.1", "99999"])
def test_any_other_place_is_refused_with_the_nearest_turn_end(own_store: CliStore, at: str) -> None:
    files = sorted(own_store.path.iterdir())
    first, second = ends(own_store, "tour")
    seq = second - 1 if at == "9" else at
    ran = own_store.run("fork", "tour", "--at", str(seq))
    assert (ran.code, one_sentence(ran.err), ran.out) == (2, True, "")
    nearest = {"9": f"nearest before is {first}", "1.1": "no turn has ended before"}
    assert nearest.get(at, f"nearest before is {second}") in ran.err
    assert [path for path in sorted(own_store.path.iterdir()) if path.name != ".lock"] == files


@pytest.mark.parametrize(
    ("at", "said"), [("turn:3", "the last is turn:2"), ("7.1", "has 1.1, 1.2")]
)
def test_a_turn_or_step_that_is_none_is_refused_with_what_there_is(
    own_store: CliStore, at: str, said: str
) -> None:
    ran = own_store.run("fork", "tour", "--at", at)
    assert (ran.code, one_sentence(ran.err)) == (2, True)
    assert said in ran.err


@pytest.mark.parametrize("at", ["", "-1", "1.", "turn:", "turn:x", "\u0663", "\x1b[2J", "1.1.1"])
def test_what_names_no_place_is_a_usage_error(own_store: CliStore, at: str) -> None:
    ran = own_store.run("fork", "tour", "--at", at)
    assert ran.code == 2
    assert "no seq, no step" in ran.err
    assert hidden(ran.err) == []


def test_a_log_without_a_finished_turn_cannot_be_forked(own_store: CliStore) -> None:
    log = JsonlFolder(own_store.path).create(SessionHeader("young", created_at=0))
    log.append([own_store.events("tour")[0].encoded])
    log.close()
    for at in ([], ["--at", "turn:1"]):
        ran = own_store.run("fork", "young", *at)
        assert (ran.code, one_sentence(ran.err)) == (2, True)
        assert "no turn has ended" in ran.err or "none has ended yet" in ran.err


def test_a_damaged_log_is_not_forked(own_store: CliStore) -> None:
    damaged(own_store)
    assert own_store.run("fork", "tour").code == 4


def test_a_foreign_log_is_not_forked(own_store: CliStore) -> None:
    own_store.log("foreign").write_text('{"type":"session","id":"foreign","createdAt":0}\n')
    ran = own_store.run("fork", "foreign")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "import it first" in ran.err


DONE = {"reason": {"kind": "completed"}}
TRIGGER = {"trigger": {"kind": "message", "source": {"kind": "user"}}}
CALL = {"type": "tool-call", "id": "c", "name": "read", "arguments": "{}"}


def appended(seq: int, type_: str, **data: object) -> bytes:
    return event(seq, type_, **data)[:-1] + b',"surfaceOp":"append"}'


def write(store: CliStore, *events: bytes) -> None:
    """The session `odd`, in which each event is a batch."""
    with store.opened() as sessions:
        log = sessions.create(SessionHeader("odd", created_at=0))
        log.append(*([encoded] for encoded in events))
        log.close()


def unbalanced(store: CliStore) -> None:
    """Three turns, of which the second has a tool call that no result answers."""
    write(
        store,
        event(0, "turn/start", turn=1, **TRIGGER),
        event(1, "turn/end", turn=1, **DONE),
        event(2, "turn/start", turn=2, **TRIGGER),
        event(3, "step/start", turn=2, step=1),
        appended(4, "assistant/message", turn=2, step=1, content=[CALL]),
        event(5, "step/end", turn=2, step=1),
        event(6, "turn/end", turn=2, **DONE),
        event(7, "turn/start", turn=3, **TRIGGER),
        event(8, "turn/end", turn=3, **DONE),
    )


@pytest.mark.parametrize("at", [[], ["--at", "8"], ["--at", "turn:2"], ["--at", "2.1"]])
def test_a_fork_that_could_never_be_used_is_refused(any_store: CliStore, at: list[str]) -> None:
    unbalanced(any_store)
    before = any_store.ids()
    ran = any_store.run("fork", "odd", *at)
    assert (ran.code, ran.out, one_sentence(ran.err)) == (1, "", True)
    assert "at seq 4 hold tool calls that were never answered" in ran.err
    assert "fork the session at seq 1" in ran.err
    assert any_store.ids() == before


@pytest.mark.parametrize("at", ["1", "turn:1"])
def test_a_fork_before_the_unanswered_calls_is_made(any_store: CliStore, at: str) -> None:
    unbalanced(any_store)
    assert forked_at(any_store, "odd", "--at", at) == 1


def test_a_fork_before_an_event_that_nobody_can_read_is_made_and_none_behind(
    any_store: CliStore,
) -> None:
    odd = appended(2, "user/message", nonsense=1)
    end = event(3, "turn/end", turn=2, **DONE)
    start = event(0, "turn/start", turn=1, **TRIGGER)
    write(any_store, start, event(1, "turn/end", turn=1, **DONE), odd, end)
    ran = any_store.run("fork", "odd")
    assert (ran.code, ran.out, "does not have the shape" in ran.err) == (4, "", True)
    assert any_store.run("fork", "odd", "--at", "1").code == 0


def test_a_damaged_log_has_no_fork_wherever_it_is_damaged(any_store: CliStore) -> None:
    data = bytearray(any_store.raw("tour"))
    data[data.index(b"\n") + 40] ^= 1
    any_store.put("tour", bytes(data))
    for at in ([], ["--at", "3"], ["--at", "99"]):
        assert any_store.run("fork", "tour", *at).code == 4
