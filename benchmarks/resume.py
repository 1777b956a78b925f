"""Opening a long session again: from its log alone, and with the index file (chapter 8, G8).

Each opening runs in a process of its own, on a copy of the log, up to the first turn's end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import attrs
import trio

import refold
from benchmarks.many_sessions import held, versions
from refold.runtime.storage import open_sessions

SESSION = "long"


@attrs.frozen
class Opened:
    """One opening: CPU seconds, what it holds then in bytes, the first turn's CPU.

    `read_cpu` is the CPU time of reading the log and finding its lines, which is P of chapter 8.
    """

    cpu: float
    memory: int
    first_turn_cpu: float
    read_cpu: float


@attrs.frozen
class Found:
    """What one run found of a log of so many events and bytes."""

    events: int
    size: int
    cold: Opened
    indexed: Opened


def run(events: int, folder: Path) -> Found:
    """Write a log of about so many events in `folder`, then open copies of it."""
    source = folder / "source"
    trio.run(write, source, events)
    bare = folder / "bare"
    shutil.copytree(source, bare)
    (bare / f"{SESSION}.index").unlink(missing_ok=True)
    log = source / f"{SESSION}.jsonl"
    count = len(open_sessions(source).read(SESSION).records)
    return Found(count, log.stat().st_size, measured(bare), measured(source))


async def write(folder: Path, events: int) -> None:
    """Turns with a question, an answer that was streamed in pieces, and all that goes with them."""
    model = refold.Script(lambda _: refold.Say("It is about refolding, and more. " * 3, pieces=12))
    async with refold.open(folder, providers=[model], durability="none") as runtime:
        agent = await runtime.start_agent(
            model="script/m", session_id=SESSION, chunks="verbatim", invariants="off"
        )
        while agent.log.live.session.next_seq < events:
            await agent.ask("What is on the next page, and what is it about?")
            model.bodies.clear()


def measured(folder: Path) -> Opened:
    """Open the log in `folder` in a fresh process."""
    program = [sys.executable, "-m", "benchmarks.resume", str(folder)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)  # noqa: S603 - it is this module
    return Opened(**json.loads(done.stdout))


async def measure(folder: Path) -> Opened:
    """Open the log in this process, and let the agent take a turn."""
    model = refold.Script(lambda _: refold.Say("Fine."))
    async with refold.open(folder, providers=[model], park_after=None) as runtime:
        before, began = held().memory, time.process_time()
        agent = await runtime.resume(SESSION)
        cpu = time.process_time() - began
        after = held().memory
        began = time.process_time()
        await agent.ask("And the next?")
        turn = time.process_time() - began
    began = time.process_time()
    (folder / f"{SESSION}.jsonl").read_bytes().split(b"\n")
    read = time.process_time() - began
    return Opened(cpu, after - before, turn, read)


def table(found: Found) -> str:
    """The run as the Markdown that docs/benchmarks.md keeps."""
    rows = {"from its log alone": found.cold, "with the index file": found.indexed}
    lines = [
        f"| {name} | {one.cpu * 1000:.0f} ms | {one.cpu / one.read_cpu:.1f} | "
        f"{one.first_turn_cpu * 1000:.0f} ms | {one.memory / 1e6:.0f} MB |"
        for name, one in rows.items()
    ]
    head = "| opened | CPU | against reading and splitting | CPU of the first turn | memory |"
    what = f"{found.events:,} events, {found.size / 1e6:.0f} MB."
    return "\n".join([what, "", head, "|---|---|---|---|---|", *lines, "", versions()])


if __name__ == "__main__":
    print(json.dumps(attrs.asdict(trio.run(measure, Path(sys.argv[1])))))  # noqa: T201 - its parent reads it
