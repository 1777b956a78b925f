"""An agent that cannot run away: python examples/budgeted_run.py [STORE]

A *turn* is everything from a question to its answer: the model speaks, its tools run, it reads
the results and speaks again, once for each *step*. A budget says what one turn may take. A turn
that used it up is ended in good order, so the next question simply works.
"""

from __future__ import annotations

import sys

import trio

import refold


@refold.tool(effects=False)
async def search(query: str) -> str:
    """Search the archive."""
    return f"nothing about {query}"


@refold.tool(effects=False)
async def wait_for_mail() -> str:
    """Wait until mail comes."""
    await trio.sleep(3600)
    return "no mail today"


def model(body: dict[str, list[dict[str, str]]]) -> refold.Call | refold.Say:
    """A scripted model that never stops searching, and waits for mail when it is told to."""
    last = body["messages"][-1]["content"]
    if "mail" in last:
        return refold.Call("wait_for_mail")
    if "give up" in last:
        return refold.Say("Then I give up: it is nowhere.")
    return refold.Call("search", {"query": f"idea {len(body['messages'])}"})


async def main(store: str) -> None:
    budgets = refold.Budgets(
        max_steps=4,  # model calls; 100 unless you say otherwise
        max_seconds=0.5,  # wall time: ends a stream or a tool in the middle
        turn_tokens=50_000,  # read and written, summed over the steps
    )
    async with refold.open(store, providers=[refold.Script(model)]) as runtime:
        agent = await runtime.start_agent(
            model="script/any", tools=[search, wait_for_mail], budgets=budgets
        )
        for question in ("Where is the lost city?", "Wait for mail.", "You may give up."):
            turn = await agent.ask(question)
            # reason.kind says how a turn ended, reason.limit which budget it used up
            ended = f"{turn.reason.kind} {turn.reason.limit or ''}".strip()
            print(f"{question} -> {ended}. {turn.text}".strip())


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "sessions")
