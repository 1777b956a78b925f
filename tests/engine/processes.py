"""Processes of these tests: the command `refold`, and a program with an agent to be killed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import attrs
import trio

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds that a program may take for what it is asked."""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


async def run_refold(*arguments: str, status: int = 0) -> bytes:
    """What the command `refold` prints, in a process of its own that ends with `status`."""
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            [sys.executable, "-P", "-m", "refold", *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=_environment(),
        )
    assert done.returncode == status, done.stderr.decode()
    return done.stdout


async def assert_verified(store: Path, session_id: str, requests: int) -> None:
    """A fresh process rebuilds so many requests from the file, and each is the sealed one."""
    printed = await run_refold("verify", session_id, "--json", "--store", str(store))
    (found,) = json.loads(printed)["sessions"]
    assert (found["sealed"], found["verified"], found["unsealed"]) == (requests, requests, 0)


@attrs.define(eq=False)
class Life:
    """A running `life`."""

    _process: trio.Process
    _unread: bytes = b""

    async def heard(self, key: str) -> str:
        """What it says under `key`, which must be the next thing that it says."""
        assert self._process.stdout
        while b"\n" not in self._unread:
            more = await self._process.stdout.receive_some()
            assert more, f"the program ended before it said {key!r}"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, str] = json.loads(line)
        assert key in said, said
        return said[key]

    async def kill(self) -> int:
        """SIGKILL to this one process; returns its exit status."""
        self._process.kill()
        return await self._process.wait()

    async def finish(self) -> int:
        """Let it end by itself; returns its exit status."""
        assert self._process.stdin
        await self._process.stdin.aclose()
        return await self._process.wait()

    async def close(self) -> None:
        """Make sure that it has ended, and give its pipes back."""
        await self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            await pipe.aclose()


@asynccontextmanager
async def open_life(
    store: Path, base_url: str, prompts: Sequence[str], *, session: str = "", stuck_at: int = 0
) -> AsyncIterator[Life]:
    """Start a `life`; it is gone when the block is left, at the latest after `PATIENCE`."""
    arguments = (str(store), base_url, session, str(stuck_at), *prompts)
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", "tests.engine.life", *arguments],
        stdin=PIPE,
        stdout=PIPE,
        env=_environment(),
    )
    life = Life(process)
    try:
        with trio.fail_after(PATIENCE):
            yield life
    finally:
        with trio.CancelScope(shield=True):
            await life.close()
