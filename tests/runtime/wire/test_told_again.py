"""What a server says twice is one call, one count, one text; what is only equal stays twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.messages import TextBlock, ToolCallBlock, tool_calls
from refold.runtime.stream.chunks import ToolCallDelta, Usage
from refold.runtime.wire.chat.decode import ChatDecoder
from tests.runtime.wire.chat_streams import (
    DONE,
    answer,
    assemble,
    call,
    calls,
    decode,
    delta,
    event,
    said,
)

BOOK = '{"room":"b2","nights":3}'


def arguments(*pieces: Any) -> str:
    """The arguments of one call whose pieces come one a delta."""
    first = call(index=0, id="c9", name="book", arguments="")
    (made,) = calls(first, *(call(index=0, arguments=piece) for piece in pieces))
    return made.arguments


@pytest.mark.parametrize(
    "pieces",
    [
        ['{"room":', '"b2","nights":3}', BOOK],
        ['{"room":', '"b2","nights":3}', '{"room": "b2", "nights": 3}'],
        ['{"room":', '"b2","nights":3}', {"nights": 3, "room": "b2"}],
        ['{"room"', '{"room":"b2"', '{"room":"b2","nights":3}'],
        ["{", '{"room"', BOOK, BOOK],
        [BOOK, BOOK],
        [BOOK, " ", BOOK],
        ["{}", '{"room":', '"b2","nights":3}'],
        ["{}", BOOK],
        [{}, '{"room":"b2",', '"nights":3}'],
        ["null", BOOK],
        [{"room": "b2"}, {"room": "b2", "nights": 3}],
        [{"room": "b"}, {"room": "b2", "nights": 3}],
        [BOOK, "{}"],
    ],
)
def test_arguments_that_are_told_again_are_told_once(pieces: list[Any]) -> None:
    assert orjson.loads(arguments(*pieces)) == {"room": "b2", "nights": 3}


@pytest.mark.parametrize(
    "pieces",
    [
        ['{"n":1', "0", "0", "}"],
        ['{"t":"', "ha", "ha", "ha", '"}'],
        ['{"a":', '{"a":', "1}", "}"],
        ['{"a":{}', ',"b":', "{}", "}"],
        ['{"t":"', '{"t":"'.replace('"', "'"), '"}'],
        ["{", "}", " "],
    ],
)
def test_fragments_that_are_equal_stay(pieces: list[str]) -> None:
    assert arguments(*pieces) == "".join(pieces)


@pytest.mark.parametrize("pieces", [['{"a":1}', '{"b":2}'], ['{"a":', '{"b":2}'], ["x", "x{}"]])
def test_what_makes_no_sense_is_kept_as_it_came(pieces: list[str]) -> None:
    assert arguments(*pieces) in ("".join(pieces), pieces[-1])


@given(
    value=st.dictionaries(st.text(), st.recursive(st.integers() | st.text(), st.lists), max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_fragments_of_any_object_are_that_object(value: dict[str, Any], cuts: list[int]) -> None:
    text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode() if _fits(value) else "{}"
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]

    assert arguments(*pieces) == text
    if text != "{}":
        assert orjson.loads(arguments(*pieces, text)) == orjson.loads(text)
        grown = [text[:end] for end in places[1:] if end]
        assert orjson.loads(arguments(*grown)) == orjson.loads(text)


def _fits(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def test_what_was_told_of_a_call_is_always_a_beginning_of_what_it_is() -> None:
    """Displays get deltas as they come; the finished block never takes one back."""
    for pieces in (["{}", BOOK], [BOOK, BOOK], ['{"room"', BOOK], [BOOK[:9], BOOK[9:], BOOK]):
        entries = [call(index=0, id="c", name="book", arguments=""), *({"index": 0} for _ in "")]
        entries += [call(index=0, arguments=piece) for piece in pieces]
        chunks = decode(*(delta(tool_calls=[one]) for one in entries), delta("tool_calls"), DONE)
        told = [chunk.arguments_delta for chunk in chunks if isinstance(chunk, ToolCallDelta)]
        assert "".join(told) == BOOK


AGAIN = [
    # the other index, whole
    [
        call(index=0, id="c", name="pay", arguments=BOOK),
        call(index=1, id="c", name="pay", arguments=BOOK),
    ],
    # fragments, then whole at another index, spelt in another way
    [
        call(index=0, id="c", name="pay", arguments='{"room":"b2",'),
        call(index=0, arguments='"nights":3}'),
        call(index=4, id="c", name="pay", arguments='{"nights": 3, "room": "b2"}'),
    ],
    # again in fragments
    [
        call(index=0, id="c", name="pay", arguments=BOOK),
        call(index=1, id="c", name="pay", arguments=BOOK[:7]),
        call(index=1, arguments=BOOK[7:]),
    ],
    # again without its name
    [call(index=0, id="c", name="pay", arguments=BOOK), call(index=1, id="c", arguments=BOOK)],
    # no index at all
    [call(id="c", name="pay", arguments=BOOK), call(id="c", name="pay", arguments=BOOK)],
    # three times
    [call(index=n, id="c", name="pay", arguments=BOOK) for n in range(3)],
]


@pytest.mark.parametrize("entries", AGAIN)
def test_a_call_that_is_told_again_is_one_call(entries: list[dict[str, Any]]) -> None:
    (made,) = calls(*entries)
    assert (made.id, made.name, orjson.loads(made.arguments)) == ("c", "pay", orjson.loads(BOOK))


SEVERAL = [
    [
        call(index=0, id="a", name="pay", arguments=BOOK),
        call(index=1, id="b", name="pay", arguments=BOOK),
    ],
    [call(index=0, name="pay", arguments=BOOK), call(index=1, name="pay", arguments=BOOK)],
    [call(name="pay", arguments=BOOK), call(name="pay", arguments=BOOK)],
    [
        call(index=0, id="c", name="pay", arguments=BOOK),
        call(index=1, id="c", name="refund", arguments=BOOK),
    ],
    [
        call(index=0, id="c", name="pay", arguments='{"n":1}'),
        call(index=0, id="c", name="pay", arguments='{"n":2}'),
    ],
    [
        call(index=0, id="c", name="f", arguments="{}"),
        call(index=0, id="c", name="g", arguments="{}"),
    ],
]


@pytest.mark.parametrize("entries", SEVERAL)
def test_equal_words_alone_make_no_call_the_same(entries: list[dict[str, Any]]) -> None:
    made = calls(*entries)
    assert len(made) == 2
    assert made[0].id != made[1].id
    assert [block.name for block in made] == [entry["function"]["name"] for entry in entries]


@pytest.mark.parametrize(
    "entries",
    [
        [call(index=0, id="c", name="get_"), call(index=0, id="c", name="weather", arguments="{}")],
        [call(index=0, id="c", name="get_"), call(index=0, name="weather", arguments="{}")],
        [call(id="c", name="get_"), call(id="c", name="wea"), call(id="c", name="ther")],
        [call(index=0, id="c", name="get_"), call(index=0, id="c", name="get_weather")],
        [call(index=0, id="c", name="get_weather"), call(index=0, id="c", name="get_weather")],
    ],
)
def test_a_name_may_come_in_pieces(entries: list[dict[str, Any]]) -> None:
    (made,) = calls(*entries)
    assert (made.id, made.name) == ("c", "get_weather")
    chunks = decode(*(delta(tool_calls=[one]) for one in entries), delta("tool_calls"), DONE)
    told = [chunk.name for chunk in chunks if isinstance(chunk, ToolCallDelta) and chunk.name]
    assert told == ["get_weather"]


def test_a_message_behind_its_deltas_adds_only_what_is_new() -> None:
    whole = {"role": "assistant", "content": "Good day", "tool_calls": None}
    last = event({"choices": [{"index": 0, "message": whole, "finish_reason": "stop"}]})
    assert answer(said("Good "), said("d"), last, DONE).content == (TextBlock("Good day"),)
    assert answer(said("Good bye"), last, DONE).content == (TextBlock("Good bye"),)


PROMPT = {"prompt_tokens": 20, "completion_tokens": 5}
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0}


@pytest.mark.parametrize(
    "told",
    [
        [{"choices": [{"index": 0, "delta": {}, "usage": PROMPT, "finish_reason": "stop"}]}],
        [{"choices": [], "usage": PROMPT}, {"choices": [], "usage": PROMPT}],
        [{"choices": [], "usage": PROMPT}, {"choices": [], "usage": ZEROS}],
        [{"choices": [], "usage": {**PROMPT, "completion_tokens": 1}}, {"usage": PROMPT}],
        [{"choices": [], "x_groq": {"id": "r", "usage": PROMPT}}],
        [{"usage": PROMPT}, {"usage": None}, {"usage": {"completion_tokens": 0}}],
    ],
)
@pytest.mark.parametrize("done", [DONE, b""])
def test_usage_stands_wherever_and_however_often_it_is_told(
    told: list[dict[str, Any]], done: bytes
) -> None:
    result = answer(said("a"), delta("stop"), *map(event, told), done)
    assert result.usage == Usage(20, 5)


def test_a_zero_that_nothing_contradicts_is_a_zero() -> None:
    assert answer(said("a"), delta("stop"), event({"usage": ZEROS}), DONE).usage == Usage(0, 0)


def test_a_call_of_many_pieces_is_put_together_in_one_go() -> None:
    """A stranger's stream cannot make the reading of one call cost the square of its length."""
    joke = ['{"a":"', *["x}"] * 20_000, *["{}"] * 20_000, *['{"b":1}'] * 20_000]
    decoder = ChatDecoder()
    chunks = decoder.feed(delta(tool_calls=[call(index=0, id="c", name="f", arguments="")]))
    for start in range(0, len(joke), 100):
        entries = [call(index=0, arguments=piece) for piece in joke[start : start + 100]]
        chunks += decoder.feed(delta(tool_calls=entries))
    chunks += decoder.feed(delta("tool_calls") + DONE)
    (made,) = tool_calls(assemble(chunks).content)
    assert made == ToolCallBlock("c", "f", "".join(joke))
