"""Structuring is strict: what does not fit is refused with a reason, and nothing is coerced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import attrs
import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from refold.runtime import typed_json
from refold.runtime.envelope import InBatch, Replace, decode_event, decode_line, draft, parse_draft
from refold.runtime.errors import InvalidEvent, NotLosslessJson
from refold.runtime.events import (
    _TYPES,
    BUILT_IN,
    CATALOGUE,
    TodoWrite,
    ToolResult,
    UnknownEvent,
    UserMessage,
    register,
)
from refold.runtime.json import MAX_DEPTH, Json, check, clean_text, encode
from refold.runtime.messages import Source, TextBlock
from refold.runtime.request_header import LlmCallConfig

MISFITS: dict[str, tuple[type, Any]] = {
    "a number for text": (TextBlock, {"text": 1}),
    "text for a number": (LlmCallConfig, {"model": "m", "maxTokens": "9"}),
    "true for a number": (LlmCallConfig, {"model": "m", "maxTokens": True}),
    "a float for an integer": (LlmCallConfig, {"model": "m", "maxTokens": 1.0}),
    "null for absent": (LlmCallConfig, {"model": "m", "temperature": None}),
    "an unknown key": (TextBlock, {"text": "a", "more": 1}),
    "a missing key": (TextBlock, {}),
    "a value outside a literal": (Source, {"kind": "alien"}),
    "text for a list": (LlmCallConfig, {"model": "m", "stop": "a"}),
    "a list for an object": (Source, ["user"]),
    "an unknown block": (UserMessage, {"content": [{"type": "image"}], "source": {"kind": "user"}}),
    "a block without a type": (UserMessage, {"content": [{}], "source": {"kind": "user"}}),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_a_misfit(name: str) -> None:
    cls, value = MISFITS[name]
    with pytest.raises(typed_json.Misfit):
        typed_json.structure(value, cls)


def test_numbers_keep_their_kind() -> None:
    one = typed_json.structure({"provider": "p", "model": "m", "temperature": 1}, LlmCallConfig)
    assert typed_json.canonical(one) == b'{"provider":"p","model":"m","temperature":1}'


def test_canonical_bytes_keep_the_order_of_the_fields() -> None:
    config = LlmCallConfig("p", model="m", stop=("x",), extra=Json.of({"b": 1, "a": 2}))
    assert typed_json.canonical(config) == (
        b'{"provider":"p","model":"m","stop":["x"],"extra":{"b":1,"a":2}}'
    )


LOSSY: dict[str, tuple[Any, str]] = {
    "not a number": ({"a": [float("nan")]}, "$.a[0]"),
    "infinity": (float("inf"), "$"),
    "minus zero": ([-0.0], "$[0]"),
    "a large integer": (2**64, "$"),
    "a small integer": (-(2**63) - 1, "$"),
    "a lone surrogate": ({"a": "\ud800"}, "$.a"),
    "a lone surrogate in a key": ({"\udfff": 1}, "$"),
    "a key that is no text": ({1: 1}, "$"),
    "a set": ({"a": {1}}, "$.a"),
    "bytes": (b"a", "$"),
    "an object": ([object()], "$[0]"),
}


@pytest.mark.parametrize("name", LOSSY)
def test_what_json_cannot_carry_is_refused_with_its_path(name: str) -> None:
    value, path = LOSSY[name]
    with pytest.raises(NotLosslessJson) as refused:
        check(value)
    assert refused.value.path == path
    assert path in str(refused.value)
    with pytest.raises(NotLosslessJson):
        parse_draft({"type": "plugin/own", "data": value})


def test_nesting_is_bounded_and_cycles_end() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    check(deep)
    with pytest.raises(NotLosslessJson):
        check([[deep]])
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotLosslessJson):
        check(cycle)


def test_the_ends_of_the_integer_range_survive() -> None:
    assert Json.of([2**64 - 1, -(2**63), 0.1 + 0.2]).thaw() == [2**64 - 1, -(2**63), 0.1 + 0.2]


def test_open_json_is_immutable_all_the_way_down() -> None:
    held = Json.of({"a": [{"b": 1}]})
    with pytest.raises(TypeError):
        held.value["a"] = 1
    with pytest.raises(TypeError):
        held.value["a"][0]["b"] = 2
    with pytest.raises(AttributeError):
        held.encoded = b""  # type: ignore[misc]  # the point of the test
    assert held == Json.of({"a": [{"b": 1}]})
    assert held != Json.of({"a": [{"b": 1.0}]})


def test_text_from_outside_is_made_clean() -> None:
    assert clean_text("a\ud800b") == "a�b"
    assert clean_text("😀é") == "😀é"


def test_an_unregistered_type_is_kept_verbatim_and_a_registered_one_is_typed() -> None:
    raw = {"type": "plugin/note", "seq": 0, "time": 1, "data": {"z": 1, "a": [None]}}
    event = decode_event(raw, b'{"type":"plugin/note","seq":0,"time":1,"data":{"z":1,"a":[null]}}')
    assert event.data == UnknownEvent(Json(b'{"z":1,"a":[null]}'))
    with pytest.raises(InvalidEvent):
        register("turn/start", TodoWrite)
    with pytest.raises(InvalidEvent):
        register("plugin/number", int)
    with pytest.raises(InvalidEvent):
        draft(object())


def test_a_foreign_shape_of_a_log_only_type_is_kept_and_of_a_surface_type_refused() -> None:
    foreign = {"type": "approval/asked", "seq": 0, "time": 1, "data": {"id": "x"}}
    assert isinstance(decode_event(foreign, orjson.dumps(foreign)).data, UnknownEvent)
    surface = {
        "type": "tool/result",
        "seq": 0,
        "time": 1,
        "data": {"id": "x"},
        "surfaceOp": "append",
    }
    with pytest.raises(InvalidEvent):
        decode_event(surface, orjson.dumps(surface))
    with pytest.raises(InvalidEvent):
        parse_draft({"type": "approval/asked", "data": {"id": "x"}})


@pytest.mark.parametrize(
    "surface_fields",
    [
        {},
        {"surfaceOp": None},
        {"surfaceOp": []},
        {"surfaceOp": "prepend"},
        {"surfaceOp": {"op": "replace", "start": 0}},
        {"surfaceOp": {"op": "replace", "start": 0, "end": True}},
        {"surfaceOp": {"op": "replace", "start": -1, "end": 0}},
        {"surfaceOp": {"op": "replace", "start": 0, "end": 0, "more": 1}},
        {"surfaceOp": "append", "sourceEventSeqs": []},
        {"surfaceOp": "append", "sourceEventSeqs": [1, 1]},
        {"surfaceOp": "append", "sourceEventSeqs": [1.0]},
        {"surfaceOp": "append", "sourceEventSeqs": "1"},
        {"surfaceOp": "append", "id": "x"},
    ],
)
def test_a_surface_event_with_any_other_marker_is_refused(surface_fields: dict[str, Any]) -> None:
    data = {"content": [], "source": {"kind": "user"}}
    with pytest.raises(InvalidEvent):
        parse_draft({"type": "user/message", "data": data, **surface_fields})


def test_an_event_is_spelled_in_camel_case_in_the_order_of_its_fields() -> None:
    result = ToolResult(1, 2, "c", (TextBlock("t"),), is_error=False)
    event = draft(result, cites=(3,)).at(4, 5)
    assert event.encoded == (
        b'{"type":"tool/result","seq":4,"time":5,"data":{"turn":1,"step":2,"callId":"c",'
        b'"content":[{"type":"text","text":"t"}],"isError":false},'
        b'"sourceEventSeqs":[3],"surfaceOp":"append"}'
    )


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False).filter(bool),
    bool: st.booleans(),
    type(None): st.none(),
    Json: st.recursive(st.integers(0, 9) | st.text(max_size=4), st.lists, max_leaves=4).map(
        Json.of
    ),
}


def values(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value of a type that the catalogue uses."""
    if kind in PLAIN:
        return PLAIN[kind]
    if attrs.has(kind):
        attrs.resolve_types(kind)
        fields = {field.name: values(field.type, depth + 1) for field in attrs.fields(kind)}
        return st.builds(kind, **fields)
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if get_origin(kind) is tuple:
        return st.just(()) if depth > 4 else st.lists(values(arguments[0], depth + 1)).map(tuple)
    return st.one_of([values(argument, depth + 1) for argument in arguments])


