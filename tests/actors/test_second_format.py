"""A second wire format is one record: everything else takes it from the provider's codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import attrs
import orjson
import pytest
import trio

import refold
from refold import Script
from refold.runtime.errors import Refused
from refold.runtime.json import encode
from refold.runtime.messages import Message, TextBlock, text_of
from refold.runtime.request_header import EpochHeader
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    TextDelta,
)
from refold.runtime.stream.failures import Failure, LlmFailure
from refold.runtime.verify import verify_requests
from refold.runtime.wire import known_formats
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.providers import InvalidProvider, Provider
from tests.agents import assert_sound, headers, of_type, stored_events
from tests.fake_server import FakeServer, stream
from tests.refold.cli_stores import CliStore


class Empty(Refused):
    """A body that this wire does not take."""


def opening(header: EpochHeader) -> bytes:
    if header.config.model == "none":
        raise Empty
    return b"<" + encode(header.config.model) + b"|"


@attrs.define
class Lines:
    """One line a message, those of one role joined: the last one may grow."""

    header: EpochHeader
    role: str = ""
    open: list[str] = attrs.field(factory=list)

    def add(self, message: Message) -> bytes:
        final = b""
        if message.role != self.role:
            final, self.role, self.open = self.unfinished(), message.role, []
        self.open.append(text_of(message.content))
        return final

    def unfinished(self) -> bytes:
        return encode([self.role, *self.open])[:-1] if self.open else b""


@attrs.define
class WholeAnswer:
    """What was sent is the text of the answer; it is over when a full stop comes."""

    key: str | None
    done: bool = False
    failure: Failure | None = None

    def feed(self, data: bytes) -> list[Chunk]:
        self.done = data.endswith(b".")
        text = data.decode()
        ends: list[Chunk] = [BlockEnd(0, TextBlock(text)), Finish(FinishReason("stop"))]
        return [BlockStart(0, "text"), TextDelta(0, text), *(ends if self.done else [])]

    def close(self) -> list[Chunk]:
        raise LlmFailure(Failure("STREAM_CLOSED", "no full stop"))


def keys(key: str | None) -> dict[str, str]:
    return {"content-type": "text/lines", **({} if key is None else {"x-key": key})}


LINES = WireFormat("lines/3", "/lines?v=3", keys, opening, Lines, b"]>", WholeAnswer)


@pytest.fixture(autouse=True)
def lines_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a new format takes beside its folder: its versions by name."""
    monkeypatch.setitem(cast("dict[str, WireFormat]", known_formats.FORMATS), "lines/3", LINES)
    monkeypatch.setitem(cast("dict[str, WireFormat]", known_formats.NEWEST), "lines", LINES)


async def test_an_agent_speaks_it_and_every_account_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES_KEY", "s3cret")
    with FakeServer(stream(b"one."), stream(b"two.")) as server:
        provider = Provider("mine", "lines", server.url, "LINES_KEY", keep_alive=False)
        async with refold.open(tmp_path, providers=[provider]) as runtime:
            agent = await runtime.start_agent(model="mine/m", session_id="s", invariants="full")
            assert (await agent.ask("hello")).text == "one."
            await agent.inject("by the way")
            assert (await agent.ask("and now?")).text == "two."
            seals = of_type(assert_sound(runtime, agent), "request/sealed")
    assert [request.line for request in server.requests] == ["POST /lines?v=3 HTTP/1.1"] * 2
    assert server.requests[0].headers["x-key"] == "s3cret"
    assert server.requests[0].headers["content-type"] == "text/lines"
    assert server.requests[0].body == b'<"m"|["user","hello"]>'
    assert [seal.codec for seal in seals] == ["lines/3"] * 2
    assert seals[1].shared_prefix_bytes == len(b'<"m"|["user","hello"')
    store = CliStore(tmp_path)
    ran = await trio.to_thread.run_sync(lambda: store.run("request", "s", "2.1", "--wire"))
    assert ran.raw == server.requests[1].body
    ran = await trio.to_thread.run_sync(lambda: store.run("request", "s", "1.1", "--curl"))
    assert '"$BASE_URL/lines?v=3"' in ran.out
    assert '-H "x-key: $API_KEY"' in ran.out


async def test_a_session_moves_between_formats_with_its_header(tmp_path: Path) -> None:
    """A `request` seam may change the provider; the next bytes are in that one's format."""

    async def alternate(config: Any) -> Any:
        return attrs.evolve(config, provider="mine" if len(script.bodies) == 1 else "script")

    script = Script(lambda _: refold.Say("scripted"))
    with FakeServer(stream(b"from afar.")) as server:
        provider = Provider("mine", "lines", server.url, keep_alive=False)
        async with refold.open(tmp_path, providers=[provider, script]) as runtime:
            agent = await runtime.start_agent(
                model="script/m", seams=refold.Seams(request=(alternate,)), invariants="full"
            )
            assert (await agent.ask("one")).text == "scripted"
            assert (await agent.ask("two")).text == "from afar."
            events = stored_events(runtime, agent.session_id)
            reader = runtime.store.reader(agent.session_id)
            verdicts = list(verify_requests(reader.read_new()))
            reader.close()
    assert [seal.codec for seal in of_type(events, "request/sealed")] == ["chat/2", "lines/3"]
    assert [header.reason for header in headers(events)] == ["initial", "change"]
    assert all(verdict.verified for verdict in verdicts)
    assert orjson.loads(script.bodies[0])["messages"][-1]["content"] == "one"


async def test_what_a_format_refuses_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    provider = Provider("mine", "lines", "http://127.0.0.1:1")
    async with refold.open(tmp_path, providers=[provider]) as runtime:
        with pytest.raises(Empty):
            await runtime.start_agent(model="mine/none")
        assert await runtime.list() == []


def test_an_unknown_codec_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidProvider, match=r"speaks 'anthropic/1'.*chat, chat/1, chat/2"):
        Provider("mine", "anthropic/1", "http://127.0.0.1:1")
    assert Provider("mine", "chat/1", "http://a").format is known_formats.NEWEST["chat"]
    assert Provider("mine", "chat/2", "http://a") == Provider("mine", "chat", "http://a")
