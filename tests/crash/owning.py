"""Programs that want to own one session, for a fork server.

They say what was acknowledged as lines of a `Journal`, and what else there is as JSON objects.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from itertools import count
from typing import Any

import trio

from refold import ActorCrashed
from refold.runtime.errors import Broken, RefoldError
from refold.runtime.storage.errors import SessionBusy
from tests.crash.writing import LIFETIME, Witness, open_agent, open_runtime, say, text

SESSION = "owned"


def own(store: str, life: str, times: str, how: str = "prompt") -> None:
    """Own the session and leave so many prompts; then hold it. Say what it ended with.

    `how` is the method of the agent that leaves them; "inject" starts no turns.
    """
    random.seed(life)
    try:
        trio.run(_own, store, int(times), how)
    except RefoldError as error:
        cause = error.__cause__ if isinstance(error, ActorCrashed) else error
        say(failed=type(cause).__name__, broken=isinstance(cause, Broken), text=str(cause))


async def _own(store: str, times: int, how: str) -> None:
    with trio.move_on_after(LIFETIME):
        async with open_runtime(store) as runtime:
            agent = await open_agent(runtime, SESSION, continues=False)
            witness = Witness(agent)
            say(owner=os.getpid())
            leave = getattr(agent, how)
            for _ in range(times):
                witness.acknowledged(await leave(text(random.choice([10, 10, 10, 1000, 50000]))))
            await agent.wait_idle()
            say(holding=os.getpid())
            await trio.sleep_forever()


def own_and_stop(store: str, life: str, times: str, call: str, nth: str, share: str) -> None:
    """As `own` with "inject", but stop (SIGSTOP) in the n-th system call of a kind.

    `call` is one of the module `os`. Of what it would write, `share` of 4 parts are written
    before; any other call is made after the stop, or with a share of 4 before it.
    """
    real, calls = getattr(os, call), count(1)

    def stopping(*arguments: Any) -> Any:
        if next(calls) != int(nth):
            return real(*arguments)
        if share == "4":
            done = real(*arguments)
            stop_here()
            return done
        if call == "pwrite":
            fd, data, offset = arguments
            part = len(data) * int(share) // 4
            real(fd, data[:part], offset)
            stop_here()
            return part + real(fd, data[part:], offset + part)
        stop_here()
        return real(*arguments)

    setattr(os, call, stopping)
    own(store, life, times, "inject")


def stop_here() -> None:
    # Sent to the process it could reach another thread first, and this one would run on a while.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def race(store: str, gate: str) -> None:
    """Once somebody writes to the FIFO `gate`, resume the session: hold it, or say who does."""
    trio.run(_race, store, gate)


async def _race(store: str, gate: str) -> None:
    async with open_runtime(store) as runtime:
        say(waiting=os.getpid())
        os.close(os.open(gate, os.O_RDONLY))
        try:
            await runtime.resume(SESSION, model="script/m", tools=())
        except SessionBusy as busy:
            say(busy=os.getpid(), owner=busy.pid or 0, host=busy.host or "", text=str(busy))
            return
        say(won=os.getpid())
        await trio.sleep_forever()
