"""Your own code takes part in a turn: python examples/custom_seam.py [STORE]

A *seam* is a plain async function that refold calls at one fixed place of every turn. Two of the
nine are used here: one looks at prompts before the model sees them, the other at tool calls
before they run. What a seam decides is written into the session's log, so it is never a mystery
later why the model knew something, or why a call did not happen.
"""

from __future__ import annotations

import sys

import trio

import refold


@refold.tool
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


async def house_rules(prompt: refold.PromptView) -> refold.Submit | refold.Reject | None:
    """Turn away passwords, and tell the model what day it is; None would let the prompt through."""
    if "password" in refold.text_of(prompt.content):
        return refold.Reject("passwords are not sent to a model")
    return refold.Submit(context=(refold.TextBlock("Today is Friday."),))


async def no_deleting_on_fridays(call: refold.CallView) -> refold.Deny | None:
    """Refuse one tool; the model gets the reason as the result of its call and can react."""
    return refold.Deny("nothing is deleted on a Friday") if call.name == "delete" else None


# A scripted model stands in for a real one: it tries to delete, reads the result, and answers.
MODEL = refold.Script(
    [refold.Call("delete", {"path": "old.log"}), refold.Say("I will do it on Monday.")]
)


async def main(store: str) -> None:
    seams = refold.Seams(
        prompt_submit=(house_rules,),  # several of one kind run in this order
        pre_tool=(no_deleting_on_fridays,),
    )
    async with refold.open(store, providers=[MODEL]) as runtime:
        agent = await runtime.start_agent(model="script/any", tools=[delete], seams=seams)

        turn = await agent.ask("My password is hunter2.")
        print(f"Turned away: {turn.reason.reason}.")  # the model was never called

        turn = await agent.ask("Delete old.log.")
        print(turn.text)

        await agent.close()
        print("What the log says of it:")
        async for event in agent.events():
            if event.type in ("prompt/blocked", "user/message", "context/message", "tool/result"):
                print(f"  {event.seq:2} {event.type}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "sessions")
