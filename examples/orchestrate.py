"""A planner, its workers and a judge, as a program that may be killed at any time and run again.

python examples/orchestrate.py [STORE]

Every step has a key: said again, it is one prompt and one answer. So the program has no state of
its own and no code for recovery. Run it, kill it, run it: it goes on where it was.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from typing import Any

import trio

import refold

TRIES = 3


def model(body: dict[str, Any]) -> refold.Answer:
    """A scripted model that plays all parts; the bed is difficult at first."""
    system, last = body["messages"][0]["content"], body["messages"][-1]["content"]
    slow = refold.Delay(0.02)
    if system == "You work.":
        return [slow, "I could not." if last == "Describe: bed. Try 1." else f"{last} Done."]
    if last.startswith("Plan"):
        return [slow, "lamp\nbed\ndesk"]
    return [slow, "All three are described." if "Judge" in last else "Thank you."]


async def work(runtime: refold.Runtime, number: int, item: str, results: dict[int, str]) -> None:
    """One worker's item; a try that failed is followed by one under a new key."""
    worker = await runtime.open_agent(
        f"worker:{number}", continue_=True, model="script/any", system="You work."
    )
    for attempt in range(1, TRIES + 1):
        text = f"Describe: {item}. Try {attempt}."
        turn = await worker.ask(text, idempotency_key=f"{item}/{attempt}")
        results[number] = turn.text
        if turn.reason.kind == "completed" and turn.text.endswith("Done."):
            return
    raise SystemExit(f"{item} failed {TRIES} times: {results[number]}")


async def main(store: str) -> None:
    async with refold.open(store, providers=[refold.Script(model)], drain=5) as runtime:
        planner = await runtime.open_agent(
            "planner", continue_=True, model="script/any", system="You plan."
        )
        plan = await planner.ask("Plan the catalogue, an item a line.", idempotency_key="plan")
        results: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            for number, item in enumerate(plan.text.splitlines(), 1):
                nursery.start_soon(partial(work, runtime, number, item, results))
        collected = "\n".join(results[number] for number in sorted(results))
        told = await planner.ask(f"The results:\n{collected}", idempotency_key="results")

        # A fork shares what was said so far, and its cache; with an id it can be asked for again.
        judge = await runtime.fork("planner", at=told.end_seq, session_id="judge", continue_=True)
        verdict = await judge.ask("Judge the results.", idempotency_key="verdict")
        print(f"{collected}\nVerdict: {verdict.text}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
