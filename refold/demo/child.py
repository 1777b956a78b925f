"""The first life of the tour's agent, in a process that will be killed inside the tool.

Run as `python -m refold.demo.child STORE [ENGINE_URL]`; it says on its output, a JSON object a
line, how far it is. It ends by itself when its input is closed, so it outlives no parent.
"""

from __future__ import annotations

import json
import sys
from itertools import count

import trio

from refold.actors.runtime import open_runtime
from refold.demo.agent import FIRST_LIFE, STUCK_AT, new_agent, provider, scales


async def live(store: str, engine_url: str | None) -> None:
    """Answer the prompts of the first life; the tool call number `STUCK_AT` waits for the end."""
    calls = count(1)

    async def before() -> None:
        if next(calls) == STUCK_AT:
            _tell(stuck="weigh")
            await trio.lowlevel.wait_readable(sys.stdin)

    async with open_runtime(store, providers=[provider(engine_url)]) as runtime:
        options = new_agent(scales(before), engine_url)
        agent = await runtime.start_agent(name="weigher", **options)
        _tell(session=agent.session_id)
        for prompt in FIRST_LIFE:
            turn = await agent.ask(prompt)
            _tell(asked=prompt, answered=turn.text, ended=turn.reason.kind)


def _tell(**what: str) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(live, sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