@pytest.mark.parametrize("type_", sorted(BUILT_IN))
@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_every_event_of_the_catalogue_comes_back_from_its_bytes(
    type_: str, data: st.DataObject
) -> None:
    made = draft(data.draw(values(CATALOGUE[type_])))
    event = decode_line(made.at(0, 1).encoded)
    assert event.type == type_
    assert event.data == made.data
    assert draft(event.data).encoded_data == made.encoded_data


def test_a_draft_holds_what_a_reader_will_find() -> None:
    content: Any = [TextBlock("one"), {"type": "text", "text": "two"}]
    made = draft(UserMessage(content, Source("user")))
    content.clear()
    assert made.data.content == (TextBlock("one"), TextBlock("two"))
    assert decode_line(made.at(0, 1).encoded).data == made.data


@attrs.frozen
class Note:
    """What a program of its own may log."""

    anything: Any
    numbers: list[int]
    by_name: dict[str, float]


@pytest.fixture
def note_type() -> Iterator[None]:
    """The type `test/note` is registered, and forgotten afterwards."""
    register("test/note", Note)
    yield
    del CATALOGUE["test/note"], _TYPES[Note]


@pytest.mark.usefixtures("note_type")
def test_a_registered_class_holds_what_a_reader_will_find_too() -> None:
    made = draft(Note(("a", ("b",)), [1], {"x": 0.5}))
    assert made.data == Note(["a", ["b"]], [1], {"x": 0.5})
    assert decode_line(made.at(0, 1).encoded).data == made.data
    made = draft(Note(Json.of({"a": 1}), [], {}))
    assert made.data.anything == decode_line(made.at(0, 1).encoded).data.anything == {"a": 1}
    lossy: list[Any] = [Note(float("nan"), [], {}), Note(object(), [], {}), Note({1: 2}, [], {})]
    for note in lossy:
        with pytest.raises(NotLosslessJson):
            draft(note)
    wrong: list[tuple[Any, Any]] = [("12", {}), ([True], {}), ([1], {"x": "y"})]
    for numbers, by_name in wrong:
        with pytest.raises(InvalidEvent, match="test/note"):
            draft(Note(1, numbers, by_name))


