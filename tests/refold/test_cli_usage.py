"""`refold usage`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import attrs
import orjson

from refold.cli.usage import _notes
from refold.runtime.envelope import Event
from refold.runtime.usage import Break, StepUsage
from tests.refold.cli_stores import CliStore


def as_json(store: CliStore, session: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(store.run("usage", session, "--json").out)
    return found


def columns(line: str) -> list[str]:
    return re.split(r"  +", line)


def test_a_row_a_step_with_what_the_model_reported(made_store: CliStore) -> None:
    ran = made_store.run("usage", "tour")
    messages = [e.data for e in made_store.events("tour") if e.type == "assistant/message"]
    assert (ran.code, ran.err) == (0, "")
    assert columns(ran.lines[0]) == ["step", "in", "cached", "out", "kept", "cached/in", "breaks"]
    for line, message in zip(ran.lines[1:-1], messages, strict=True):
        name, read, cached, out = columns(line)[:4]
        usage = message.usage
        assert name == f"{message.turn}.{message.step}"
        assert int(read) == usage.input_tokens + usage.cache_read_tokens
        assert int(cached) == usage.cache_read_tokens
        assert int(out) == usage.output_tokens
    total = [sum(int(columns(line)[at]) for line in ran.lines[1:-1]) for at in (1, 2, 3)]
    assert columns(ran.lines[-1])[:4] == ["total", *map(str, total)]


def test_a_request_that_only_grew_kept_all_of_the_last_one(made_store: CliStore) -> None:
    kept = [columns(line)[4] for line in made_store.run("usage", "tour").lines[1:-1]]
    assert kept == ["-", "100.0 %", "100.0 %"]


def test_the_bar_shows_the_cached_share(made_store: CliStore) -> None:
    for step, line in zip(
        as_json(made_store, "tour")["steps"],
        made_store.run("usage", "tour").lines[1:-1],
        strict=True,
    ):
        assert columns(line)[5].count("#") == int(10 * step["cached"] / step["in"])
        assert len(columns(line)[5]) == 10


def test_breaks_are_named_with_their_fields_and_seqs(made_store: CliStore) -> None:
    headers = [e.seq for e in made_store.events("changed") if e.type == "request/header"]
    replacing = made_store.first("changed", "context/message").seq
    lines = made_store.run("usage", "changed").lines[1:-1]
    assert [columns(line)[6:] for line in lines] == [
        [],
        [f"header change: /config/temperature (seq {headers[1]})"],
        [f"replacement of seqs 3 to 12 (seq {replacing})"],
        [f"new loop instance (seq {headers[2]}); header change: /system (seq {headers[2]})"],
    ]


def test_the_kept_share_agrees_with_diff(made_store: CliStore) -> None:
    steps = as_json(made_store, "changed")["steps"]
    for before, step in itertools.pairwise(steps):
        names = [f"{s['turn']}.{s['step']}" for s in (before, step)]
        found = orjson.loads(made_store.run("diff", "changed", *names, "--json").out)
        assert step["kept"] == found["keptShare"]
        assert step["wireBytes"] == found["b"]["bytes"]


def test_what_nobody_reported_is_unknown_and_not_zero(made_store: CliStore) -> None:
    lines = made_store.run("usage", "cancelled").lines
    assert columns(lines[1])[:6] == ["1.1", "-", "-", "-", "-", "-"]
    assert columns(lines[2])[:4] == ["total", "-", "-", "-"]
    assert lines[2].endswith("without 1 step that reported nothing")
    found = as_json(made_store, "cancelled")
    assert (found["steps"][0]["in"], found["steps"][0]["usage"]) == (None, None)
    assert found["total"] == {"in": None, "cached": None, "out": None}


def test_breaks_are_given_to_programs(made_store: CliStore) -> None:
    breaks = [step["breaks"] for step in as_json(made_store, "changed")["steps"]]
    assert [[found["kind"] for found in step] for step in breaks] == [
        [],
        ["header"],
        ["replacement"],
        ["instance", "header"],
    ]
    assert breaks[1][0]["fields"] == [
        {"path": "/config/temperature", "old": "absent", "new": "0.5"}
    ]
    assert breaks[2][0]["replaced"] == [3, 12]


def test_a_log_without_seals_has_rows_without_kept_prefixes(own_store: CliStore) -> None:
    own_store.rewrite(
        "changed", "unsealed", lambda event: event.encoded.replace(b"request/sealed", b"x/sealed")
    )
    sealed, bare = (as_json(own_store, name)["steps"] for name in ("changed", "unsealed"))
    assert [step["kept"] for step in bare] == [None] * 4
    assert [step["in"] for step in bare] == [step["in"] for step in sealed]
    assert [step["breaks"] for step in bare] == [step["breaks"] for step in sealed]


def test_who_broke_a_prefix_is_the_one_that_diff_names(any_store: CliStore) -> None:
    steps = as_json(any_store, "changed")["steps"]
    broken = 0
    for before, step in itertools.pairwise(steps):
        names = [f"{s['turn']}.{s['step']}" for s in (before, step)]
        found = orjson.loads(any_store.run("diff", "changed", *names, "--json").out)
        cause = None if found["divergence"] is None else found["divergence"]["cause"]["seq"]
        assert step["cause"] == cause
        broken += cause is not None
        assert step["gapMs"] >= 0
    assert broken == 3


def test_a_cache_that_missed_is_told_with_the_time_since_the_request_before(
    own_store: CliStore,
) -> None:
    seals = [e.seq for e in own_store.events("tour") if e.type == "request/sealed"]

    def change(event: Event) -> bytes:
        data = orjson.loads(event.encoded)
        if event.seq >= seals[-1]:
            data["time"] += 12 * 60_000
        usage = data["data"].get("usage")
        if event.type == "assistant/message":
            usage |= {"inputTokens": 2000, "cacheReadTokens": 0 if event.seq > seals[-1] else 1900}
        return orjson.dumps(data)

    own_store.rewrite("tour", "idle", change)
    last = as_json(own_store, "idle")["steps"][-1]
    assert (last["missed"], last["cause"], last["gapMs"] // 60_000) == (True, None, 12)
    line = own_store.run("usage", "idle").lines[-2]
    told = "the provider's cache missed, though the whole prefix was kept, 12 min after the request"
    assert told in line


def test_another_change_is_told_behind_the_cause(own_store: CliStore) -> None:
    seals = [e.seq for e in own_store.events("changed") if e.type == "request/sealed"]
    step = as_json(own_store, "changed")["steps"][2]
    row = StepUsage(1, 1, 0, breaks=(Break("instance", 5), Break("instance", 9)), cause=9)
    assert _notes(row) == ["new loop instance (seq 9)", "besides: new loop instance (seq 5)"]
    assert _notes(attrs.evolve(row, cause=7))[0] == "what changed stands at seq 7"
    assert seals[1] < step["cause"] < seals[2]
