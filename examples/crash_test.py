"""A test of one's own orchestration: no crash makes it forget an order or place one twice.

python examples/crash_test.py

A desk takes orders and notes each in an agent's session before it says yes. The desk runs on a disk
that records; then every state that a crash may have left is opened, and the desk goes on there.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

import trio

import refold
from refold.errors import NotFound
from refold.faults import (
    FOLDER,
    CrashState,
    Journal,
    RecordingDisk,
    Seen,
    check_promises,
    crash_states,
    recorded_store,
)
from refold.logs import JsonlFolder

ORDERS = ("three lamps", "a table")


async def desk(disk: RecordingDisk) -> Counter[str]:
    """Take the orders, also those that were taken before; how often each is in the session then."""
    model = refold.Script(lambda _: refold.Say("Noted."))
    async with refold.open(recorded_store(disk), providers=[model]) as runtime:
        try:
            agent = await runtime.resume("desk", continue_=True, model="script/any")
        except NotFound:
            agent = await runtime.start_agent(session_id="desk", model="script/any")
        for order in ORDERS:
            await agent.ask(order, idempotency_key=order)
            disk.mark(order)  # from here on the customer counts on it
        return Counter(
            refold.text_of(message.content)
            for message in agent.messages()
            if message.role == "user"
        )


def check(state: CrashState) -> None:
    """What must hold whatever a crash left: of the disk, and once the desk has gone on."""
    disk = state.disk()
    folder, journal = JsonlFolder(FOLDER, disk), Journal.of(state.marks)
    assert check_promises(folder, journal) == [], state.lost
    said_yes = [mark for mark in state.marks if isinstance(mark, str)]
    if said_yes:
        stored = b"".join(record.encoded for record in folder.read("desk").records)
        assert all(order.encode() in stored for order in said_yes), state.lost
    taken = trio.run(desk, disk)
    assert [taken[order] for order in ORDERS] == [1, 1], state.lost


def main() -> None:
    disk, seen = RecordingDisk(), Seen()
    trio.run(desk, disk)
    checked = 0
    for state in islice(crash_states(disk, seen=seen), 0, None, 23):  # one in 23, to be quick
        check(state)
        checked += 1
    print(f"{checked} of {seen.counts.total()} crashes: no order lost, none taken twice.")
    print(f"They were {', '.join(sorted(seen.counts))}.")


if __name__ == "__main__":
    main()
