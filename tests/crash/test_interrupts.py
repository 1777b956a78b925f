"""A program is interrupted once, twice or thrice at any instant: it ends, and its logs are whole.

How many programs there are says `REFOLD_INTERRUPTS`; the slow test runs 1,000.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from refold.faults import ForkServer
from refold.runtime.envelope import decode_line
from refold.runtime.rules import broken_rules
from refold.runtime.storage import open_sessions

pytestmark = pytest.mark.crash

BOUND = 5.0
"""Seconds after the last signal in which a program has ended."""

SECONDS = 2.5
"""Within what time the first signal comes; another one follows within half a one."""

COUNT = int(os.environ.get("REFOLD_INTERRUPTS", "16"))
FIRST = int(os.environ.get("REFOLD_INTERRUPTS_FIRST", "0"))


@attrs.define
class Interrupted:
    """What came of one program: when it ended after the last signal, and what it said."""

    seconds: float = 0.0
    signals: int = 0
    lines: list[dict[str, object]] = attrs.field(factory=list)

    def said(self, key: str) -> list[object]:
        return [line[key] for line in self.lines if key in line]


def interrupt(server: ForkServer, where: str, seed: int) -> Interrupted:
    """Run a program and send it one to three SIGINT; raises `OutOfPatience` if it goes on."""
    chance = random.Random(seed)
    instants = [chance.uniform(0, SECONDS)]
    while len(instants) < seed % 4:  # once, once, twice, thrice
        instants.append(instants[-1] + chance.uniform(0, 0.5))
    sent: list[float] = []
    with server.start("tests.crash.interrupted:main", where, str(seed)) as program:
        program.wait_for(b'{"begun"')
        start = time.monotonic()
        for instant in instants:
            program.listen(max(0.0, start + instant - time.monotonic()))
            if any(line.startswith(b'{"ended"') for line in program.said):
                break
            os.kill(program.pid, signal.SIGINT)
            sent.append(time.monotonic())
        program.wait_for(b'{"ended"', BOUND + 5.0)
        program.end()
        lines = [json.loads(line) for line in program.said]
    (ended,) = [float(line["at"]) for line in lines if "ended" in line] or [math.inf]
    signals = [at for at in sent if at < ended]  # one that came later may have met nobody
    return Interrupted(ended - (signals or [start])[-1], len(signals), lines)


def assert_whole(where: str) -> int:
    """Every log is read to its end and within the rules; returns how many there are."""
    with closing(open_sessions(where)) as sessions:
        names = sessions.list()
        for name in names:
            with closing(sessions.reader(name)) as reader:
                events = [decode_line(record.encoded) for record in reader.read_new()]
            assert broken_rules(events) == [], name
    return len(names)


def interrupt_many(folder: Path, seeds: range) -> str:
    ends, slowest, signals, logs = Counter[str](), Interrupted(), 0, 0
    with ForkServer("tests.crash.interrupted") as server:
        for seed in seeds:
            where = str(folder / str(seed))
            where = f"sqlite:///{where}.db" if seed // 4 % 2 else where
            came = interrupt(server, where, seed)
            assert came.seconds < BOUND, f"seed {seed}: {came}"
            assert came.said("locked") == [], f"seed {seed}: {came}"
            assert came.said("opened"), f"seed {seed}: {came}"
            ended = str(came.said("ended")[0])
            assert ended == "KeyboardInterrupt" or not came.signals, f"seed {seed}: {came}"
            logs += assert_whole(where)
            ends[ended] += 1
            signals += came.signals
            slowest = max(slowest, came, key=lambda one: one.seconds)
    return (
        f"{sum(ends.values())} programs, {signals} signals, {logs} logs; "
        f"{dict(ends)}; the slowest ended {slowest.seconds:.1f} s after the last signal"
    )


def test_an_interrupted_program_ends_and_its_logs_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = interrupt_many(tmp_path, range(FIRST, FIRST + COUNT))
    with capsys.disabled():
        sys.stdout.write(f" [{told}]")


@pytest.mark.slow
def test_a_thousand_interrupted_programs_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = interrupt_many(tmp_path, range(10_000, 11_000))
    with capsys.disabled():
        sys.stdout.write(f" [{told}]")
