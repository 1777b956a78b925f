"""Nothing in a step costs more because the session is longer.

Counted, not timed: one text turn after 10 messages and after 10,000, on a real file, with the
invariants in `enforce`. Set aside are the one copy and the one hash of the body, and the digits
by which seqs and byte counts grow.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import orjson
import pytest
import trio.testing

import refold.actors
import refold.runtime
from refold import Say, Script
from refold.runtime.envelope import draft
from refold.runtime.events import UserMessage
from refold.runtime.messages import USER, TextBlock
from refold.runtime.storage.reader import LogReader
from tests.agents import dispatch_of

DIGITS = 200
"""The most bytes a step that numbers may grow by."""


@attrs.define
class Cost:
    """What one turn did."""

    built: int = 0
    encoded: int = 0
    hashed: int = 0
    read: int = 0
    body: int = 0


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Cost:
    """Counts bytes encoded, hashed and read from now on, and objects while `profile` is on."""
    cost = Cost()
    dumps, sha256, read_batches = orjson.dumps, hashlib.sha256, LogReader.read_batches

    def counted_dumps(value: object, *arguments: Any, **options: Any) -> bytes:
        encoded = dumps(value, *arguments, **options)
        cost.encoded += len(encoded)
        return encoded

    class CountedHash:
        def __init__(self, data: bytes = b"", inner: Any = None) -> None:
            self._inner = inner or sha256()
            self.update(data)

        def update(self, data: bytes) -> None:
            cost.hashed += len(data)
            self._inner.update(data)

        def copy(self) -> CountedHash:
            return CountedHash(inner=self._inner.copy())

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def counted_read(reader: LogReader, *arguments: Any, **options: Any) -> Any:
        before = reader.bytes_read
        records = read_batches(reader, *arguments, **options)
        cost.read += reader.bytes_read - before
        return records

    monkeypatch.setattr(orjson, "dumps", counted_dumps)
    monkeypatch.setattr(hashlib, "sha256", CountedHash)
    monkeypatch.setattr(LogReader, "read_batches", counted_read)
    return cost


def count_inits(cost: Cost) -> Callable[[FrameType, str, Any], None]:
    """A profile function that counts the objects of refold's own classes, not the scheduler's.

    Nor those of the stores: how many rounds the committer makes of a turn is a matter of timing.
    """
    packages = (refold.runtime, refold.actors)
    generated = tuple(f"<attrs generated methods {package.__name__}." for package in packages)
    written = tuple(str(Path(package.__file__ or "").parent) for package in packages)

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "__init__":
            name = code.co_filename
            of_stores = "stores" in name or "storage" in name
            cost.built += name.startswith((*generated, *written)) and not of_stores

    return profile


async def cost_of_a_turn(folder: Path, cost: Cost, messages: int) -> Cost:
    script = Script([Say("one"), Say("two")])
    async with refold.open(folder, providers=[script]) as running:
        agent = await running.start_agent(model="script/m", system="S", chunks="none")
        one = draft(UserMessage((TextBlock("a message of a long session"),), USER))
        for _ in range(messages // 10):
            await agent.log.append(*[one] * 10)
        await agent.ask("first")
        await agent.wait_idle()
        await trio.testing.wait_all_tasks_blocked(0.01)  # the loop is back at its mailbox
        for field in attrs.fields(Cost):
            setattr(cost, field.name, 0)
        sys.setprofile(count_inits(cost))
        try:
            await agent.ask("then")
        finally:
            sys.setprofile(None)
        kept = dispatch_of(agent)._encoder._kept
        cost.body = len(kept) + 2
        assert len(script.bodies[1]) == cost.body
        return attrs.evolve(cost, hashed=cost.hashed - cost.body)  # before it is closed


async def test_a_turn_after_10000_messages_does_what_it_did_after_10(
    tmp_path: Path, counting: Cost
) -> None:
    few = await cost_of_a_turn(tmp_path / "few", counting, 10)
    many = await cost_of_a_turn(tmp_path / "many", counting, 10_000)
    assert many.body > 400_000
    assert few.built > 50
    assert many.built == few.built
    for name in ("encoded", "hashed", "read"):
        assert getattr(few, name) > 100
        assert abs(getattr(many, name) - getattr(few, name)) < DIGITS, name


async def test_the_count_sees_a_cost_that_grows(
    tmp_path: Path, counting: Cost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test: an encoder that starts anew at each request is caught by the same counts."""
    from refold.runtime.wire.request_encoder import Continued

    monkeypatch.setattr(Continued, "continues", lambda *_: False)
    few = await cost_of_a_turn(tmp_path / "few", counting, 10)
    many = await cost_of_a_turn(tmp_path / "many", counting, 1_000)
    assert many.encoded - few.encoded > DIGITS
    assert many.hashed - few.hashed > DIGITS
