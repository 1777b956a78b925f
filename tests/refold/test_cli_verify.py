"""`refold verify`."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import pytest

from refold.cli import verify
from refold.runtime.envelope import Event
from refold.runtime.storage import JsonlFolder, SessionHeader
from tests.refold.cli_stores import CliStore


def as_json(store: CliStore, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(store.run("verify", *arguments, "--json").out)
    return found


def forged(event: Event) -> bytes:
    """The tour's second answer is another one than the model gave."""
    return event.encoded.replace(b'"text":"done"', b'"text":"gone"')


def unsealed(event: Event) -> bytes:
    return event.encoded.replace(b"request/sealed", b"x/sealed")


def test_every_request_is_verified_from_the_bytes(made_store: CliStore) -> None:
    ran = made_store.run("verify", "tour")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == ["tour  3 sealed, 3 verified, 0 unsealed, 0 unverifiable, 0 mismatches"]


def test_all_verifies_every_session_and_adds_up(made_store: CliStore) -> None:
    ran = made_store.run("verify", "--all")
    found = as_json(made_store, "--all")
    assert ran.code == 0
    assert len(ran.lines) == len(found["sessions"]) + 1 == 6
    assert found["total"]["verified"] == sum(s["verified"] for s in found["sessions"]) > 10
    assert found["total"]["sealed"] == found["total"]["verified"]
    assert ran.lines[-1].startswith(f"total  {found['total']['sealed']} sealed, ")


def test_a_mismatch_fails_and_names_its_step_and_seq(own_store: CliStore) -> None:
    own_store.rewrite("tour", "forged", forged)
    ran = own_store.run("verify", "tour", "forged")
    seal = [event for event in own_store.events("forged") if event.type == "request/sealed"][2]
    assert ran.code == 1
    assert ran.lines[1] == "forged  3 sealed, 2 verified, 0 unsealed, 0 unverifiable, 1 mismatches"
    assert ran.lines[2].startswith(f"  step 2.1, seq {seal.seq}: the log makes request ")
    assert ran.lines[-1] == "not verified: 1 mismatch"
    (mismatch,) = as_json(own_store, "forged")["sessions"][0]["mismatches"]
    assert (mismatch["turn"], mismatch["step"], mismatch["seq"]) == (2, 1, seal.seq)


def test_requests_without_a_seal_fail_unless_they_are_allowed(own_store: CliStore) -> None:
    own_store.rewrite("tour", "unsealed", unsealed)
    ran = own_store.run("verify", "unsealed")
    assert ran.code == 1
    assert (
        ran.lines[0] == "unsealed  0 sealed, 0 verified, 3 unsealed, 0 unverifiable, 0 mismatches"
    )
    assert "--allow-unsealed" in ran.lines[-1]
    assert own_store.run("verify", "unsealed", "--allow-unsealed").code == 0
    assert own_store.run("verify", "tour", "unsealed", "--allow-unsealed").code == 0


def test_allowing_the_unsealed_allows_no_mismatch(own_store: CliStore) -> None:
    own_store.rewrite("tour", "forged", forged)
    assert own_store.run("verify", "forged", "--allow-unsealed").code == 1


def test_an_unknown_codec_is_unverifiable_and_no_mismatch(own_store: CliStore) -> None:
    own_store.rewrite(
        "tour", "later", lambda event: event.encoded.replace(b'"chat/2"', b'"chat/9"')
    )
    ran = own_store.run("verify", "tour", "later")
    assert ran.code == 0
    assert ran.lines[1] == "later  3 sealed, 0 verified, 0 unsealed, 3 unverifiable, 0 mismatches"
    alone = own_store.run("verify", "later")
    assert (alone.code, alone.lines[-1]) == (1, "not verified: nothing to verify")


def test_nothing_to_verify_fails(own_store: CliStore) -> None:
    log = JsonlFolder(own_store.path).create(SessionHeader("empty", created_at=0))
    log.append([b'{"type":"x/y","seq":0,"time":0,"data":{}}'])
    log.close()
    for extra in ([], ["--allow-unsealed"]):
        ran = own_store.run("verify", "empty", *extra)
        assert (ran.code, ran.lines[-1]) == (1, "not verified: nothing to verify")
    assert own_store.run("verify", "empty", "tour").code == 0


def test_an_empty_store_has_nothing_to_verify(own_store: CliStore) -> None:
    for log in own_store.path.glob("*.jsonl"):
        log.unlink()
    ran = own_store.run("verify", "--all")
    assert (ran.code, ran.lines[-1]) == (1, "not verified: nothing to verify")


def test_sessions_or_all_are_required_and_not_both(made_store: CliStore) -> None:
    assert made_store.run("verify").code == 2
    assert made_store.run("verify", "--all", "tour").code == 2


def test_one_damaged_log_does_not_keep_the_others_from_being_verified(
    own_store: CliStore,
) -> None:
    data = bytearray(own_store.log("changed").read_bytes())
    data[data.index(b"question 2")] ^= 1
    own_store.log("changed").write_bytes(data)
    ran = own_store.run("verify", "--all")
    found = as_json(own_store, "--all")["sessions"]
    assert ran.code == 4
    assert "refold: changed: " in ran.err
    assert "tour  3 sealed, 3 verified, 0 unsealed, 0 unverifiable, 0 mismatches" in ran.lines
    assert "changed  2 sealed, 2 verified, 0 unsealed, 0 unverifiable, 0 mismatches" in ran.lines
    assert [s["session"] for s in found if s["error"] is not None] == ["changed"]


def test_damage_that_the_head_file_tells_of_is_not_called_a_torn_tail(any_store: CliStore) -> None:
    data = bytearray(any_store.raw("tour"))
    data[-9] ^= 1
    any_store.put("tour", bytes(data))
    ran = any_store.run("verify", "tour")
    assert (ran.code, ran.err.count("\n")) == (4, 1)
    assert "is damaged at byte" in ran.err
    assert "torn tail" not in ran.err


def test_an_event_that_makes_no_sense_is_damage(own_store: CliStore) -> None:
    own_store.rewrite(
        "tour", "odd", lambda event: event.encoded.replace(b'"text":"done"', b'"txet":"done"')
    )
    ran = own_store.run("verify", "odd")
    assert ran.code == 4
    assert ran.lines[0].startswith("odd  2 sealed, 2 verified")
    assert "does not have the shape of its type" in ran.err


def test_long_work_shows_its_progress_on_a_terminal(
    made_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "PATIENCE", 0)
    assert made_store.run("verify", "tour").err == ""
    monkeypatch.setattr(verify, "is_terminal", lambda stream: stream is sys.stderr)
    ran = made_store.run("verify", "tour", "--json")
    assert "verifying tour: log 1 of 1, seq " in ran.err
    assert ran.err.endswith("\r")
    assert orjson.loads(ran.out)
