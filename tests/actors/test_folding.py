"""Opening a log folds its last step and `FOLDED` before it; all events would fold to the same."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

import orjson
import pytest

from refold.actors.log.live_log import LiveLog
from refold.runtime.envelope import decode_line
from refold.runtime.errors import RefoldError
from refold.runtime.events import FOLDED
from refold.runtime.history import History
from refold.runtime.prompt_ledger import PromptLedger
from refold.runtime.rules import Inbox, Pairing, Rules
from refold.runtime.storage import Scan, scan
from refold.runtime.storage.framing import Record
from refold.runtime.storage.walk import Records
from refold.runtime.surface import SurfaceManager
from tests import golden
from tests.actors.histories import RandomHistory
from tests.runtime.storage.logs import framed

SEEDS = range(24)

FOLDS = (LiveLog, History, SurfaceManager, Rules, Inbox, Pairing, PromptLedger)


def fields(fold: object) -> Any:
    """Every field of a fold and of the folds in it; what else there is compares by itself."""
    if not isinstance(fold, FOLDS):
        return fold
    return {name: fields(value) for name, value in vars(fold).items() if name != "feed"}


def folded(records: Iterable[Record], seed_length: int) -> Any:
    """What a live log is after these records, as an opening of it goes about them."""
    live = LiveLog("demo", seed_length)
    for record in records:
        event = decode_line(record.encoded)
        live.session.pass_over(event.seq)
        live.session.replay(event)
        live.rules.apply(event)
        live.follow(event)
    return fields(live)


def differing(found: Scan, seed_length: int, earlier: Collection[str]) -> list[str]:
    """The folds that differ when events of other types are left out before the last step."""
    assert isinstance(found.records, Records)
    whole = folded(found.records, seed_length)
    try:
        part = folded(found.records.since_step(earlier), seed_length)
    except RefoldError as error:
        return [f"no fold: {error}"]
    assert whole.keys() == part.keys()
    return [name for name in whole if whole[name] != part[name]]


def cuts(encoded: list[bytes], chance: random.Random, many: int) -> Iterator[tuple[Scan, int]]:
    """The whole log and some that end before it, each as a log of its own and as a fork's."""
    data, ends = framed([[event] for event in encoded])
    lengths = {len(encoded), *(chance.randint(1, len(encoded)) for _ in range(many))}
    for length in lengths:
        found = scan(data[: ends[length]], "demo", path="x")
        turns = [record.seq + 1 for record in found.select(("turn/end",))]
        for seed_length in {0, *turns[-1:], *turns[:1]}:
            yield found, seed_length


@cache
def history(seed: int) -> list[bytes]:
    grown = RandomHistory(random.Random(seed))
    grown.grow(random.Random(seed).randint(60, 160))
    return [event.encoded for event in grown.session.events]


@cache
def random_cuts() -> list[tuple[Scan, int]]:
    return [cut for seed in SEEDS for cut in cuts(history(seed), random.Random(seed), 16)]


def test_what_an_opening_leaves_out_is_in_no_fold() -> None:
    for number, (log, seed_length) in enumerate(random_cuts()):
        assert (number, differing(log, seed_length, FOLDED)) == (number, [])


@pytest.mark.parametrize("type_", sorted(FOLDED))
def test_each_type_that_is_kept_is_in_a_fold(type_: str) -> None:
    """The self-test: without it some log folds to something else."""
    earlier = FOLDED - {type_}
    assert any(differing(log, seed_length, earlier) for log, seed_length in random_cuts())


def test_the_random_logs_hold_what_they_are_for() -> None:
    types = {record.type for log, _ in random_cuts() for record in log.records}
    left_out = [
        len(log.records) - len([*log.records.since_step(FOLDED)])
        for log, _ in random_cuts()
        if isinstance(log.records, Records)
    ]
    assert types >= FOLDED | {"tool/call", "request/sealed", "assistant/chunk", "session/owner"}
    assert sum(count > 0 for count in left_out) > 300
    assert sum(seed_length > 0 for _, seed_length in random_cuts()) > 100


def test_what_an_opening_leaves_out_of_the_golden_logs_is_in_no_fold() -> None:
    compared, chance = 0, random.Random(0)
    for generated in golden.differential():
        encoded = [decode_line(orjson.dumps(event)).encoded for event in generated["events"]]
        for log, seed_length in cuts(encoded, chance, 2):
            found = differing(log, seed_length, FOLDED)
            assert (generated["seed"], found) == (generated["seed"], [])
            compared += 1
    assert compared > 300
