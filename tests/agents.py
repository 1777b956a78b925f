"""What tests of whole agents share: tools, stored events, and looks into a live agent."""

from __future__ import annotations

from typing import Literal

import refold
from actors.dispatch import Dispatch
from actors.stores import Store
from runtime.envelope import Event, decode_line
from runtime.rules import broken_rules


@refold.tool
async def read_file(path: Literal["a", "b"]) -> str:
    """Read a file."""
    return f"content of {path}"


@refold.tool(effects=False)
async def count(upto: int) -> str:
    """Count."""
    return " ".join(map(str, range(upto)))


def stored_events(runtime: refold.Runtime, session_id: str) -> list[Event]:
    """The events that stand in the runtime's store, read anew."""
    return read_events(runtime.store, session_id)


def read_events(store: Store, session_id: str) -> list[Event]:
    """The events that stand in a store, read anew."""
    reader = store.reader(session_id)
    try:
        return [decode_line(record.encoded) for record in reader.read_new()]
    finally:
        reader.close()


def assert_within_rules(events: list[Event]) -> None:
    """The log breaks no rule, and neither a turn nor a step is open at its end."""
    assert broken_rules(events) == []
    kinds = [event.type for event in events]
    for boundary in ("turn", "step"):
        assert kinds.count(f"{boundary}/start") == kinds.count(f"{boundary}/end")


def dispatch_of(agent: refold.Agent) -> Dispatch:
    """The live dispatch, for tests that break it on purpose."""
    return agent._opened.loop._instance.dispatch
