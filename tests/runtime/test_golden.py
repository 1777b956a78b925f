"""The contract: the reference's own verdicts on generated and recorded logs, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from refold.runtime.closing import interrupted_turn_closers
from refold.runtime.envelope import Event, decode_line, parse_draft
from refold.runtime.errors import NoRequestHeader, RefoldError
from refold.runtime.history import History
from refold.runtime.request import fold_request_header, rebuild_request
from refold.runtime.surface import fold_surface
from refold.runtime.typed_json import unstructure
from tests import golden

SEEDS = range(120)


def as_json(value: object) -> Any:
    return orjson.loads(orjson.dumps(unstructure(value)))


def rebuilt(events: Sequence[Event], boundary: int) -> dict[str, Any]:
    """A request in the form that the golden data has."""
    try:
        request = rebuild_request(events, boundary)
    except NoRequestHeader as missing:
        return {
            "stepStartSeq": boundary,
            "header": None,
            "messages": as_json(missing.messages),
        }
    return {
        "stepStartSeq": boundary,
        "header": as_json(request.header),
        "messages": as_json(request.messages),
    }


def closer_shape(event: dict[str, Any]) -> dict[str, Any]:
    """A closer without its words, which are our own."""
    data = {key: value for key, value in event["data"].items() if key != "content"}
    return {**event, "data": data}


def replayed(entry: dict[str, Any]) -> History:
    """The generated session, append by append, each verdict checked on the way."""
    session = History()
    times = iter([event["time"] for event in entry["events"]])
    for number, op in enumerate(entry["ops"]):
        record = {"type": op["type"], "data": op["data"], **op.get("opts", {})}
        before = (len(session.events), session.surface.snapshot(), session.derive_messages())
        if op["ok"]:
            session.append(parse_draft(record), next(times))
            continue
        with pytest.raises(RefoldError):
            session.append(parse_draft(record), 0)
        after = (len(session.events), session.surface.snapshot(), session.derive_messages())
        assert after == before, f"refused append {number} changed the session"
    return session


@pytest.mark.parametrize("number", SEEDS)
def test_generated_session_agrees_with_the_reference(number: int) -> None:
    entry = golden.differential()[number]
    session = replayed(entry)
    events = session.events
    assert [orjson.loads(event.encoded) for event in events] == entry["events"]
    assert list(session.surface.nodes) == entry["surface"]
    assert session.surface.replace_generation == entry["replaceGeneration"]
    assert fold_surface(events) == session.surface.snapshot()
    assert as_json(session.derive_messages()) == entry["messages"]
    assert session.header == fold_request_header(events)
    assert [rebuilt(events, r["stepStartSeq"]) for r in entry["requests"]] == entry["requests"]
    for cut in entry["crashCuts"]:
        closers = interrupted_turn_closers(events[: cut["length"]])
        ours = [closer_shape(orjson.loads(closer.encoded)) for closer in closers]
        assert ours == [closer_shape(closer) for closer in cut["closers"]]
        assert interrupted_turn_closers([*events[: cut["length"]], *closers]) == []


def test_the_generated_data_is_all_there() -> None:
    entries = golden.differential()
    assert len(entries) == len(SEEDS)
    assert sum(len(entry["requests"]) for entry in entries) > 900
    assert sum(len(entry["crashCuts"]) for entry in entries) > 300


def test_recorded_logs_agree_with_the_reference() -> None:
    lines = golden.logs("recorded-logs.tar.gz")
    checked = 0
    for verdict in golden.verdicts():
        stored = lines[verdict["log"]][1:]
        if "refused" in verdict:
            assert_refused_or_older(verdict, stored)
            continue
        session = History(map(decode_line, stored))
        events = session.events
        assert [event.encoded for event in events] == stored
        assert len(events) == verdict["events"]
        assert list(session.surface.nodes) == verdict["surface"]
        requests = [rebuilt(events, r["stepStartSeq"]) for r in verdict["requests"]]
        assert requests == verdict["requests"]
        closers = interrupted_turn_closers(events)
        ours = [closer_shape(orjson.loads(closer.encoded)) for closer in closers]
        assert ours == [closer_shape(closer) for closer in verdict["closers"]]
        checked += 1
    assert checked == 58


def assert_refused_or_older(verdict: dict[str, Any], stored: Sequence[bytes]) -> None:
    """The liberty that the golden data grants: older logs without a provider may be read."""
    try:
        History(map(decode_line, stored))
    except RefoldError:
        return
    assert "lacks provider/model" in verdict["refused"]


def test_logs_with_reported_usage_replay_whole() -> None:
    logs = golden.logs("usage-logs.tar.gz")
    assert len(logs) == 39
    for stored in logs.values():
        session = History(map(decode_line, stored[1:]))
        assert [event.encoded for event in session.events] == stored[1:]
