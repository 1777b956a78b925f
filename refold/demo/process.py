"""The child process of the tour, as its parent sees it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import attrs
import trio

import refold


@attrs.define(eq=False)
class Child:
    """A running child; what it says is read a line at a time."""

    _process: trio.Process
    _unread: bytes = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def heard(self) -> dict[str, Any] | None:
        """The next thing that it says; None once it has ended. Cancelled, nothing is lost."""
        assert self._process.stdout
        while b"\n" not in self._unread:
            more = await self._process.stdout.receive_some()
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    async def kill(self) -> int:
        """SIGKILL to this one process; returns its exit status, -9 when that is what ended it."""
        self._process.kill()
        return await self._process.wait()

    async def close(self) -> None:
        """Make sure that it has ended, and give its pipes back."""
        await self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            await pipe.aclose()


@asynccontextmanager
async def open_child(store: str, engine_url: str | None) -> AsyncIterator[Child]:
    """Start the child that lives the agent's first life; it is gone when the block is left.

    It runs on this interpreter and imports this copy of refold, wherever that came from.
    """
    home = str(Path(refold.__file__).parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    url = [] if engine_url is None else [engine_url]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", "refold.demo.child", store, *url],
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    child = Child(process)
    try:
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await child.close()
