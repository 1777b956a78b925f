"""The generated sessions under the relational rules: which they break, and where first.

The reference's own session accepts all of these events; the log writer must not.
"""

from __future__ import annotations

from typing import Any

import attrs
import orjson
import pytest

from refold.actors.kernel import open_supervisor
from refold.actors.log.live_log import LiveLog
from refold.actors.stores import open_store
from refold.runtime.envelope import Draft, Event, Replace, decode_line, parse_draft
from refold.runtime.errors import RuleBroken
from refold.runtime.events import Owner
from refold.runtime.rules import broken_rules
from refold.runtime.storage.session_header import SessionHeader
from tests import golden
from tests.agents import start_writer

FIRST_BROKEN = {
    13: (4, 11),
    7932: (6, 13),
    23770: (4, 22),
    31689: (5, 13),
    39608: (6, 18),
    47527: (6, 30),
    71284: (6, 11),
    79203: (6, 36),
    87122: (5, 7),
    102960: (6, 42),
    118798: (5, 22),
    126717: (6, 28),
    134636: (5, 28),
    142555: (5, 26),
    150474: (6, 3),
    158393: (6, 41),
    166312: (5, 12),
    174231: (6, 20),
    182150: (5, 11),
    190069: (5, 10),
    197988: (5, 8),
    213826: (6, 30),
    221745: (5, 24),
    229664: (6, 7),
    237583: (5, 74),
    253421: (6, 3),
    269259: (6, 18),
    277178: (6, 2),
    285097: (6, 20),
    293016: (5, 10),
    308854: (5, 11),
    316773: (5, 14),
    324692: (5, 23),
    332611: (5, 15),
    340530: (5, 28),
    348449: (5, 15),
    356368: (5, 53),
    372206: (5, 9),
    388044: (6, 3),
    395963: (5, 10),
    411801: (6, 9),
    419720: (5, 15),
    427639: (5, 50),
    435558: (5, 15),
    443477: (6, 13),
    451396: (6, 18),
    459315: (6, 11),
    467234: (6, 55),
    475153: (6, 3),
    483072: (5, 42),
    490991: (5, 17),
    498910: (5, 37),
    506829: (5, 87),
    522667: (5, 18),
    530586: (6, 58),
    546424: (5, 25),
    554343: (4, 8),
    570181: (4, 10),
    578100: (6, 50),
    586019: (5, 7),
    609776: (5, 40),
    617695: (5, 12),
    625614: (6, 3),
    641452: (5, 11),
    649371: (5, 38),
    657290: (5, 17),
    665209: (6, 9),
    673128: (6, 2),
    681047: (6, 2),
    688966: (6, 18),
    696885: (4, 12),
    704804: (6, 32),
    712723: (6, 2),
    720642: (6, 2),
    728561: (6, 2),
    736480: (6, 2),
    744399: (5, 14),
    760237: (5, 32),
    768156: (6, 6),
    776075: (6, 2),
    783994: (6, 19),
    791913: (5, 13),
    807751: (5, 10),
    815670: (5, 51),
    839427: (6, 14),
    847346: (5, 13),
    855265: (6, 35),
    871103: (5, 26),
    879022: (5, 10),
    886941: (6, 48),
    894860: (6, 34),
    902779: (5, 28),
    910698: (6, 33),
    918617: (5, 36),
    926536: (5, 55),
    934455: (6, 45),
}
"""By the session's seed: the rule that it breaks first, and the seq of the event that does."""


def events_of(entry: dict[str, Any]) -> list[Event]:
    return [decode_line(orjson.dumps(event)) for event in entry["events"]]


def shifted(event: dict[str, Any]) -> Draft:
    """The event as a draft for a log whose first event is its `session/owner`: seqs are one up."""
    record = {key: value for key, value in event.items() if key not in ("seq", "time")}
    made = parse_draft(record)
    cites = made.source_event_seqs
    op = made.surface_op
    if isinstance(op, Replace):
        op = Replace(op.start + 1, op.end + 1)
    up = None if cites is None else tuple(seq + 1 for seq in cites)
    return attrs.evolve(made, source_event_seqs=up, surface_op=op)


@pytest.mark.parametrize("number", range(120))
async def test_the_writer_refuses_exactly_the_first_event_that_breaks_a_rule(number: int) -> None:
    entry = golden.differential()[number]
    broken = broken_rules(events_of(entry))
    first = FIRST_BROKEN.get(entry["seed"])
    assert first == ((broken[0].rule, broken[0].seq) if broken else None)

    live = LiveLog("golden", 0)
    grant = await open_store("memory:").create(SessionHeader("golden", 0))
    owner = Owner("test", 1, "boot")
    async with open_supervisor("golden") as tree:
        log = await start_writer(tree, live=live, grant=grant, owner=owner, clock=lambda: 0)
        for event in entry["events"]:
            if first is not None and event["seq"] == first[1]:
                with pytest.raises(RuleBroken) as refused:
                    await log.append(shifted(event))
                assert (refused.value.rule, refused.value.seq) == (first[0], first[1] + 1)
                break
            await log.append(shifted(event))
        taken = len(entry["events"]) if first is None else first[1]
        assert live.session.next_seq == taken + 1


def test_the_recorded_logs_break_no_rule() -> None:
    lines = golden.logs("recorded-logs.tar.gz")
    kept = [verdict["log"] for verdict in golden.verdicts() if "refused" not in verdict]
    assert len(kept) == 58
    assert {log: broken_rules(map(decode_line, lines[log][1:])) for log in kept} == {
        log: [] for log in kept
    }
