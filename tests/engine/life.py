"""A program with an agent in it, for tests that kill it: one life of a session.

Run as `python -m tests.engine.life STORE BASE_URL SESSION STUCK_AT PROMPT...`. An empty SESSION
starts a new one; the tool call number STUCK_AT never returns, 0 is none of them. It says on its
output how far it is, a JSON object a line, and goes on after the last prompt until its input ends.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Literal

import trio

import refold
from tests.engine.conversation import local, options


async def live(store: Path, base_url: str, session: str, stuck_at: int, prompts: list[str]) -> None:
    """Start or resume the agent and ask it the prompts, one after the other."""
    calls = count(1)

    @refold.tool
    async def look(at: Literal["left", "right"]) -> str:
        """Look around."""
        if next(calls) == stuck_at:
            tell(inside="look")
            await told_to_end()
        return f"nothing on the {at}"

    async with refold.open(store, providers=[local(base_url)]) as runtime:
        if session:
            agent = await runtime.resume(session, **options(tools=[look]))
        else:
            agent = await runtime.start_agent(**options(tools=[look]))
        tell(session=agent.session_id)
        for prompt in prompts:
            turn = await agent.ask(prompt)
            tell(ended=turn.reason.kind)
        await told_to_end()


def tell(**what: str) -> None:
    """Say one thing to whoever started this program."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def told_to_end() -> None:
    """Wait until the input ends, which it also does when the parent is gone."""
    await trio.lowlevel.wait_readable(sys.stdin)


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
