"""One agent, one tool, one question: python examples/quickstart.py [STORE]

It runs on a scripted model. For a real one set DEEPSEEK_API_KEY, leave `providers` out and say
model="deepseek/deepseek-chat".
"""

from __future__ import annotations

import sys

import trio

import refold

SHELF = {"notes": "Buy milk. Call Ada.", "plan": "Ship on Friday."}


@refold.tool(effects=False)
async def read(page: str) -> str:
    """Read a page from the shelf."""
    return SHELF[page]


MODEL = refold.Script(
    [refold.Call("read", {"page": "notes"}), refold.Say("Buy milk, and call Ada.")]
)


async def main(store: str) -> None:
    async with refold.open(store, providers=[MODEL]) as runtime:
        agent = await runtime.start_agent(
            name="reader", model="script/any", system="You look things up.", tools=[read]
        )
        turn = await agent.ask("What do my notes say?")
        print(turn.text)
        print(f"Turn {turn.turn} of session {agent.session_id}: {turn.reason.kind}.")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "sessions")
