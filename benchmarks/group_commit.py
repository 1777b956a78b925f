"""Many sessions that append at once: how many syncs an event costs (chapter 8, G3)."""

from __future__ import annotations

import time
from pathlib import Path

import attrs
import trio

import refold
from benchmarks.many_sessions import versions
from refold.actors.stores import EmbeddedStore
from refold.runtime.envelope import draft
from refold.runtime.events import TodoWrite


@attrs.frozen
class Load:
    """So many sessions append so many durable events each, one after the other."""

    sessions: int
    events: int


@attrs.frozen
class Found:
    """What one run on one kind of store found; times in seconds, for all events."""

    store: str
    events: int
    syncs: int
    rounds: int
    cpu: float
    wall: float


async def run(load: Load, folder: Path) -> list[Found]:
    """The load on a folder of files and on a SQLite file, and with one session on each."""
    stores = {"JSONL": str(folder / "files"), "SQLite": f"sqlite:///{folder / 's.db'}"}
    alone = Load(1, load.events)
    return [
        await measure(f"{name}, {one.sessions} at once", f"{store}-{one.sessions}", one)
        for name, store in stores.items()
        for one in (alone, load)
    ]


async def measure(name: str, where: str, load: Load) -> Found:
    """Append the load's events, each acknowledged before the next of its session."""
    async with refold.open(where, providers=[refold.Script([])], park_after=None) as runtime:
        agents = [await runtime.start_agent(model="script/m") for _ in range(load.sessions)]
        store = runtime.store
        assert isinstance(store, EmbeddedStore)
        began, spent = time.perf_counter(), time.process_time()
        before = attrs.evolve(store.statistics)
        async with trio.open_nursery() as nursery:
            for agent in agents:
                nursery.start_soon(append, agent, load.events)
        cpu, wall = time.process_time() - spent, time.perf_counter() - began
        after = store.statistics
        syncs, rounds = after.syncs - before.syncs, after.rounds - before.rounds
    return Found(name, load.sessions * load.events, syncs, rounds, cpu, wall)


async def append(agent: refold.Agent, events: int) -> None:
    for _ in range(events):
        await agent.log.append(draft(TodoWrite(())), flush=True)


def table(found: list[Found]) -> str:
    """The run as the Markdown that docs/benchmarks.md keeps."""
    lines = [
        f"| {one.store} | {one.events} | {one.syncs / one.events:.3f} | "
        f"{one.events / one.rounds:.1f} | {one.cpu / one.events * 1e6:.0f} µs | "
        f"{one.wall / one.events * 1e6:.0f} µs |"
        for one in found
    ]
    head = "| store | events | syncs an event | events a round | CPU an event | time an event |"
    return "\n".join([head, "|---|---|---|---|---|---|", *lines, "", versions()])
