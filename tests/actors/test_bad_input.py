"""Bad input is one sentence that says what to do, and nothing is lost by it.

Whatever goes wrong in a turn ends it with a reason; the next prompt in the same process works and
every request of the log verifies. Whatever is wrong with what the caller says is refused before
anything is written.
"""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import PIPE
from typing import Annotated, Any, NoReturn

import attrs
import pytest
import trio

import refold
from refold import (
    Call,
    Delay,
    Deny,
    Fail,
    GoOn,
    InvalidOption,
    Provider,
    RefoldError,
    Say,
    Script,
    Seams,
    Submit,
)
from refold.actors.log.seam_log import SeamLog
from refold.runtime.envelope import Event
from refold.runtime.errors import InvalidSessionId, NotLosslessJson
from refold.runtime.events import InboxRemoved, ToolResult
from refold.runtime.messages import Message, TextBlock, text_of
from refold.runtime.storage.errors import AlreadyExists, NoForkPoint, NotFound, SessionBusy
from refold.runtime.stream.failures import LlmFailure
from refold.runtime.verify import verify_requests
from refold.runtime.wire.providers import InvalidModelName, InvalidProvider, UnknownProvider
from tests.agents import assert_within_rules, count, read_file, stored_events
from tests.fake_server import FakeServer, Step, answer, delta, drop, event, reply, stream

JSON = {"content_type": "application/json"}
NAN = math.nan
SURROGATE = "a \ud800 b"


def assert_one_sentence(error: object, *fragments: str) -> None:
    """The text is one line without a trace of Python's own, and says each of `fragments`."""
    text = str(error)
    assert text
    assert "\n" not in text
    assert "Traceback" not in text
    for fragment in fragments:
        assert fragment in text


async def assert_goes_on(runtime: refold.Runtime, agent: refold.Agent) -> list[Event]:
    """The next prompt is answered with `fine`, and every request of the log verifies."""
    turn = await agent.ask("and now?")
    assert (turn.reason.kind, turn.text) == ("completed", "fine")
    events = stored_events(runtime, agent.session_id)
    assert_within_rules(events)
    reader = runtime.store.reader(agent.session_id)
    try:
        verdicts = list(verify_requests(reader.read_new()))
    finally:
        reader.close()
    assert all(verdict.verified for verdict in verdicts), verdicts
    return events


# What a provider can do.

