"""Any Python value, anywhere in the public API: refused in one sentence, or written and read back.

Python checks no types, so a value of a wrong one gets as far as the code lets it. What counts is
what comes of it: a `RefoldError` that changed nothing, or events that a reader takes for what the
live program took them for. In every case the session goes on, and can be opened again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import ANY

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings

import refold
from refold import Budgets, Call, GoOn, Message, RefoldError, Reject, Say, Script, Seams, Submit
from refold.actors.tools import Outcome
from refold.runtime.envelope import Event, InBatch, Replace, decode_line, draft
from refold.runtime.events import (
    _TYPES,
    CATALOGUE,
    ContextMessage,
    InboxQueued,
    ToolError,
    register,
)
from refold.runtime.history import History
from refold.runtime.json import Json
from refold.runtime.messages import USER, ReasoningBlock, Source, TextBlock, ToolResultBlock
from refold.runtime.stream.failures import Failure, LlmFailure
from tests.agents import assert_sound, count

TEXT = (TextBlock("a text"),)


class Text(str):
    """Text that is not quite text."""

    __slots__ = ()


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Evil:
    """Nothing can be done with it."""

    def _no(self, *_arguments: object) -> Any:
        raise LookupError("no")

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __iter__ = __len__ = _no
    __getitem__ = __call__ = __int__ = __float__ = __index__ = __lt__ = __gt__ = _no
    __getattr__ = _no


def liar() -> Any:
    """It says that it is text."""
    return type("Liar", (), {"__class__": str})()


class EvilMapping(dict[Any, Any]):
    def __iter__(self) -> Any:
        raise LookupError("no")

    keys = items = values = __iter__


def cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> Any:
    found: Any = TextBlock("deep down")
    for _ in range(150):
        found = ToolResultBlock("c", (found,))
    return found


odd: Any = None
ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "true": lambda: True,
    "NaN": lambda: math.nan,
    "infinity": lambda: math.inf,
    "minus zero": lambda: -0.0,
    "a huge integer": lambda: 2**70,
    "a negative integer": lambda: -1,
    "a surrogate": lambda: "a \ud800 b",
    "bytes": lambda: b"\xff",
    "text of a class": lambda: Text("text"),
    "an enum": lambda: Colour.RED,
    "an integer enum": lambda: Number.ONE,
    "a decimal": lambda: Decimal("0.5"),
    "a time": lambda: datetime(2026, 1, 1),  # noqa: DTZ001 - any one
    "a set": lambda: {1},
    "an object": object,
    "a class": lambda: refold.Deny,
    "a function": lambda: len,
    "an async function": lambda: count.body,
    "a lambda": lambda: lambda *_: None,
    "an exception": lambda: ValueError("x"),
    "equal to anything": lambda: ANY,
    "evil": Evil,
    "a liar": liar,
    "an evil mapping": lambda: EvilMapping(type="text", text="x"),
    "a cycle": cycle,
    "a deep block": lambda: (deep(),),
    "an iterator": lambda: iter("abc"),
    "a list of texts": lambda: ["a", "b"],
    "a list of numbers": lambda: [1],
    "a list of blocks": lambda: [TextBlock("x"), ReasoningBlock("y")],
    "blocks as dicts": lambda: [{"type": "text", "text": "x"}],
    "a block of a number": lambda: (TextBlock(5),),  # type: ignore[arg-type]  # the point of it
    "a block without fields": lambda: (object.__new__(TextBlock),),
    "a block of a surrogate": lambda: (TextBlock("a \udfff b"),),
    "a source of nobody": lambda: Source("nobody"),  # type: ignore[arg-type]  # the point of it
    "a source of a number": lambda: Source("plugin", plugin=5),  # type: ignore[arg-type]  # as above
    "broken Json": lambda: Json(b"{nonsense"),
    "Json of a number": lambda: Json(5),  # type: ignore[arg-type]  # the point of it
    "Json with more": lambda: Json(b'1,"kind":"user"'),
    "a message": lambda: Message("user", TEXT),
    "a system message": lambda: [Message("system", TEXT)],  # type: ignore[arg-type]  # as above
    "Submit of text": lambda: Submit("text"),  # type: ignore[arg-type]  # the point of it
    "Reject of a number": lambda: Reject(403),  # type: ignore[arg-type]  # the point of it
    "GoOn of None": lambda: GoOn(None),  # type: ignore[arg-type]  # the point of it
    "a deny of bytes": lambda: refold.Deny(b"no"),  # type: ignore[arg-type]  # the point of it
    "Outcome of text": lambda: Outcome("text", False, None),  # type: ignore[arg-type]  # as above
    "budgets": lambda: Budgets(max_steps=True),
}


def values() -> st.SearchStrategy[Callable[[], Any]]:
    """How to make any value; made anew for each use, since some can be used up."""
    plain = st.one_of(
        st.integers(),
        st.floats(),
        st.text(st.characters(exclude_categories=()), max_size=6),
        st.binary(max_size=3),
        st.booleans(),
        st.none(),
    )
    nested = st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=2)
    )
    return st.sampled_from([*ODD.values()]) | nested.map(lambda value: lambda: value)


@attrs.frozen
class Life:
    """A runtime with one agent that has had a turn, and the events of it as they were live."""

    runtime: refold.Runtime
    agent: refold.Agent
    seen: list[Event]


Use: TypeAlias = Callable[[Life, Any], Awaitable[object]]

# What a caller says to an agent or to its runtime.

SAYINGS: dict[str, Use] = {
    "ask": lambda life, value: life.agent.ask(value),
    "prompt": lambda life, value: life.agent.prompt(value),
    "steer": lambda life, value: life.agent.steer(value),
    "inject": lambda life, value: life.agent.inject(value),
    "ask under a key": lambda life, value: life.agent.ask("x", idempotency_key=value),
    "prompt under a key": lambda life, value: life.agent.prompt("x", idempotency_key=value),
    "steer under a key": lambda life, value: life.agent.steer("x", idempotency_key=value),
    "inject under a key": lambda life, value: life.agent.inject("x", idempotency_key=value),
    "prompt of a source": lambda life, value: life.agent.prompt("x", source=value),
    "prompt of a kind": lambda life, value: life.agent.prompt("x", source=Source(value)),
    "prompt of an agent": lambda life, value: life.agent.prompt(
        "x", source=Source("agent", session=value)
    ),
    "inject as a plugin": lambda life, value: life.agent.inject("x", plugin=value),
    "edit": lambda life, value: life.agent.edit(value, "x"),
    "remove": lambda life, value: life.agent.remove(value),
    "remove a list": lambda life, value: life.agent.remove([value]),  # type: ignore[arg-type]  # as above
    "answer": lambda life, value: life.agent.answer(value),
    "send": lambda life, value: life.agent.send(life.agent, value),
    "send to": lambda life, value: life.agent.send(value, "x"),
    "cancel": lambda life, value: life.agent.cancel(value),
    "resume": lambda life, value: life.runtime.resume(value),
    "fork": lambda life, value: life.runtime.fork(value),
    "fork at": lambda life, value: life.runtime.fork(life.agent.session_id, at=value),
    "fork named": lambda life, value: life.runtime.fork(life.agent.session_id, name=value),
    "delete": lambda life, value: life.runtime.delete(value),
    "start named": lambda life, value: life.runtime.start_agent(name=value, model="script/m"),
}


async def edit_the_text(life: Life, value: Any) -> None:
    pending = [*life.agent.log.live.rules.inbox.pending]
    await life.agent.edit(pending[0] if pending else 0, value)


async def listen(life: Life, value: Any) -> None:
    life.agent.listen(value)


async def observe(life: Life, value: Any) -> None:
    life.agent.log.observe(value)


async def follow(life: Life, value: Any) -> None:
    life.agent.events(value).close()


async def follow_durable(life: Life, value: Any) -> None:
    life.agent.events(durable=value).close()


async def make_a_tool(_life: Life, value: Any) -> None:
    for option in ("name", "effects", "parallel", "timeout", "isolation", "max_output"):
        given: dict[str, Any] = {option: value}
        try:
            refold.tool(**given)(count.body)
        except RefoldError:
            continue
    refold.tool(value)


async def register_a_type(_life: Life, value: Any) -> None:
    @attrs.frozen
    class Note:
        text: str

    register(value, Note)
    del CATALOGUE[value], _TYPES[Note]


SAYINGS |= {
    "edit the text": edit_the_text,
    "listen": listen,
    "observe": observe,
    "follow": follow,
    "follow durable": follow_durable,
    "make a tool": make_a_tool,
    "register a type": register_a_type,
}

# What is appended.

DRAFTS: dict[str, Callable[[Any], Any]] = {
    "data": draft,
    "content": lambda value: draft(ContextMessage(value, USER)),
    "text": lambda value: draft(ContextMessage((TextBlock(value),), USER)),
    "source": lambda value: draft(ContextMessage(TEXT, value)),
    "plugin": lambda value: draft(ContextMessage(TEXT, Source("plugin", plugin=value))),
    "envelope": lambda value: draft(ContextMessage(TEXT, USER, envelope=value)),
    "meta": lambda value: draft(ContextMessage(TEXT, USER, meta=value)),
    "meta of a value": lambda value: draft(ContextMessage(TEXT, USER, meta=Json.of(value))),
    "cites": lambda value: draft(ContextMessage(TEXT, USER), cites=value),
    "cites one": lambda value: draft(ContextMessage(TEXT, USER), cites=[value]),
    "cites in the batch": lambda value: draft(ContextMessage(TEXT, USER), cites=[InBatch(value)]),
    "cites a guess and the batch": lambda value: draft(
        ContextMessage(TEXT, USER), cites=[value, InBatch(0)]
    ),
    "replaces": lambda value: draft(ContextMessage(TEXT, USER), cites=[2], replaces=value),
    "replaces from": lambda value: draft(
        ContextMessage(TEXT, USER), cites=[2], replaces=Replace(value, value)
    ),
    "a key": lambda value: draft(InboxQueued("step", "inject", TEXT, USER, value)),
    "no draft": lambda value: value,
}


def appending(make: Callable[[Any], Any]) -> Use:
    async def use(life: Life, value: Any) -> None:
        await life.agent.log.append(make(value))

    return use


SAYINGS |= {f"append {name}": appending(make) for name, make in DRAFTS.items()}

# What seams and tools return.

OUTCOME = Outcome(TEXT, is_error=False, error=None)

SEAMS = tuple(field.name for field in attrs.fields(Seams))

VERDICTS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    **{name: (name, lambda value, _given: value) for name in SEAMS},
    "Submit content": ("prompt_submit", lambda value, _: Submit(value)),
    "Submit text": ("prompt_submit", lambda value, _: Submit((TextBlock(value),))),
    "Submit context": ("prompt_submit", lambda value, _: Submit(context=value)),
    "Reject": ("prompt_submit", lambda value, _: Reject(value)),
    "a prefix": ("session_prefix", lambda value, _: [value]),
    "a role": ("session_prefix", lambda value, _: (Message(value, TEXT),)),
    "a content": ("session_prefix", lambda value, _: (Message("user", value),)),
    "a provider": ("request", lambda value, given: attrs.evolve(given, provider=value)),
    "a model": ("request", lambda value, given: attrs.evolve(given, model=value)),
    "a temperature": ("request", lambda value, given: attrs.evolve(given, temperature=value)),
    "max tokens": ("request", lambda value, given: attrs.evolve(given, max_tokens=value)),
    "a stop": ("request", lambda value, given: attrs.evolve(given, stop=value)),
    "an extra": ("request", lambda value, given: attrs.evolve(given, extra=value)),
    "Deny": ("pre_tool", lambda value, _: refold.Deny(value)),
    "outcome content": ("post_tool", lambda value, _: attrs.evolve(OUTCOME, content=value)),
    "outcome flag": ("post_tool", lambda value, _: attrs.evolve(OUTCOME, is_error=value)),
    "outcome error": ("post_tool", lambda value, _: attrs.evolve(OUTCOME, error=value)),
    "an error's name": (
        "post_tool",
        lambda value, _: attrs.evolve(OUTCOME, error=ToolError(value, "X")),
    ),
    "outcome context": ("post_tool", lambda value, _: attrs.evolve(OUTCOME, context=value)),
    "GoOn": ("turn_continuation", lambda value, _: GoOn(value)),
}

UNCHANGED: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "session_prefix": lambda _: (),
    "request": lambda arguments: arguments[-1],
    "post_tool": lambda arguments: arguments[-1],
}


def assert_one_sentence(refused: object) -> None:
    text = str(refused)
    assert text
    assert text.isprintable(), text


async def assert_whole(runtime: refold.Runtime, agent: refold.Agent, seen: list[Event]) -> None:
    """The session answers, its requests verify, and a replay finds what was live."""
    turn = await agent.ask("and now?")
    assert (turn.reason.kind, turn.text) == ("completed", "fine"), turn.reason
    stored = assert_sound(runtime, agent)
    assert History(stored).derive_messages() == agent.messages()
    for event in seen:
        read = decode_line(event.encoded)
        assert (read.data, type(read.data)) == (event.data, type(event.data))
        assert hash(read.data) == hash(event.data)
        assert read.source_event_seqs == event.source_event_seqs
        assert read.surface_op == event.surface_op


def model(body: Any) -> Any:
    """It calls a tool after `use the tool`, and says `fine` after all else."""
    last = body["messages"][-1]
    wanted = last["role"] == "user" and "use the tool" in str(last["content"])
    return Call("count", {"upto": 2}) if wanted else Say("fine")


def live(use: Callable[[Life], Awaitable[object]], **options: Any) -> None:
    """Use a session, then see that it goes on, and goes on when it is opened again."""

    async def main() -> None:
        async with refold.open("memory:", providers=[Script(model)]) as runtime:
            agent = await runtime.start_agent(model="script/m", tools=[count], **options)
            seen: list[Event] = []
            agent.log.observe(seen.append)
            with trio.fail_after(10_000):
                await agent.ask("use the tool")
                await agent.inject("an aside")
                await use(Life(runtime, agent, seen))
                await agent.wait_idle()
                await assert_whole(runtime, agent, seen)
                await agent.close()
                again = await runtime.resume(agent.session_id, tools=[count])
                await assert_whole(runtime, again, [])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def say(life: Life, how: str, make: Callable[[], Any]) -> None:
    """Say one thing; refused, it left no event."""
    await life.agent.wait_idle()
    before = len(life.seen)
    try:
        await SAYINGS[how](life, make())
    except RefoldError as refused:
        assert_one_sentence(refused)
        assert len(life.seen) == before, "what is refused changes nothing"
    for agent in life.runtime._agents:
        if agent is not life.agent:
            await agent.close()


EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@EXAMPLES
@given(how=st.sampled_from([*SAYINGS]), make=values())
@example(how="prompt under a key", make=lambda: 42)
@example(how="remove", make=lambda: [1])
@example(how="cancel", make=lambda: 5)
def test_any_value_in_any_saying_is_refused_or_reads_back(
    how: str, make: Callable[[], Any]
) -> None:
    live(lambda life: say(life, how, make))


@pytest.mark.parametrize("how", SAYINGS)
def test_every_odd_value_in_each_saying_is_refused_or_reads_back(how: str) -> None:
    async def use(life: Life) -> None:
        for name, make in ODD.items():
            try:
                await say(life, how, make)
            except Exception as error:
                raise AssertionError(f"{how} with {name}") from error

    live(use)


def returning(made: list[Callable[[], Any]], verdict: str) -> dict[str, Any]:
    """Options with one seam that returns the next of `made` in its verdict, or changes nothing."""
    kind, wrap = VERDICTS[verdict]

    async def seam(*arguments: Any) -> Any:
        if made:
            return wrap(made.pop()(), arguments[-1])
        unchanged = UNCHANGED.get(kind)
        return None if unchanged is None else unchanged(arguments)

    return {"seams": Seams(**{kind: (seam,)})}


async def turns(life: Life, made: list[Callable[[], Any]], verdict: str) -> None:
    """Turns until every value was returned, in new lives of the loop where it is asked in one."""
    for _ in range(200):
        if not made:
            return
        await life.agent.wait_idle()
        if VERDICTS[verdict][0] in ("session_start", "session_prefix"):
            await life.agent.park()
        turn = await life.agent.ask("use the tool")
        assert turn.reason.kind in ("completed", "error", "rejected", "budget"), turn
        if turn.reason.message is not None:
            assert_one_sentence(turn.reason.message)
    raise AssertionError("the seam was not asked")


@EXAMPLES
@given(verdict=st.sampled_from([*VERDICTS]), make=values())
@example(verdict="prompt_submit", make=lambda: Submit("text"))  # type: ignore[arg-type]  # as above
@example(verdict="request", make=lambda: None)
def test_any_value_that_a_seam_returns_ends_a_turn_or_reads_back(
    verdict: str, make: Callable[[], Any]
) -> None:
    made: list[Callable[[], Any]] = []
    options = returning(made, verdict)

    async def use(life: Life) -> None:
        made.append(make)
        await turns(life, made, verdict)

    live(use, **options)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_odd_value_that_a_seam_returns_ends_a_turn_or_reads_back(verdict: str) -> None:
    made: list[Callable[[], Any]] = []
    options = returning(made, verdict)

    async def use(life: Life) -> None:
        made.extend(ODD.values())
        await turns(life, made, verdict)

    live(use, budgets=Budgets(max_steps=20), **options)


def _option(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def _budget(name: str, value: Any) -> dict[str, Any]:
    return {"budgets": Budgets(**{name: value})}


def _seam(name: str, value: Any) -> dict[str, Any]:
    return {"seams": Seams(**{name: (value,)})}


def _schema(value: Any) -> Any:
    return attrs.evolve(count.schema, parameters=value)


OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **{name: partial(_option, name) for name in refold.AgentOptions.__annotations__},
    "a stop": lambda value: {"stop": [value]},
    "a tool": lambda value: {"tools": [value]},
    "a body field": lambda value: {"extra": {"field": value}},
    "a schema": lambda value: {"tools": [attrs.evolve(count, schema=value)]},
    "a parameter": lambda value: {"tools": [attrs.evolve(count, schema=_schema(value))]},
    **{field.name: partial(_budget, field.name) for field in attrs.fields(Budgets)},
    **{name: partial(_seam, name) for name in SEAMS},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_odd_value_of_an_option_is_refused_or_an_agent_works_with_it(option: str) -> None:
    async def main() -> None:
        async with refold.open("memory:", providers=[Script(model)]) as runtime:
            old = await runtime.start_agent(model="script/m", session_id="old")
            await old.ask("hello")
            for name, make in ODD.items():
                if option in SEAMS and name == "an async function":
                    continue  # a seam like any other
                known = await runtime.list()
                try:
                    given = {"model": "script/m", **OPTIONS[option](make())}
                    agent = await runtime.start_agent(**given)
                except RefoldError as refused:
                    assert_one_sentence(refused)
                    with pytest.raises(RefoldError):
                        await runtime.fork("old", **OPTIONS[option](make()))
                    assert await runtime.list() == known
                    continue
                await assert_whole(runtime, agent, [])
                await agent.close()
                again = await runtime.resume(agent.session_id, tools=())
                await assert_whole(runtime, again, [])
                await again.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("argument", ["store", "providers", "durability", "park_after"])
def test_an_odd_argument_of_open_is_refused_before_anything_is_there(argument: str) -> None:
    async def main(value: Any) -> None:
        given: dict[str, Any] = {"store": "memory:", argument: value}
        async with refold.open(**given):
            pass

    for name, make in ODD.items():
        if argument == "store" and isinstance(make(), str):
            continue  # a folder
        try:
            trio.run(main, make())
        except RefoldError as refused:
            assert_one_sentence(refused)
        else:
            assert argument == "park_after", name


async def test_any_value_that_a_tool_returns_is_a_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = [*ODD.values()]

    @refold.tool(name="count")
    async def give(upto: int) -> Any:
        """Give the next value."""
        return made.pop()()

    async with refold.open("memory:", providers=[Script(model)]) as runtime:
        agent = await runtime.start_agent(model="script/m", invariants="full", tools=[give])
        while made:
            assert (await agent.ask("use the tool")).reason.kind == "completed"
        await assert_whole(runtime, agent, [])
        await agent.close()
        await assert_whole(runtime, await runtime.resume(agent.session_id, tools=()), [])


PIECES: dict[str, Callable[[Any], Any]] = {
    "an answer": lambda value: value,
    "Say": refold.Say,
    "Think": refold.Think,
    "Call": refold.Call,
    "arguments": lambda value: refold.Call("count", value),
    "an id": lambda value: refold.Call("count", {"upto": 2}, id=value),
    "End": refold.End,
    "Fail": refold.Fail,
    "a failure's message": lambda value: refold.Fail("AUTH", value),
    "a status": lambda value: refold.Fail("AUTH", status=value),
}


@pytest.mark.parametrize("piece", PIECES)
async def test_every_odd_value_that_a_model_says_ends_a_turn_or_reads_back(
    piece: str, autojump_clock: trio.testing.MockClock
) -> None:
    made = [*ODD.values()]

    def confused(body: Any) -> Any:
        last = str(body["messages"][-1]["content"])
        return PIECES[piece](made.pop()()) if last == "go" and made else Say("fine")

    async with refold.open("memory:", providers=[Script(confused)]) as runtime:
        agent = await runtime.start_agent(model="script/m", tools=[count], retries=0)
        while made:
            turn = await agent.ask("go")
            assert turn.reason.kind in ("completed", "error", "max-tokens"), turn
        await assert_whole(runtime, agent, [])
        await agent.close()
        await assert_whole(runtime, await runtime.resume(agent.session_id, tools=()), [])


@pytest.mark.parametrize("field", ["code", "message", None])
async def test_every_odd_failure_that_a_seam_raises_ends_the_turn(
    field: str | None, autojump_clock: trio.testing.MockClock
) -> None:
    made = [*ODD.values()]

    async def broken(_view: refold.StepView) -> None:
        if made and field is None:
            raise LlmFailure(made.pop()())
        if made and field is not None:
            fields: dict[str, Any] = {"code": "AUTH", "message": "x", field: made.pop()()}
            raise LlmFailure(Failure(**fields))

    async with refold.open("memory:", providers=[Script(model)]) as runtime:
        seams = Seams(pre_step=(broken,))
        agent = await runtime.start_agent(model="script/m", seams=seams)
        while made:
            assert (await agent.ask("go")).reason.kind == "error"
        await assert_whole(runtime, agent, [])
