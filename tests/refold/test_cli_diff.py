"""`refold diff`."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.refold.cli_stores import CliStore
from tests.refold.test_render import hidden


def as_json(store: CliStore, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(store.run("diff", *arguments, "--json").out)
    return found


def body(store: CliStore, session: str, step: str) -> bytes:
    return store.run("request", session, step, "--wire").raw


def common(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_a_request_that_continues_another_diverges_nowhere(made_store: CliStore) -> None:
    ran = made_store.run("diff", "tour", "1.1", "2.1")
    first, later = body(made_store, "tour", "1.1"), body(made_store, "tour", "2.1")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == [
        f"A  step 1.1 (seq 4), {len(first)} bytes",
        f"B  step 2.1 (seq 32), {len(later)} bytes",
        f"kept prefix       {len(first) - 2} bytes, 100.0 % of A without its 2 closing bytes",
        "header drift      none",
        "B continues A: nothing diverges",
    ]


def test_the_same_step_and_the_other_order_diverge_nowhere(made_store: CliStore) -> None:
    assert made_store.run("diff", "tour", "1.1", "1.1").lines[-1].startswith("A and B are the same")
    ran = made_store.run("diff", "tour", "2.1", "1.1")
    assert (ran.code, ran.lines[-1]) == (0, "A continues B: nothing diverges")


@pytest.mark.parametrize(
    ("a", "b", "path", "type_"),
    [
        ("1.1", "2.1", "/temperature", "request/header"),
        ("2.1", "3.1", "/messages/1/content", "context/message"),
        ("3.1", "2.1", "/messages/1/content", "context/message"),
        ("3.1", "4.1", "/messages/0/content", "request/header"),
    ],
)
def test_a_divergence_is_named_by_byte_pointer_and_event(
    made_store: CliStore, a: str, b: str, path: str, type_: str
) -> None:
    ran = made_store.run("diff", "changed", a, b)
    offset = common(body(made_store, "changed", a), body(made_store, "changed", b))
    assert ran.code == 1
    assert f"first divergence  byte {offset}, {path}" in ran.lines
    found = as_json(made_store, "changed", a, b)
    assert found["divergence"]["offset"] == found["keptBytes"] == offset
    assert found["divergence"]["path"] == path
    assert found["divergence"]["cause"]["type"] == type_
    seq = found["divergence"]["cause"]["seq"]
    assert f"caused by         seq {seq} {type_} of changed" in ran.out
    assert made_store.events("changed")[seq].type == type_


def test_a_replacement_is_said_to_be_one(made_store: CliStore) -> None:
    replacing = made_store.first("changed", "context/message")
    last = made_store.run("diff", "changed", "2.1", "3.1").lines[-1]
    assert last.endswith(
        f"seq {replacing.seq} context/message of changed, which replaced seqs 3 to 12"
    )


def test_header_drift_is_told_by_field_with_old_and_new(made_store: CliStore) -> None:
    lines = made_store.run("diff", "changed", "1.1", "4.1").lines
    at = lines.index("header drift")
    assert set(lines[at + 1 : at + 3]) == {
        '  /system  "You are a careful agent. " -> "You are another agent. "',
        "  /config/temperature  absent -> 0.5",
    }
    drift = as_json(made_store, "changed", "1.1", "2.1")["headerDrift"]
    assert drift == [{"path": "/config/temperature", "old": "absent", "new": "0.5"}]


def test_steps_of_two_sessions_are_compared(made_store: CliStore) -> None:
    fork = made_store.fork
    ran = made_store.run("diff", "changed", "1.1", f"{fork}:1.1")
    assert ran.code == 0
    ran = made_store.run("diff", fork, "changed:2.1", "2.1")
    found = as_json(made_store, fork, "changed:2.1", "2.1")
    assert ran.code == 1
    assert (found["a"]["session"], found["b"]["session"]) == ("changed", fork)
    assert ran.lines[0].startswith("A  changed step 2.1")
    assert f"of {fork}" in ran.lines[-1]


def test_the_relation_is_given_to_programs(made_store: CliStore) -> None:
    steps = [("1.1", "1.1"), ("1.1", "2.1"), ("2.1", "1.1")]
    found = [as_json(made_store, "tour", a, b) for a, b in steps]
    assert [f["relation"] for f in found] == ["same", "continues", "precedes"]
    assert [f["divergence"] for f in found] == [None] * 3
    assert found[1]["keptShare"] == 1.0
    assert as_json(made_store, "changed", "1.1", "2.1")["relation"] == "diverges"


def test_an_unsealed_step_is_compared_and_said_to_be_unsealed(own_store: CliStore) -> None:
    own_store.rewrite(
        "tour", "unsealed", lambda event: event.encoded.replace(b"request/sealed", b"x/sealed")
    )
    ran = own_store.run("diff", "unsealed", "1.1", "tour:1.1")
    assert ran.code == 0
    assert ran.lines[0].endswith(", never sealed")


def test_hostile_text_around_a_divergence_is_shown_escaped(own_store: CliStore) -> None:
    own_store.rewrite(
        "hostile", "twin", lambda event: event.encoded.replace(b"\\u001b[2J", b"\\u001b[3J")
    )
    ran = own_store.run("diff", "hostile", "1.3", "twin:1.3")
    assert ran.code == 1
    assert hidden(ran.out) == []
    assert hidden(own_store.run("diff", "hostile", "1.3", "twin:1.3", "--json").out) == []


def test_a_step_that_is_none_is_refused(made_store: CliStore) -> None:
    for a, b in (("1.1", "7.1"), ("7.1", "1.1"), ("1.1", "changed:7.1"), ("1.1", ":")):
        ran = made_store.run("diff", "tour", a, b)
        assert ran.code == 2
        assert ran.err.startswith("refold: there is no step ")