@pytest.mark.parametrize("type_", ["", "a\nb", 5, None, "session", "request/header-delta"])
def test_what_no_log_may_hold_is_no_name_of_a_type(type_: Any) -> None:
    @attrs.frozen
    class Own:
        text: str

    with pytest.raises(InvalidEvent):
        register(type_, Own)
    with pytest.raises(InvalidEvent):
        draft(Own("x"))


@pytest.mark.usefixtures("note_type")
def test_a_class_stands_for_one_type() -> None:
    with pytest.raises(InvalidEvent, match="todo/write"):
        register("test/todo", TodoWrite)
    register("test/note", Note)  # once more, as when a module is imported again


CITATIONS: list[Any] = ["12", 5, [], [1, 1], [True], [-1], ["1"], [1.0], [InBatch(-1)], [None]]


@pytest.mark.parametrize("cites", CITATIONS, ids=str)
def test_a_citation_that_no_reader_would_take_is_refused(cites: Any) -> None:
    with pytest.raises(InvalidEvent):
        draft(UserMessage((), Source("user")), cites=cites)
    with pytest.raises(InvalidEvent):
        draft(TodoWrite(()), cites=[1])


@pytest.mark.parametrize("ends", [(1, "2"), (True, 2), (-1, 2), (1.0, 2)], ids=str)
def test_a_range_that_no_reader_would_take_is_refused(ends: Any) -> None:
    for replaces in (Replace(*ends), ends):
        with pytest.raises(InvalidEvent):
            draft(UserMessage((), Source("user")), cites=[1], replaces=replaces)


@pytest.mark.parametrize("name", LOSSY)
def test_the_quick_look_refuses_what_the_slow_one_does(name: str) -> None:
    value, path = LOSSY[name]
    with pytest.raises(NotLosslessJson) as refused:
        encode({"in": [value]})
    assert refused.value.path == path.replace("$", "$.in[0]", 1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(st.characters(exclude_categories=())),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_the_quick_look_and_the_slow_one_agree_about_any_value(value: Any) -> None:
    try:
        check(value)
    except NotLosslessJson:
        with pytest.raises(NotLosslessJson):
            encode(value)
    else:
        assert orjson.loads(encode(value)) == value


def test_both_look_equally_deep() -> None:
    deep: Any = "x"
    for level in range(MAX_DEPTH + 3):
        for value in (deep, [] if level == 0 else deep):
            try:
                check(value)
            except NotLosslessJson:
                with pytest.raises(NotLosslessJson):
                    encode(value)
                assert level > MAX_DEPTH
            else:
                assert orjson.loads(encode(value)) == value
                assert level <= MAX_DEPTH
        deep = [deep]