FAILURES: dict[str, tuple[Step, str, str]] = {
    "401": (reply(401, b'{"error":{"message":"who are you"}}', **JSON), "AUTH", "key"),
    "429": (reply(429, b'{"error":{"message":"slow down"}}', **JSON), "RATE_LIMIT", "slow down"),
    "500": (reply(500, b"oops"), "SERVER", "HTTP 500"),
    "an error object in a 200": (
        reply(200, b'{"error":{"message":"no such model","code":404}}', **JSON),
        "INVALID_REQUEST",
        "no such model",
    ),
    "an error object in a stream": (
        stream(event({"error": {"message": "overloaded", "code": 503}})),
        "OVERLOADED",
        "overloaded",
    ),
    "a page of HTML": (
        reply(200, b"<html>hi</html>", content_type="text/html"),
        "MALFORMED_RESPONSE",
        "check the base URL",
    ),
    "a stream cut in the middle": (
        stream(delta(content="half an"), ending="cut"),
        "STREAM_CLOSED",
        "",
    ),
    "a stream that is reset": (
        stream(delta(content="half an"), ending="reset"),
        "STREAM_CLOSED",
        "",
    ),
    "a stream without its end": (stream(delta(content="half an")), "STREAM_CLOSED", ""),
    "bytes that are no events": (stream(b"data: {nonsense\n\n"), "MALFORMED_RESPONSE", ""),
    "a connection that is dropped": (drop, "TRANSPORT", "try again"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failing_provider_ends_the_turn_with_its_code_and_the_next_prompt_works(
    name: str,
) -> None:
    step, code, fragment = FAILURES[name]
    with FakeServer(step, stream(*answer("fine"))) as server:
        provider = Provider("fake", "chat/1", server.url, keep_alive=False)
        async with refold.open("memory:", providers=[provider]) as runtime:
            agent = await runtime.start_agent(model="fake/m", retries=0)
            turn = await agent.ask("hello")
            assert (turn.reason.kind, turn.reason.code, turn.reason.step) == ("error", code, 1)
            assert_one_sentence(turn.reason.message, fragment)
            assert turn.text in ("", "half an")
            events = await assert_goes_on(runtime, agent)
        kept = [e.data.content for e in events if e.type == "assistant/message"]
        assert text_of(kept[0]) == ("half an" if turn.text else "fine")
        assert server.requests[1].body.count(b'"hello"') == 1


async def test_a_provider_that_is_not_there_is_named_and_can_be_started_later() -> None:
    with FakeServer() as gone:
        port = gone._listener.getsockname()[1]
    provider = Provider("fake", "chat/1", f"http://127.0.0.1:{port}")
    async with refold.open("memory:", providers=[provider]) as runtime:
        agent = await runtime.start_agent(model="fake/m", retries=0)
        turn = await agent.ask("hello")
        assert turn.reason.code == "TRANSPORT"
        assert_one_sentence(turn.reason.message, str(port), "is the server running?")
        server = FakeServer(stream(*answer("fine")))
        server._listener.close()
        server._listener = socket.create_server(("127.0.0.1", port))
        with server:
            await assert_goes_on(runtime, agent)
        assert server.requests[0].body.count(b'"hello"') == 1


async def test_a_script_without_an_answer_says_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([Fail("QUOTA", "no money left")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        first, second = await agent.ask("hello"), await agent.ask("hello?")
        assert (first.reason.code, first.reason.message) == ("QUOTA", "no money left")
        assert second.reason.code == "UNKNOWN"
        assert_one_sentence(second.reason.message, "the script ends", "add one")
        script.answers = [Fail("QUOTA"), Say("fine")]
        await assert_goes_on(runtime, agent)


# What the caller can say wrong at `start_agent`.


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def named(name: str) -> Callable[..., Any]:
    async def fn() -> str:
        """Do nothing."""
        return ""

    return refold.tool(name=name)(fn)


REFUSED_OPTIONS: dict[str, tuple[dict[str, Any], type[RefoldError], str]] = {
    "no key": ({"model": "openai/gpt"}, LlmFailure, "OPENAI_API_KEY"),
    "unknown provider": ({"model": "nobody/m"}, UnknownProvider, "'nobody'"),
    "no provider": ({"model": "gpt"}, InvalidModelName, "PROVIDER/MODEL"),
    "no model name": ({"model": "script/"}, InvalidModelName, "PROVIDER/MODEL"),
    "no model": ({}, RefoldError, "model="),
    "two tools of one name": (
        {"model": "script/m", "tools": [named("twin"), named("twin")]},
        RefoldError,
        "'twin'",
    ),
    "something that is no tool": ({"model": "script/m", "tools": [42]}, RefoldError, ""),
    "NaN in extra": ({"model": "script/m", "extra": {"x": [NAN]}}, NotLosslessJson, "$.x[0]"),
    "a surrogate in extra": (
        {"model": "script/m", "extra": {"x": SURROGATE}},
        NotLosslessJson,
        "$.x",
    ),
    "an object in extra": ({"model": "script/m", "extra": {"x": object()}}, NotLosslessJson, "$.x"),
    "a surrogate in system": (
        {"model": "script/m", "system": SURROGATE},
        NotLosslessJson,
        "system",
    ),
    "a surrogate in the model": ({"model": f"script/{SURROGATE}"}, NotLosslessJson, "model"),
    "NaN as temperature": (
        {"model": "script/m", "temperature": NAN},
        NotLosslessJson,
        "temperature",
    ),
    "a surrogate in stop": ({"model": "script/m", "stop": [SURROGATE]}, NotLosslessJson, "stop"),
    "a surrogate in the name": ({"model": "script/m", "name": SURROGATE}, NotLosslessJson, "name"),
    "an option that is none": ({"model": "script/m", "budget": 3}, RefoldError, "budgets"),
    "an unknown mode": ({"model": "script/m", "invariants": "on"}, RefoldError, "enforce"),
    "an unknown trace": ({"model": "script/m", "chunks": "all"}, RefoldError, "verbatim"),
    "no steps": (
        {"model": "script/m", "budgets": refold.Budgets(max_steps=0)},
        RefoldError,
        "above 0",
    ),
    "../x": ({"model": "script/m", "session_id": "../x"}, InvalidSessionId, "'../x'"),
    "65 characters": ({"model": "script/m", "session_id": "x" * 65}, InvalidSessionId, "1 to 64"),
    "an empty id": ({"model": "script/m", "session_id": ""}, InvalidSessionId, "1 to 64"),
    "a line feed": ({"model": "script/m", "session_id": "x\n"}, InvalidSessionId, "1 to 64"),
}


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
async def test_what_is_wrong_at_start_is_refused_before_any_session_is_there(
    name: str, tmp_path: Path, no_keys: None
) -> None:
    options, kind, fragment = REFUSED_OPTIONS[name]
    script = Script([Say("fine")])
    async with refold.open(tmp_path / "store", providers=[script]) as runtime:
        with pytest.raises(kind) as refused:
            await runtime.start_agent(**options)
        assert_one_sentence(refused.value, fragment)
        if isinstance(refused.value, LlmFailure):
            assert refused.value.failure.code == "MISSING_CREDENTIAL"
        files = await trio.to_thread.run_sync(lambda: [*tmp_path.glob("store/*")])
        assert [path.name for path in files if path.name != ".lock"] == []
        agent = await runtime.start_agent(model="script/m")
        await assert_goes_on(runtime, agent)


def test_a_tool_whose_schema_json_cannot_carry_is_refused_where_it_is_made() -> None:
    async def bounded(x: Annotated[float, refold.Ge(NAN)]) -> str:
        """Take a number."""
        return str(x)

    with pytest.raises(RefoldError) as refused:
        refold.tool(bounded)
    assert_one_sentence(refused.value)


async def test_a_surrogate_in_a_description_is_refused_at_start() -> None:
    async def described() -> str:
        return ""

    described.__doc__ = SURROGATE
    async with refold.open("memory:", providers=[Script([])]) as runtime:
        with pytest.raises(NotLosslessJson) as refused:
            await runtime.start_agent(model="script/m", tools=[described])
        assert_one_sentence(refused.value, "description")


def test_a_provider_record_that_cannot_be_sent_to_is_refused() -> None:
    for base_url in ("", "ftp://host", "http://user:secret@host/v1"):
        with pytest.raises(InvalidProvider) as refused:
            Provider("mine", "chat/1", base_url)
        assert_one_sentence(refused.value, "'mine'")
        assert "secret" not in str(refused.value)


# What the caller can say wrong of a session that is, or is not, there.


@pytest.mark.parametrize("session_id", ["../x", "x" * 65, "", "a/b", "a\x00b"])
async def test_no_way_in_takes_an_id_that_could_be_a_path(session_id: str, tmp_path: Path) -> None:
    async with refold.open(tmp_path / "store", providers=[Script([])]) as runtime:
        for enter in (runtime.resume, runtime.fork):
            with pytest.raises(InvalidSessionId) as refused:
                await enter(session_id, model="script/m")
            assert_one_sentence(refused.value, "A-Z a-z 0-9 _ @ . : and -")
        assert await runtime.list() == []


async def test_a_session_that_is_not_there_is_not_made() -> None:
    async with refold.open("memory:", providers=[Script([])]) as runtime:
        for enter in (runtime.resume, runtime.fork):
            with pytest.raises(NotFound) as refused:
                await enter("nobody", model="script/m")
            assert_one_sentence(refused.value, "'nobody'")
        assert await runtime.list() == []


async def test_an_id_that_is_taken_is_refused() -> None:
    script = Script([Say("fine"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="mine")
        await assert_goes_on(runtime, agent)
        with pytest.raises(SessionBusy):
            await runtime.start_agent(model="script/m", session_id="mine")
        await agent.close()
        with pytest.raises(AlreadyExists) as refused:
            await runtime.start_agent(model="script/m", session_id="mine")
        assert_one_sentence(refused.value, "'mine'", "choose another id")
        await assert_goes_on(runtime, await runtime.resume("mine"))


async def test_a_fork_anywhere_but_at_a_turns_end_names_the_nearest_one() -> None:
    script = Script([Say("fine"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        turn = await agent.ask("hello")
        await agent.inject("more")
        with pytest.raises(NoForkPoint) as refused:
            await runtime.fork(agent.session_id, at=turn.end_seq + 1)
        assert_one_sentence(refused.value, str(turn.end_seq))
        assert await runtime.list() == [agent.session_id]
        await assert_goes_on(runtime, agent)


@pytest.mark.parametrize("enter", ["resume", "fork"])
async def test_options_that_are_wrong_at_resume_and_fork_leave_the_session_usable(
    enter: str, no_keys: None
) -> None:
    script = Script([Say("one"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        await agent.close()
        for options in ({"model": "nobody/m"}, {"model": "openai/m"}, {"extra": {"x": NAN}}):
            with pytest.raises(RefoldError) as refused:
                await getattr(runtime, enter)(agent.session_id, **options)
            assert_one_sentence(refused.value)
        await assert_goes_on(runtime, await runtime.resume(agent.session_id))


async def test_a_session_that_this_process_has_open_is_busy() -> None:
    script = Script([Say("one"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        with pytest.raises(SessionBusy) as refused:
            await runtime.resume(agent.session_id)
        assert_one_sentence(refused.value, agent.session_id, socket.gethostname())
        await assert_goes_on(runtime, agent)


HOLDER = """
import sys, trio, refold

async def main():
    script = refold.Script([refold.Say("one")])
    async with refold.open(sys.argv[1], providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", session_id="held")
        await agent.ask("hello")
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


async def test_a_session_that_another_process_holds_names_it_and_is_free_after_it(
    tmp_path: Path,
) -> None:
    script = Script([Say("fine"), Say("fine")])
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def hold(task_status: trio.TaskStatus[trio.Process]) -> None:
                await trio.run_process(
                    [sys.executable, "-c", HOLDER, str(tmp_path)],
                    stdin=PIPE,
                    stdout=PIPE,
                    task_status=task_status,
                )

            holder: trio.Process = await nursery.start(hold)
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert (await holder.stdout.receive_some()).startswith(b"ready")
            async with refold.open(tmp_path, providers=[script]) as runtime:
                with pytest.raises(SessionBusy) as refused:
                    await runtime.resume("held")
                assert refused.value.pid == holder.pid
                assert_one_sentence(refused.value, str(holder.pid), socket.gethostname())
                await assert_goes_on(runtime, await runtime.fork("held"))
                await holder.stdin.aclose()
                await holder.wait()
                await assert_goes_on(runtime, await runtime.resume("held"))


# What tools can do.


@refold.tool
async def fail() -> str:
    """Fail."""
    raise LookupError(SURROGATE)


@refold.tool
async def give_bytes() -> Any:
    """Give bytes."""
    return b"\xff"


@refold.tool
async def give_surrogate() -> str:
    """Give what no file can hold."""
    return SURROGATE


@refold.tool(timeout=7)
async def never() -> None:
    """Never return."""
    await trio.sleep_forever()


BAD_CALLS: dict[str, tuple[Call, str, str]] = {
    "raises": (Call("fail"), "TOOL_FAILED", "LookupError: a \ufffd b"),
    "returns bytes": (Call("give_bytes"), "INVALID_TOOL_OUTPUT", "decode bytes itself"),
    "returns a lone surrogate": (Call("give_surrogate"), "", "a \ufffd b"),
    "never returns": (Call("never"), "TOOL_TIMEOUT", "within 7 s"),
    "is not there": (Call("nothing"), "UNKNOWN_TOOL", "the tools are: count, fail"),
    "gets the wrong type": (
        Call("count", {"upto": "5"}),
        "BAD_ARGUMENTS",
        "must be of type integer",
    ),
    "gets no arguments": (Call("count", {}), "BAD_ARGUMENTS", "lacks upto"),
    "gets no JSON": (Call("count", '{"upto":'), "BAD_ARGUMENTS", "correct this"),
    "gets a value outside its choice": (
        Call("read_file", {"path": "c"}),
        "BAD_ARGUMENTS",
        '"a", "b"',
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
async def test_a_tool_call_that_goes_wrong_is_a_result_and_the_turn_goes_on(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    call, code, fragment = BAD_CALLS[name]
    script = Script([call, Say("I see"), Say("fine")])
    tools = [fail, give_bytes, give_surrogate, never, count, read_file]
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=tools)
        turn = await agent.ask("hello")
        assert (turn.reason.kind, turn.text) == ("completed", "I see")
        events = await assert_goes_on(runtime, agent)
        (result,) = [e.data for e in events if isinstance(e.data, ToolResult)]
        assert_one_sentence(text_of(result.content), fragment)
        assert result.is_error is bool(code)
        assert ("" if result.error is None else result.error.code) == code


# What seams can do.


@attrs.define(eq=False)
class Unprintable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> NoReturn:
        raise ValueError("no text")


ERRORS: dict[str, tuple[Exception, str]] = {
    "plain": (LookupError("boom"), "LookupError: boom"),
    "a surrogate": (LookupError(SURROGATE), "LookupError: a \ufffd b"),
    "a group": (ExceptionGroup("many", [LookupError("boom")]), "ExceptionGroup: many"),
    "no text": (Unprintable(), "Unprintable"),
}


def seams_with(place: str, error: Exception) -> Seams:
    """One seam that raises at its first call and changes nothing later."""
    called: list[str] = []

    async def seam(*arguments: Any) -> Any:
        called.append(place)
        if len(called) == 1:
            raise error
        unchanged = {"session_prefix": (), "request": arguments[-1], "post_tool": arguments[-1]}
        return unchanged.get(place)

    return Seams(**{place: (seam,)})


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", [field.name for field in attrs.fields(Seams)])
async def test_a_seam_that_raises_ends_the_turn_and_not_the_loop(
    place: str, kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    error, text = ERRORS[kind]

    def reply(body: Any) -> Any:
        said = str(body["messages"][-1]["content"])
        return Call("count", {"upto": 2}) if said == "hello" else Say("fine")

    script = Script(reply)
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(
            model="script/m", tools=[count], seams=seams_with(place, error)
        )
        turn = await agent.ask("hello")
        assert (turn.reason.kind, turn.reason.code) == ("error", "UNKNOWN")
        assert_one_sentence(turn.reason.message, text)
        await agent.wait_idle()
        events = await assert_goes_on(runtime, agent)
        assert [event.type for event in events].count("turn/start") == 2
        taken_out = place in BEFORE_THE_STEP
        assert script.bodies[-1].count(b'"hello"') == (0 if taken_out else 1)
        blocked = [event.data for event in events if event.type == "prompt/blocked"]
        assert [text_of(one.content) for one in blocked] == (["hello"] if taken_out else [])
        for one in blocked:
            assert_one_sentence(one.reason, text)


BEFORE_THE_STEP = ("session_start", "prompt_submit", "session_prefix", "pre_step")
"""Where a seam's error ends a turn before its prompts are history; they leave the inbox then."""


@pytest.mark.parametrize("place", BEFORE_THE_STEP)
async def test_a_prompt_that_a_seam_fails_over_is_taken_out_once_and_harms_no_later_one(
    place: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def seam(*arguments: Any) -> Any:
        pending = agent.log.live.rules.inbox.pending.values()
        if any(text_of(entry.content) == "poison" for entry in pending):
            raise LookupError("boom")
        return () if place == "session_prefix" else None

    script = Script([Say("one"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(**{place: (seam,)})
        agent = await runtime.start_agent(model="script/m", seams=seams)
        seq = await agent.prompt("poison")
        assert (await agent.answer(seq)).reason.message == "LookupError: boom"
        assert agent.snapshot().pending == 0
        assert (await agent.ask("hello")).text == "one"
        await agent.close()
        agent = await runtime.resume(agent.session_id, seams=seams)
        events = await assert_goes_on(runtime, agent)
        removed = [event.data for event in events if event.type == "inbox/removed"]
        assert removed == [InboxRemoved((seq,), "rejected")]
        assert not any(b"poison" in body for body in script.bodies)


async def test_steering_that_a_seam_fails_over_is_taken_out_and_the_prompt_before_it_stands(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def guard(view: refold.PromptView) -> None:
        if text_of(view.content) == "poison":
            raise LookupError("boom")

    script = Script([[Delay(5), Say("one")], Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(prompt_submit=(guard,))
        agent = await runtime.start_agent(model="script/m", seams=seams)
        seq = await agent.prompt("hello")
        await trio.sleep(1)
        await agent.steer("poison")
        await agent.inject("an aside")
        turn = await agent.answer(seq)
        assert (turn.text, turn.reason.message) == ("one", "LookupError: boom")
        await agent.wait_idle()
        await assert_goes_on(runtime, agent)
        assert script.bodies[-1].count(b"hello") == script.bodies[-1].count(b"an aside") == 1


async def test_a_prefix_that_no_request_can_hold_is_not_frozen(
    autojump_clock: trio.testing.MockClock,
) -> None:
    role: Any = "system"
    messages = [Message(role, (TextBlock("x"),)), Message("user", (TextBlock(SURROGATE),))]

    async def prefix(_log: SeamLog) -> list[Message]:
        return [messages.pop(0)]

    script = Script([Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(session_prefix=(prefix,))
        agent = await runtime.start_agent(model="script/m", seams=seams)
        turn = await agent.ask("hello")
        assert_one_sentence(turn.reason.message, "session_prefix", "prefix", "'system'")
        await assert_goes_on(runtime, agent)
        assert "a \ufffd b" in script.bodies[0].decode()


async def test_a_function_script_that_raises_ends_the_turn_and_not_the_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def reply(body: Any) -> Say:
        if len(body["messages"]) == 1:
            raise KeyError("hello")
        return Say("fine")

    async with refold.open("memory:", providers=[Script(reply)]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        assert (await agent.ask("hello")).reason.message == "KeyError: 'hello'"
        await assert_goes_on(runtime, agent)


# What the caller can say to an agent.

UNSAYABLE: dict[str, Callable[[refold.Agent], Awaitable[object]]] = {
    "ask": lambda agent: agent.ask(SURROGATE),
    "prompt": lambda agent: agent.prompt(SURROGATE),
    "inject": lambda agent: agent.inject(SURROGATE),
    "inject as a plugin": lambda agent: agent.inject("more", plugin=SURROGATE),
}


@pytest.mark.parametrize("how", UNSAYABLE)
async def test_text_that_json_cannot_carry_is_refused_before_anything_is_written(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([Say("one"), Say("fine")])
    async with refold.open("memory:", providers=[script]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        before = stored_events(runtime, agent.session_id)
        with pytest.raises(NotLosslessJson) as refused:
            await UNSAYABLE[how](agent)
        assert_one_sentence(refused.value, "lone surrogate")
        assert stored_events(runtime, agent.session_id) == before
        await assert_goes_on(runtime, agent)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model", None),
        ("system", 3),
        ("temperature", "hot"),
        ("max_tokens", "many"),
        ("extra", []),
        ("retries", None),
        ("budgets", 3),
        ("seams", []),
    ],
)
async def test_an_option_of_the_wrong_kind_is_named_before_anything_is_written(
    option: str, value: object
) -> None:
    options: dict[str, Any] = {"model": "script/m", option: value}
    async with refold.open("memory:", providers=[Script([])]) as runtime:
        with pytest.raises(InvalidOption, match=f"'{option}' cannot be"):
            await runtime.start_agent(**options)
        assert await runtime.list() == []


async def test_what_is_no_text_never_reaches_the_log() -> None:
    nothing: Any = None
    async with refold.open("memory:", providers=[Script([Say("hi")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        for tell in (agent.ask, agent.prompt, agent.inject, agent.steer):
            with pytest.raises(TypeError, match="is text, not NoneType"):
                await tell(nothing)
        assert (await agent.ask("hello")).text == "hi"


WRONG_ARGUMENTS: dict[str, tuple[Callable[[refold.Runtime, refold.Agent, Any], Any], Any, str]] = {
    "a key": (
        lambda _, agent, value: agent.prompt("x", idempotency_key=value),
        42,
        "idempotency_key must be text or None, not int",
    ),
    "a source": (
        lambda _, agent, value: agent.prompt("x", source=value),
        "user",
        "source must be a Source, not str",
    ),
    "a plugin": (
        lambda _, agent, value: agent.inject("x", plugin=value),
        5,
        "plugin must be text, not int",
    ),
    "a list to remove": (
        lambda _, agent, value: agent.remove(value),
        [1],
        "seq must be a seq, which is an integer from 0, not list",
    ),
    "text to edit": (
        lambda _, agent, value: agent.edit(value, "x"),
        "1",
        "seq must be a seq, which is an integer from 0, not str",
    ),
    "a reason": (
        lambda _, agent, value: agent.cancel(reason=value),
        5,
        "reason must be text, not int",
    ),
    "whom to send to": (
        lambda _, agent, value: agent.send(value, "x"),
        "other",
        "other must be an agent, not str",
    ),
    "no id": (
        lambda runtime, _, value: runtime.resume(value),
        None,
        "a session's id must be text, not NoneType",
    ),
    "a place as text": (
        lambda runtime, agent, value: runtime.fork(agent.session_id, at=value),
        "5",
        "at must be a seq, which is an integer from 0, not str",
    ),
    "a place between": (
        lambda runtime, agent, value: runtime.fork(agent.session_id, at=value),
        1.5,
        "at must be a seq, which is an integer from 0, not float",
    ),
    "a name": (
        lambda runtime, _, value: runtime.start_agent(name=value, model="script/m"),
        5,
        "name must be text or None, not int",
    ),
    "text as stop": (
        lambda runtime, _, value: runtime.start_agent(model="script/m", stop=value),
        "END",
        "'stop' cannot be str; give it a list of texts, such as [\"END\"]",
    ),
    "a switch as temperature": (
        lambda runtime, _, value: runtime.start_agent(model="script/m", temperature=value),
        True,
        "'temperature' cannot be bool; give it a number",
    ),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
async def test_an_argument_of_a_wrong_type_is_refused_in_a_sentence_and_changes_nothing(
    name: str, autojump_clock: trio.testing.MockClock
) -> None:
    call, value, sentence = WRONG_ARGUMENTS[name]
    async with refold.open("memory:", providers=[Script([Say("one"), Say("fine")])]) as runtime:
        agent = await runtime.start_agent(model="script/m")
        await agent.ask("hello")
        before = stored_events(runtime, agent.session_id)
        with pytest.raises(RefoldError) as refused:
            await call(runtime, agent, value)
        assert str(refused.value) == sentence
        assert stored_events(runtime, agent.session_id) == before
        assert await runtime.list() == [agent.session_id]
        await assert_goes_on(runtime, agent)


UNCLEAN = (TextBlock(SURROGATE),)

CLEANED: dict[str, Callable[[Any], Any]] = {
    "prompt_submit": lambda _: Submit(UNCLEAN, context=UNCLEAN),
    "pre_tool": lambda _: Deny(SURROGATE),
    "post_tool": lambda outcome: attrs.evolve(outcome, content=UNCLEAN, context=UNCLEAN),
    "turn_continuation": lambda _: GoOn(SURROGATE),
}


@pytest.mark.parametrize("kind", CLEANED)
async def test_the_texts_of_a_seam_are_cleaned_like_those_of_a_tool(
    kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    left = [kind]

    async def seam(*arguments: Any) -> Any:
        if left:
            return CLEANED[left.pop()](arguments[-1])
        return arguments[-1] if kind == "post_tool" else None

    def reply(body: Any) -> Any:
        return Call("count", {"upto": 2}) if len(body["messages"]) < 2 else Say("fine")

    script = Script(reply)
    async with refold.open("memory:", providers=[script]) as runtime:
        seams = Seams(**{kind: (seam,)})
        agent = await runtime.start_agent(model="script/m", tools=[count], seams=seams)
        assert (await agent.ask("hello")).reason.kind == "completed"
        await assert_goes_on(runtime, agent)
        assert "a \ufffd b" in script.bodies[-1].decode()


async def test_an_unknown_durability_opens_nothing(tmp_path: Path) -> None:
    some: Any = "some"
    with pytest.raises(InvalidOption, match="durability"):
        async with refold.open(tmp_path / "store", durability=some):
            pass
    assert not (tmp_path / "store").exists()
