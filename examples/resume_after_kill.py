"""An agent that survives kill -9: python examples/resume_after_kill.py [STORE]

The program starts itself once more as a child, kills that child while its agent is inside a tool,
and goes on with the same session.
"""

from __future__ import annotations

import subprocess
import sys

import trio

import refold


def model(body: dict[str, list[dict[str, str]]]) -> refold.Call | refold.Say:
    """A scripted model that asks for the tool until it has an answer without an error."""
    last = body["messages"][-1]
    if last["role"] == "tool" and "interrupted" not in last["content"]:
        return refold.Say(f"Done: {last['content']}")
    return refold.Call("deploy", {"version": "1.2"})


async def first_life(store: str) -> None:
    @refold.tool
    async def deploy(version: str) -> str:
        """Deploy a version."""
        print(f"deploying {version}", flush=True)
        await trio.lowlevel.wait_readable(sys.stdin)  # until the parent kills us, or is gone
        raise SystemExit

    async with refold.open(store, providers=[refold.Script(model)]) as runtime:
        agent = await runtime.start_agent(model="script/any", tools=[deploy])
        print(agent.session_id, flush=True)
        await agent.ask("Deploy version 1.2.")


async def second_life(store: str, session_id: str) -> None:
    @refold.tool
    async def deploy(version: str) -> str:
        """Deploy a version."""
        return f"version {version} is live"

    async with refold.open(store, providers=[refold.Script(model)]) as runtime:
        agent = await runtime.resume(session_id, tools=[deploy])
        print((await agent.ask("What happened? Check, then finish.")).text)


def main(store: str) -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, store, "child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout
        session_id = child.stdout.readline().strip()
        print(f"The child is {child.stdout.readline().strip()}; it is killed now.")
        child.kill()
    print(f"Its exit status is {child.returncode}. Session {session_id} goes on here.")
    trio.run(second_life, store, session_id)


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "sessions"
    if sys.argv[2:] == ["child"]:
        trio.run(first_life, where)
    else:
        main(where)
