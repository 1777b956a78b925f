"""What tests of whole agents share: tools, stored events, and looks into a live agent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Literal

import orjson

import refold
from refold.actors.kernel import Spec, Supervisor
from refold.actors.log.live_log import LiveLog
from refold.actors.log.log_writer import log_writer
from refold.actors.log.session_log import SessionLog
from refold.actors.request.dispatch import Dispatch
from refold.actors.request.model import Model, Stream, Uncleared
from refold.actors.request.script import Script
from refold.actors.stores import Grant, Store
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import Owner
from refold.runtime.request_header import RequestHeader
from refold.runtime.rules import broken_rules
from refold.runtime.verify import verify_requests


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


def assert_sound(runtime: refold.Runtime, agent: refold.Agent) -> list[Event]:
    """The stored log is within the rules and every request in it verifies; its events."""
    events = stored_events(runtime, agent.session_id)
    assert_within_rules(events)
    reader = runtime.store.reader(agent.session_id)
    try:
        assert all(verdict.verified for verdict in verify_requests(reader.read_new()))
    finally:
        reader.close()
    return events


def opened(model: Model, body: bytes = b"{}") -> AbstractAsyncContextManager[Stream]:
    """The answer of a model to `body`, with a pass that names it."""
    clearance = Uncleared(0, model.provider_name, hashlib.sha256(body).hexdigest())
    return model.open(body, clearance)


def of_type(events: list[Event], type_: str) -> list[Any]:
    """The data of the events of one type."""
    return [event.data for event in events if event.type == type_]


def headers(events: list[Event]) -> list[RequestHeader]:
    return of_type(events, "request/header")


def kinds(events: list[Event]) -> list[str]:
    """The types in order, chunks left out."""
    return [event.type for event in events if event.type != "assistant/chunk"]


def sent(script: Script, request: int = -1) -> list[str]:
    """The contents of a request's messages as plain text, the system prompt left out."""
    messages = orjson.loads(script.bodies[request])["messages"]
    return [str(message["content"]) for message in messages if message["role"] != "system"]


def dispatch_of(agent: refold.Agent) -> Dispatch:
    """The live dispatch, for tests that break it on purpose."""
    return agent._opened.loop._instance.dispatch


async def start_writer(
    tree: Supervisor, live: LiveLog, grant: Grant, owner: Owner, clock: Callable[[], int]
) -> SessionLog:
    """A log writer of its own, and the handle on its log."""
    run = partial(log_writer, live=live, grant=grant, owner=owner, clock=clock)
    ref = await tree.start(run, spec=Spec("log"))
    return SessionLog(live, ref)
