"""Two agents work together: python examples/two_agents.py [STORE]

Every agent has a log of its own. The writer has a tool that asks the critic, and waits for the
answer as for any other tool; both run in one program, side by side.
"""

from __future__ import annotations

import sys

import trio

import refold

# Each agent gets a scripted model here. With a real one leave `providers` out below, set its key
# in the environment, and say for example model="deepseek/deepseek-chat".
WRITER = refold.Script(
    [
        refold.Call("ask_critic", {"draft": "The sea is big."}),
        refold.Say("The sea is bigger than you."),
        refold.Say("Thank you, it is printed now."),
    ],
    name="writer",
)
CRITIC = refold.Script([refold.Say("Say what it is big against.")], name="critic")


async def main(store: str) -> None:
    async with refold.open(store, providers=[WRITER, CRITIC]) as runtime:
        critic = await runtime.start_agent(
            name="critic", model="critic/any", system="You judge sentences."
        )

        # A tool may be any function, also one that closes over another agent.
        @refold.tool(timeout=120)
        async def ask_critic(draft: str) -> str:
            """Have a sentence judged."""
            turn = await critic.ask(draft)
            return turn.text

        writer = await runtime.start_agent(
            name="writer", model="writer/any", system="You write sentences.", tools=[ask_critic]
        )
        turn = await writer.ask("One sentence about the sea, please.")
        print(f"Writer: {turn.text}")

        # `send` leaves a message in the other's inbox and does not wait for an answer. It is
        # durable when `send` returns, and the log says which agent it came from.
        await critic.send(writer, "Your sentence was printed.")
        await writer.wait_idle()

        for agent in (writer, critic):
            print(f"{agent.header.name} has seen {len(agent.messages())} messages")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "sessions")
