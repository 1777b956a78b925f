"""Any log that can be read is gone on with or refused, and `check` is of the same opinion.

Random logs of events that belong together and events that do not, some with fields more or less.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import refold
from refold import Say, Script
from refold.cli.shared.findings import examine
from refold.cli.shared.logs import Place
from refold.runtime.errors import HistoryUnbalanced, HistoryUnreadable, InvalidEvent
from refold.runtime.storage import open_sessions
from tests.agents import stored_events
from tests.foreign import (
    TEXT,
    USER,
    Line,
    answers,
    asks,
    begin,
    end,
    event,
    over,
    surface,
    turn,
    write,
)

IDS = ("call-1", "call-2")


def ids(chance: random.Random) -> list[str]:
    return chance.sample(IDS, chance.randrange(3))


Piece = Callable[[random.Random, int], list[Line]]

PIECES: list[Piece] = [
    lambda c, n: begin(n),
    lambda c, n: asks(n, *ids(c)),
    lambda c, n: asks(n, *ids(c)),
    lambda c, n: answers(n, *ids(c)),
    lambda c, n: answers(n, *IDS),
    lambda c, n: [over(n)],
    lambda c, n: [end(n)],
    lambda c, n: [surface("context/message", content=TEXT, source=USER)],
    lambda c, n: [surface("assistant/message", turn=n, step=1, content=[])],
    lambda c, n: [event("tool/call", turn=n, step=1, callId=c.choice(IDS), name="n", arguments="")],
    lambda c, n: [event("approval/asked", turn=n, step=1, callId=c.choice(IDS))],
    lambda c, n: [event("inbox/queued", target="turn", kind="prompt", content=TEXT, source=USER)],
    lambda c, n: [event("inbox/removed", queuedSeqs=[c.randrange(9)], outcome="cancelled")],
    lambda c, n: [Line("compact/start", {"turn": c.choice([None, n])})],
    lambda c, n: [Line("compact/end", {"turn": c.choice([None, n]), "error": "x"})],
    lambda c, n: [event("poke", more=[{}])],
]
"""What may stand anywhere in a log that nobody wrote by our rules."""


def foreign_log(chance: random.Random) -> list[Line]:
    lines: list[Line] = []
    for number in range(1, chance.randint(2, 8)):
        lines += turn(number, *ids(chance))
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            lines += chance.choice(PIECES)(chance, number + 1)
        if chance.random() < 0.1:
            del lines[chance.randrange(len(lines))]
        if chance.random() < 0.2:
            at = chance.randrange(len(lines))
            if lines[at].fields == {}:  # of messages nothing may be odd
                lines[at] = odd(lines[at], chance)
    return lines


def odd(line: Line, chance: random.Random) -> Line:
    if chance.random() < 0.7:
        return line.having(more={"a": 1})
    if chance.random() < 0.1:
        return Line(line.type, line.data, {"lang": "en"})
    return line.having(**{chance.choice([*line.data] or ["x"]): None})


async def outcome(runtime: refold.Runtime, session: str) -> tuple[str, int | None]:
    """How opening a session and asking twice comes out: the refusal, and where it says to fork."""
    try:
        agent = await runtime.resume(session, model="script/m", continue_=True)
    except (HistoryUnbalanced, HistoryUnreadable) as refused:
        return type(refused).__name__, refused.fork_at
    except InvalidEvent as refused:
        return "InvalidEvent", refused.seq
    await agent.wait_idle()
    for text in ("go on", "and on"):
        answer = await agent.ask(text)
        assert (answer.reason.kind, answer.text) == ("completed", "fine"), answer
    await agent.close()
    reasons = [e.data.reason for e in stored_events(runtime, session) if e.type == "turn/end"]
    assert "INVARIANT" not in [getattr(reason, "code", None) for reason in reasons]
    return "goes on", None


async def test_every_log_goes_on_or_is_refused_as_check_says(tmp_path: Path) -> None:
    seen = Counter[str]()
    async with refold.open(tmp_path, providers=[Script(lambda _: Say("fine"))]) as runtime:
        for seed in range(150):
            session = f"log-{seed}"
            write(tmp_path, foreign_log(random.Random(seed)), session)
            report = examine(Place(open_sessions(tmp_path), session))
            verdict, place = await outcome(runtime, session)
            seen[verdict] += 1
            if verdict == "InvalidEvent":
                assert (seed, report.exit_code, type(report.error).__name__) == (seed, 4, verdict)
                continue
            unusable = report.unusable
            said = "goes on" if unusable is None else type(unusable).__name__
            assert (seed, said, report.error) == (seed, verdict, None)
            if unusable is None:
                continue
            assert unusable.fork_at == place
            if place is not None:
                fork = await runtime.fork(session, at=place, model="script/m")
                assert (await fork.ask("hello")).text == "fine"
                await fork.close()
    assert seen.keys() == {"goes on", "HistoryUnbalanced", "HistoryUnreadable", "InvalidEvent"}
    assert min(seen["goes on"], seen["HistoryUnbalanced"]) > 30
