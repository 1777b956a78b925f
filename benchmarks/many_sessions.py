"""Many sessions in one process: a few are busy, the others parked.

Busy sessions take turns with a scripted model and one tool, on a store of real files that is
synced as always. Everything is measured in the process that does the work.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import trio

import refold


@attrs.frozen
class Load:
    """How many sessions there are, how many take turns, and how many turns each of those takes."""

    sessions: int
    busy: int
    turns: int


@attrs.frozen
class Held:
    """What this process holds at one moment; `memory` is its resident set in bytes."""

    tasks: int
    descriptors: int
    memory: int


@attrs.frozen
class Found:
    """What one run found; `seconds` are wall time, one for each busy turn, `cpu` is for all.

    `parked` counts the idle sessions that were still so when the last busy turn was over.
    """

    load: Load
    before: Held
    idle: Held
    seconds: tuple[float, ...]
    cpu: float
    parked: int
    finished: int

    @property
    def idle_sessions(self) -> int:
        return self.load.sessions - self.load.busy

    @property
    def idle_tasks(self) -> int:
        """Tasks that the idle sessions have altogether."""
        return self.idle.tasks - self.before.tasks

    @property
    def idle_descriptors(self) -> int:
        """File descriptors that the idle sessions hold altogether."""
        return self.idle.descriptors - self.before.descriptors

    @property
    def idle_bytes(self) -> float:
        """Resident memory for each idle session."""
        return (self.idle.memory - self.before.memory) / max(1, self.idle_sessions)


@refold.tool(effects=False)
async def look(page: int) -> str:
    """Look at a page."""
    return f"page {page} is about refolding"


def reply(body: dict[str, Any]) -> refold.Call | refold.Say:
    """A model that looks once and then answers."""
    if body["messages"][-1]["role"] == "tool":
        return refold.Say("It is about refolding.")
    return refold.Call("look", {"page": len(body["messages"])})


async def run(load: Load, folder: Path) -> Found:
    """One run on a new store in `folder`: sessions go idle, then the busy ones take turns."""
    model = refold.Script(reply)
    async with refold.open(folder, providers=[model], park_after=None) as runtime:
        await start(runtime)  # what only the first session costs is no part of an idle one
        before = held()
        idle = [await start(runtime) for _ in range(load.sessions - load.busy)]
        model.bodies.clear()  # the script's own record of requests
        held_idle = held()
        busy = [await runtime.start_agent(model="script/m", tools=[look]) for _ in range(load.busy)]
        seconds, spent = list[float](), time.process_time()
        async with trio.open_nursery() as nursery:
            for agent in busy:
                nursery.start_soon(converse, agent, load.turns, seconds)
        cpu = time.process_time() - spent
        parked = sum(agent.parked for agent in idle)
        finished = sum(agent.log.live.rules.standing.turn for agent in busy)
    return Found(load, before, held_idle, tuple(seconds), cpu, parked, finished)


async def start(runtime: refold.Runtime) -> refold.Agent:
    """A session that took one turn and went idle."""
    agent = await runtime.start_agent(model="script/m", tools=[look])
    await agent.ask("What is on the first page?")
    await agent.wait_idle()
    await agent.park()
    return agent


async def converse(agent: refold.Agent, turns: int, seconds: list[float]) -> None:
    for _ in range(turns):
        began = time.perf_counter()
        await agent.ask("And what is on the next one?")
        seconds.append(time.perf_counter() - began)


def held() -> Held:
    """What this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Held(
        trio.lowlevel.current_statistics().tasks_living,
        len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - a Path for each would be more to hold
        pages * os.sysconf("SC_PAGE_SIZE"),
    )


def table(found: Found) -> str:
    """The run as the Markdown that docs/benchmarks.md keeps."""
    median, slowest = statistics.median(found.seconds), max(found.seconds)
    rows = {
        "sessions, busy, turns of each busy one": (
            f"{found.load.sessions}, {found.load.busy}, {found.load.turns}"
        ),
        "CPU of a busy turn": f"{found.cpu / len(found.seconds) * 1000:.1f} ms",
        "median busy turn": f"{median * 1000:.1f} ms",
        "slowest busy turn": f"{slowest * 1000:.1f} ms",
        "slowest against median (aim: 3)": f"{slowest / median:.2f}",
        "tasks of all idle sessions (aim: 0)": f"{found.idle_tasks}",
        "descriptors of all idle sessions (aim: 0)": f"{found.idle_descriptors}",
        "memory of an idle session": f"{found.idle_bytes / 1000:.1f} kB",
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["| what | found |", "|---|---|", *lines, "", versions()])


def versions() -> str:
    """What the numbers of a run depend on."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("trio", "orjson", "attrs"))
    return f"Python {platform.python_version()}, {packages}; {os.cpu_count()} CPUs."
