"""Programs from which the world takes what a session needs, and gives it back; for a fork server.

They say what was acknowledged as lines of a `Journal`, and what else there is as JSON objects.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

import refold
from refold import ActorCrashed
from refold.runtime.errors import RefoldError
from tests.crash.places import Place
from tests.crash.writing import Witness, open_agent, open_runtime, say, text

SESSION = "starved"
CAPABILITIES_VERSION = 0x2008_0522
NEW_NAMESPACES = 0x1000_0000 | 0x0002_0000
"""The kernel's CLONE_NEWUSER and CLONE_NEWNS."""

PROMPTS = 50
"""How many are left in need, unless one fails."""

Switch = Callable[[], object]


def limit_file_size(folder: str, kind: str) -> None:
    """No file may grow much (RLIMIT_FSIZE)."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def take(left: int) -> None:
        size = max(path.stat().st_size for path in Path(folder).iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + left, hard))

    def give() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    starve(Place(kind, Path(folder), SESSION).store, lambda: take(30_000), lambda: take(100), give)


def limit_descriptors(folder: str, kind: str) -> None:
    """No file can be opened (RLIMIT_NOFILE)."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))

    give = partial(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    starve(Place(kind, Path(folder), SESSION).store, take, take, give)


def lose_permission(folder: str, kind: str) -> None:
    """The folder and its files become read-only; root gives up that it need not care."""
    header, no_capabilities = struct.pack("Ii", CAPABILITIES_VERSION, 0), bytes(24)
    if ctypes.CDLL(None).capset(header, no_capabilities) != 0:
        say(impossible="this system lets nobody give up capabilities")
        return

    def change(file_mode: int, folder_mode: int) -> None:
        Path(folder).chmod(folder_mode)
        for path in Path(folder).iterdir():
            path.chmod(file_mode)

    def take() -> None:
        change(0o400, 0o500)

    starve(Place(kind, Path(folder), SESSION).store, take, take, lambda: change(0o600, 0o700))


def fill_file_system(folder: str, kind: str) -> None:
    """A file system of 1 MiB that becomes full; the program's own, so it is copied at the end."""
    small = Path(folder) / "small"
    small.mkdir(parents=True)
    if not mount_small(small):
        say(impossible="this system lets no user mount a file system in a namespace")
        return
    sessions, filler = small / "sessions", small / "filler"

    def fill(most: int) -> None:
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            for _ in range(most):
                file.write(bytes(1000))

    starve(
        Place(kind, sessions, SESSION).store, lambda: fill(300), lambda: fill(2000), filler.unlink
    )
    shutil.copytree(sessions, Path(folder) / "copy")


def mount_small(where: Path) -> bool:
    libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
    if sys.platform != "linux" or libc.unshare(NEW_NAMESPACES) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError:
        return False
    done: int = libc.mount(b"tmpfs", os.fsencode(where), b"tmpfs", 0, b"size=1m")
    return done == 0


def starve(store: str, take: Switch, take_all: Switch, give: Switch) -> None:
    random.seed(SESSION)
    trio.run(_starve, store, take, take_all, give)


async def _starve(store: str, take: Switch, take_all: Switch, give: Switch) -> None:
    """Ask, ask in need until it fails, try to resume with nothing left, and go on afterwards."""
    async with open_runtime(store) as runtime:
        agent = await open_agent(runtime, SESSION, continues=False)
        await ask(agent, Witness(agent), "first")
        take()
        await ask_until_it_fails(agent)
        await agent.close()
        take_all()
        await resume_in_need(runtime)
        give()
        agent = await runtime.resume(SESSION, model="script/m", tools=())
        await ask(agent, Witness(agent), "last")


async def ask(agent: refold.Agent, witness: Witness, prompt: str) -> None:
    turn = await agent.ask(prompt)
    witness.acknowledged(turn.end_seq)
    say(answered=turn.turn, reason=turn.reason.kind)


async def ask_until_it_fails(agent: refold.Agent) -> None:
    witness = Witness(agent)
    try:
        for _ in range(PROMPTS):
            await ask(agent, witness, text(3000))
        say(failed="", text="")
    except RefoldError as error:
        cause = error.__cause__ if isinstance(error, ActorCrashed) else error
        say(failed=type(cause).__name__, text=str(cause))


async def resume_in_need(runtime: refold.Runtime) -> None:
    try:
        agent = await runtime.resume(SESSION, model="script/m", tools=())
        await agent.close()
        say(refused="", text="")
    except RefoldError as error:
        say(refused=type(error).__name__, text=str(error))
