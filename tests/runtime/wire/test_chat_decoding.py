"""Streams of chat completions as servers really write them, quirk by quirk."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.json import Json
from refold.runtime.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock
from refold.runtime.stream.assembler import Assembled
from refold.runtime.stream.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from refold.runtime.stream.failures import LlmFailure
from refold.runtime.wire.chat.decode import ChatDecoder
from tests.runtime.wire.chat_streams import (
    DONE,
    USAGE,
    answer,
    assemble,
    call,
    calls,
    decode,
    delta,
    event,
    failure_of,
    said,
)

# The shape of an ordinary answer


def test_a_plain_answer_chunk_by_chunk() -> None:
    chunks = decode(
        delta(role="assistant", content=""),
        said("Hel"),
        said("lo"),
        delta("stop"),
        event({"choices": [], "usage": USAGE}),
        DONE,
    )

    assert chunks == [
        BlockStart(0, "text"),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        BlockEnd(0, TextBlock("Hello")),
        UsageChunk(Usage(10, 3)),
        Finish(FinishReason("stop")),
    ]


def test_reasoning_then_text_then_a_call_chunk_by_chunk() -> None:
    chunks = decode(
        delta(reasoning_content="hm"),
        said("I look."),
        delta(tool_calls=[call(index=0, id="c1", name="read", arguments="")]),
        delta(tool_calls=[call(index=0, arguments='{"a":1}')]),
        delta("tool_calls"),
        DONE,
    )

    assert chunks == [
        BlockStart(0, "reasoning"),
        ReasoningDelta(0, "hm"),
        BlockStart(1, "text"),
        TextDelta(1, "I look."),
        BlockStart(2, "tool-call"),
        ToolCallDelta(2, "c1", '{"a":1}', "read"),
        BlockEnd(0, ReasoningBlock("hm")),
        BlockEnd(1, TextBlock("I look.")),
        BlockEnd(2, ToolCallBlock("c1", "read", '{"a":1}')),
        Finish(FinishReason("tool-calls"), Json.of({"reasoning_content": "hm"})),
    ]


def test_nothing_is_final_before_the_terminal_event() -> None:
    decoder = ChatDecoder()
    chunks = decoder.feed(said("a") + delta("stop") + event({"choices": [], "usage": USAGE}))

    assert chunks == [BlockStart(0, "text"), TextDelta(0, "a")]
    assert not decoder.done
    assert [type(chunk) for chunk in decoder.feed(DONE)] == [BlockEnd, UsageChunk, Finish]
    assert decoder.done


def test_what_follows_the_terminal_event_is_ignored() -> None:
    chunks = decode(said("a"), delta("stop"), DONE, said("b"), b"data: {broken\n\n", DONE)

    assert assemble(chunks).content == (TextBlock("a"),)


# Quirk 1: ids


def test_an_id_may_be_empty_after_the_first_delta() -> None:
    made = calls(
        call(index=0, id="c1", name="f", arguments=""), call(index=0, id="", arguments="{}")
    )

    assert made == (ToolCallBlock("c1", "f", "{}"),)


def test_calls_without_ids_get_one_each_that_nobody_has() -> None:
    made = calls(
        call(index=0, name="f", arguments="{}"),
        call(index=1, name="g", arguments="{}"),
        call(index=2, id="call-2", name="h", arguments="{}"),
    )

    assert [block.id for block in made] == ["call-1", "call-3", "call-2"]


def test_repeated_ids_are_made_unique() -> None:
    made = calls(
        call(index=0, id="c", name="f", arguments='{"n":1}'),
        call(index=1, id="c", name="f", arguments='{"n":2}'),
    )

    assert made == (ToolCallBlock("c", "f", '{"n":1}'), ToolCallBlock("call-2", "f", '{"n":2}'))


def test_every_chunk_of_a_call_has_the_same_id() -> None:
    chunks = decode(
        delta(tool_calls=[call(index=0, name="f", arguments="{}")]), delta("stop"), DONE
    )

    told = [chunk for chunk in chunks if isinstance(chunk, ToolCallDelta)]
    assert told == [ToolCallDelta(0, "call-1", "{}", "f")]


def test_a_new_id_on_each_delta_of_one_call_is_no_new_call() -> None:
    made = calls(
        call(index=0, id="r1", name="f", arguments='{"a":'), call(index=0, id="r2", arguments="1}")
    )

    assert made == (ToolCallBlock("r1", "f", '{"a":1}'),)


# Quirk 2: id and name apart


@pytest.mark.parametrize("addressed", [{"index": 0}, {}])
def test_id_and_name_may_come_in_different_deltas(addressed: dict[str, int]) -> None:
    id_first = calls(
        {**addressed, "id": "c1"}, call(**addressed, name="f"), call(**addressed, arguments="{}")
    )
    name_first = calls(call(**addressed, name="f", arguments="{}"), {**addressed, "id": "c1"})

    assert id_first == name_first == (ToolCallBlock("c1", "f", "{}"),)


def test_a_call_is_told_once_its_id_and_name_are_known() -> None:
    decoder = ChatDecoder()

    assert decoder.feed(delta(tool_calls=[call(index=0, name="f", arguments='{"a"')])) == [
        BlockStart(0, "tool-call")
    ]
    assert decoder.feed(delta(tool_calls=[{"index": 0, "id": "c1"}])) == [
        ToolCallDelta(0, "c1", '{"a"', "f")
    ]


# Quirk 3: indices


def test_calls_without_an_index_are_told_apart_by_id() -> None:
    made = calls(
        call(id="a", name="f", arguments="{"),
        call(id="b", name="g", arguments="[]"),
        call(id="a", arguments="}"),
    )

    assert made == (ToolCallBlock("a", "f", "{}"), ToolCallBlock("b", "g", "[]"))


def test_without_index_and_id_arguments_go_to_the_open_call() -> None:
    assert calls(call(id="a", name="f", arguments="{"), call(arguments="}")) == (
        ToolCallBlock("a", "f", "{}"),
    )


def test_an_index_may_start_at_one() -> None:
    made = calls(
        call(index=1, id="a", name="f", arguments="{}"),
        call(index=2, id="b", name="g", arguments="{}"),
    )

    assert [block.id for block in made] == ["a", "b"]


@pytest.mark.parametrize("address", [{}, {"index": 0}])
@pytest.mark.parametrize("second", ["f", "g"])
def test_whole_calls_with_one_address_are_several(address: dict[str, int], second: str) -> None:
    made = calls(
        call(**address, name="f", arguments='{"n":1}'),
        call(**address, name=second, arguments='{"n":2}'),
    )

    assert [(block.name, block.arguments) for block in made] == [
        ("f", '{"n":1}'),
        (second, '{"n":2}'),
    ]


@pytest.mark.parametrize("address", [{}, {"index": 0}])
def test_another_name_begins_another_call(address: dict[str, int]) -> None:
    made = calls(call(**address, name="f"), call(**address, name="g", arguments="{}"))

    assert [(block.name, block.arguments) for block in made] == [("f", ""), ("g", "{}")]


def test_all_calls_numbered_zero_are_told_apart_by_id() -> None:
    made = calls(
        call(index=0, id="a", name="f", arguments=""),
        call(index=0, arguments="{}"),
        call(index=0, id="b", name="f", arguments=""),
        call(index=0, arguments="[]"),
    )

    assert made == (ToolCallBlock("a", "f", "{}"), ToolCallBlock("b", "f", "[]"))


def test_a_name_repeated_with_its_id_is_the_same_call() -> None:
    made = calls(
        call(index=0, id="a", name="f", arguments="{}"),
        call(index=0, id="a", name="f", arguments=" "),
    )

    assert made == (ToolCallBlock("a", "f", "{} "),)


# Quirk 4: parallel calls


def test_parallel_calls_may_be_interleaved() -> None:
    made = calls(
        call(index=0, id="a", name="f", arguments="{"),
        call(index=1, id="b", name="g", arguments="["),
        call(index=0, arguments="}"),
        call(index=1, arguments="]"),
    )

    assert made == (ToolCallBlock("a", "f", "{}"), ToolCallBlock("b", "g", "[]"))


# Quirk 5: arguments


@pytest.mark.parametrize("arguments", ["true", "", '{"cut', '{"a" : 1.0}'])
def test_arguments_are_kept_as_they_came(arguments: str) -> None:
    assert calls(call(index=0, id="a", name="f", arguments=arguments)) == (
        ToolCallBlock("a", "f", arguments),
    )


def test_arguments_as_an_object_become_its_text() -> None:
    assert calls(call(index=0, id="a", name="f", arguments={"b": 1})) == (
        ToolCallBlock("a", "f", '{"b":1}'),
    )


def test_a_call_that_max_tokens_cut_is_dropped() -> None:
    cut = delta(tool_calls=[call(index=0, id="a", arguments='{"cut')])

    result = answer(said("so"), cut, delta("length"), DONE)

    assert result.finish == "max-tokens"
    assert result.content == (TextBlock("so"),)


def test_a_call_without_a_name_in_a_complete_answer_is_malformed() -> None:
    chunks, code = failure_of(
        delta(tool_calls=[call(index=0, id="a", arguments="{}")]), delta("tool_calls"), DONE
    )

    assert code == "MALFORMED_RESPONSE"
    assert chunks == [BlockStart(0, "tool-call")]


def test_an_entry_that_says_nothing_makes_no_call() -> None:
    assert answer(delta(tool_calls=[{"index": 0}]), delta("stop"), DONE).content == ()


# Quirk 6: finish reasons


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stop", "stop"),
        ("length", "max-tokens"),
        ("content_filter", "content-filter"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("eos", "stop"),
        (None, "stop"),
    ],
)
def test_finish_reasons_without_calls(reason: str | None, kind: str) -> None:
    assert answer(said("a"), delta(reason), DONE).finish == kind


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "eos", None])
def test_calls_are_trusted_more_than_the_reason(reason: str | None) -> None:
    asked = delta(tool_calls=[call(index=0, id="a", name="f", arguments="{}")])

    assert answer(asked, delta(reason), DONE).finish == "tool-calls"


@pytest.mark.parametrize(
    ("reason", "code"),
    [("error", "SERVER"), ("abort", "SERVER"), ("insufficient_system_resource", "OVERLOADED")],
)
def test_a_server_that_gave_up_has_not_answered(reason: str, code: str) -> None:
    assert failure_of(said("half"), delta(reason), DONE)[1] == code


# Quirks 7 and 8: choices, content


@pytest.mark.parametrize("choices", [[], None])
def test_events_without_a_choice_say_nothing(choices: object) -> None:
    empty = event({"choices": choices, "prompt_filter_results": []})

    assert answer(empty, said("a"), delta("stop"), empty, DONE).content == (TextBlock("a"),)


def test_other_choices_than_the_first_are_left_out() -> None:
    other = event({"choices": [{"index": 1, "delta": {"content": "x"}}]})

    assert answer(said("a"), other, delta("stop"), DONE).content == (TextBlock("a"),)


def test_content_may_be_null_empty_absent_or_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "new"}, {"type": "text", "text": "b"}]

    result = answer(
        delta(role="assistant", content=None),
        delta(role="assistant", content=""),
        delta(role="assistant"),
        event({"choices": [{"delta": None}]}),
        delta(role="assistant", content=parts),
        delta("stop", role="assistant"),
        DONE,
    )

    assert result.content == (TextBlock("ab"),)


def test_a_refusal_is_text() -> None:
    assert answer(delta(refusal="No."), delta("stop"), DONE).content == (TextBlock("No."),)


# Quirks 9 and 10: usage


def usage_of(*found: object) -> Usage | None:
    events = [event({"choices": [], "usage": item}) for item in found]
    return answer(said("a"), delta("stop"), *events, DONE).usage


def test_the_last_usage_counts() -> None:
    assert usage_of({"prompt_tokens": 10, "completion_tokens": 1}, USAGE, None) == Usage(10, 3)


@pytest.mark.parametrize("found", [None, {}, {"prompt_tokens": None}])
def test_usage_that_nobody_reports_is_absent(found: object) -> None:
    assert usage_of(found) is None


def test_counts_do_not_overlap() -> None:
    found = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }

    assert usage_of(found) == Usage(10, 20, 60, 30, 15)


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}])
def test_unknown_counts_are_absent_and_not_zero(details: dict[str, Any]) -> None:
    assert usage_of({**USAGE, **details}) == Usage(10, 3)


def test_a_reported_zero_stays_zero() -> None:
    assert usage_of({**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}) == Usage(10, 3, 0)


def test_cached_tokens_under_their_other_name() -> None:
    found = {**USAGE, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2}

    assert usage_of(found) == Usage(2, 3, 8)


def test_more_cached_than_prompt_leaves_nothing_uncached() -> None:
    assert usage_of({**USAGE, "prompt_tokens_details": {"cached_tokens": 11}}) == Usage(0, 3, 11)


# Quirk 11: what is no event of the answer


@pytest.mark.parametrize(
    "noise",
    [
        b": keep-alive\n\n",
        b":\n\n",
        b": OPENROUTER PROCESSING\n\n",
        b"\n\n",
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b"event: ping\ndata: now\n\n",
    ],
)
def test_keep_alives_are_no_part_of_the_answer(noise: bytes) -> None:
    result = answer(noise, said("a"), noise, said("b"), delta("stop"), noise, DONE, noise)

    assert result.content == (TextBlock("ab"),)


# Quirk 12: errors inside the stream


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (event({"error": {"code": 429, "message": "slow down"}}), "RATE_LIMIT"),
        (event({"error": {"code": 502, "message": "x"}, "choices": []}), "SERVER"),
        (event({"error": "quota", "type": "insufficient_quota"}), "QUOTA"),
        (event({"object": "error", "message": "m", "type": "invalid_request_error"}), None),
        (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', None),
        (b"event: error\ndata: it broke\n\n", "SERVER"),
    ],
)
@pytest.mark.parametrize("before", [[], [said("a")]])
def test_errors_in_the_stream_are_failures(
    raw: bytes, code: str | None, before: list[bytes]
) -> None:
    expected = code or ("OVERLOADED" if b"overloaded" in raw else "INVALID_REQUEST")

    assert failure_of(*before, raw, DONE)[1] == expected


def test_a_null_error_is_none() -> None:
    fine = event({"error": None, "choices": [{"delta": {"content": "a"}}]})

    assert answer(fine, delta("stop"), DONE).content == (TextBlock("a"),)


def test_text_that_came_with_an_error_is_not_lost() -> None:
    decoder = ChatDecoder()

    chunks = decoder.feed(said("a") + event({"error": {"message": "no"}}))

    assert chunks == [BlockStart(0, "text"), TextDelta(0, "a")]
    assert decoder.failure is not None
    with pytest.raises(LlmFailure, match="no"):
        decoder.feed(said("b"))
    with pytest.raises(LlmFailure, match="no"):
        decoder.close()


# Quirk 13: ends


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [said("a")],
        [said("a"), delta("stop")],
        [said("a"), event({"choices": [], "usage": USAGE})],
        [said("a"), delta("stop"), b"data: [DON"],
        [said("a"), b'data: {"choices":[{"del'],
        [said("a"), said("b").removesuffix(b"\n\n")],
        [said("a"), b'event: error\ndata: {"mess'],
    ],
)
def test_a_stream_that_just_ends_was_cut(pieces: list[bytes]) -> None:
    chunks, code = failure_of(*pieces)

    assert code == "STREAM_CLOSED"
    assert not any(isinstance(chunk, BlockEnd | UsageChunk | Finish) for chunk in chunks)


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE]\r\n\r\n"])
def test_the_terminal_event_may_lack_its_blank_line(last: bytes) -> None:
    assert answer(said("a"), delta("stop"), last).finish == "stop"


def test_reason_and_usage_end_an_answer_without_done() -> None:
    result = answer(said("a"), delta("stop"), event({"choices": [], "usage": USAGE}))

    assert (result.finish, result.usage) == ("stop", Usage(10, 3))


@pytest.mark.parametrize("data", [b"{broken", b"[]", b"1", b"null", b"[" * 100_000])
def test_an_event_that_cannot_be_read_is_malformed(data: bytes) -> None:
    assert failure_of(b"data: " + data + b"\n\n")[1] == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("odd", [{"choices": 1}, {"choices": [1]}, {"choices": [{"delta": []}]}])
def test_events_of_odd_shapes_say_nothing(odd: object) -> None:
    assert answer(event(odd), delta("stop"), DONE).content == ()


# Quirk 17: bytes


def test_a_character_may_be_split_between_reads() -> None:
    raw = said("é漢🙂") + delta("stop") + DONE

    assert answer(*(raw[i : i + 1] for i in range(len(raw)))).content == (TextBlock("é漢🙂"),)


def test_lines_may_end_in_crlf_and_data_may_take_several() -> None:
    raw = b'data:{"choices":\r\ndata:[{"delta":{"content":"a"}}]}\r\n\r\ndata:[DONE]\r\n\r\n'

    assert answer(raw).content == (TextBlock("a"),)


def test_lone_surrogates_are_replaced_and_pairs_are_kept() -> None:
    raw = rb'data: {"choices":[{"delta":{"content":"a\ud800b\ud83d\ude42"}}]}' + b"\n\n"

    assert answer(raw, delta("stop"), DONE).content == (TextBlock("a\ufffdb🙂"),)


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a\xffb"}}]}\n\n'

    assert answer(raw, delta("stop"), DONE).content == (TextBlock("a\ufffdb"),)


def test_numbers_that_json_does_not_know_are_null() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}\n\n'

    assert answer(raw, delta("stop"), DONE).content == (TextBlock("a"),)


# Quirk 18: what goes back


def test_unknown_fields_of_calls_are_kept_by_their_final_ids() -> None:
    signed = {"google": {"thought_signature": "abc+/="}}
    chunks = decode(
        delta(tool_calls=[call(index=0, name="f", arguments="{}", extra_content=signed)]),
        delta(tool_calls=[{"index": 0, "extra_content": None, "type": "function"}]),
        delta("stop"),
        DONE,
    )

    assert chunks[-1] == Finish(
        FinishReason("tool-calls"), Json.of({"tool_calls": {"call-1": {"extra_content": signed}}})
    )


def test_fields_that_no_log_can_hold_are_malformed() -> None:
    asked = b'{"index":0,"id":"a","function":{"name":"f"},"odd":-0.0}'
    raw = b'data: {"choices":[{"delta":{"tool_calls":[' + asked + b"]}}]}\n\n"

    assert failure_of(raw, delta("stop"), DONE)[1] == "MALFORMED_RESPONSE"


# Quirk 19: names of reasoning


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"reasoning_content": None, "reasoning": "hm"},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}, {"data": "x"}]},
    ],
)
def test_reasoning_under_each_of_its_names(fields: dict[str, Any]) -> None:
    result = answer(delta(content="", **fields), said("a"), delta("stop"), DONE)

    assert result.content == (ReasoningBlock("hm"), TextBlock("a"))
    assert result.replay_state == Json.of({"reasoning_content": "hm"})


def test_text_and_reasoning_are_one_block_each_however_they_alternate() -> None:
    result = answer(
        delta(reasoning="r1"), said("t1"), delta(reasoning="r2"), said("t2"), delta("stop"), DONE
    )

    assert result.content == (ReasoningBlock("r1r2"), TextBlock("t1t2"))


# Quirks 20, 21, 22


def test_unknown_events_and_fields_are_ignored() -> None:
    result = answer(
        b'event: later\ndata: {"a":1}\n\n',
        event({"timings": {}, "prompt_progress": {}, "choices": [{"delta": {"annotations": []}}]}),
        said("a"),
        delta("stop"),
        DONE,
    )

    assert result.content == (TextBlock("a"),)


def test_an_empty_answer_is_an_answer() -> None:
    assert decode(delta("stop"), DONE) == [Finish(FinishReason("stop"))]


def test_the_model_may_have_another_name() -> None:
    named = event({"model": "other", "choices": [{"delta": {"content": "a"}}]})

    assert answer(named, delta("stop"), DONE).content == (TextBlock("a"),)


# Any split

# What llama.cpp sent for a short answer with reasoning; the parts that repeat are written once.
_SAME = (
    '"created":1796031899,"id":"chatcmpl-k8BxiQSN6ZjqkuyU9vc1DSenLvkwGsrr","model":"tiny",'
    '"system_fingerprint":"b0-unknown","object":"chat.completion.chunk"'
)
_CHOICES = [
    '{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}',
    '{"finish_reason":null,"index":0,"delta":{"reasoning_content":"K"}}',
    '{"finish_reason":null,"index":0,"delta":{"reasoning_content":"G"}}',
    '{"finish_reason":null,"index":0,"delta":{"content":"h"}}',
    '{"finish_reason":"stop","index":0,"delta":{}}',
]
_COUNTS = (
    '"usage":{"completion_tokens":5,"prompt_tokens":432,"total_tokens":437,'
    '"prompt_tokens_details":{"cached_tokens":400}},"timings":{"cache_n":400,"prompt_n":32,'
    '"prompt_ms":8.785,"prompt_per_token_ms":0.27453125,"prompt_per_second":3642.5725668753557,'
    '"predicted_n":5,"predicted_ms":2.565,"predicted_per_token_ms":0.64125,'
    '"predicted_per_second":1559.4541910331384}'
)
RECORDED = "".join(
    [f'data: {{"choices":[{choice}],{_SAME}}}\n\n' for choice in _CHOICES]
    + [f'data: {{"choices":[],{_SAME},{_COUNTS}}}\n\n', "data: [DONE]\n\n"]
).encode()


def test_a_recorded_answer() -> None:
    assert answer(RECORDED) == Assembled(
        (ReasoningBlock("KG"), TextBlock("h")),
        "stop",
        Usage(32, 5, 400),
        Json.of({"reasoning_content": "KG"}),
    )


STREAMS = [
    RECORDED,
    delta(role="assistant", content=None)
    + delta(reasoning_content="hm é")
    + b": keep-alive\r\n\r\n"
    + said("Grüße 🙂")
    + delta(tool_calls=[call(index=0, id="a", name="f", arguments='{"ü":')])
    + delta(tool_calls=[call(index=1, name="g", arguments="{}"), call(index=0, arguments="1}")])
    + delta("tool_calls")
    + event({"choices": [], "usage": USAGE})
    + DONE,
    said("a") + said("b") + event({"error": {"message": "no"}}) + said("c"),
    said("a") + b"data: {broken\n\n" + DONE,
    said("a") + delta("stop"),
    said("a") + delta("stop") + event({"usage": USAGE}),
]


def outcome(pieces: Iterable[bytes]) -> tuple[list[Chunk], str | None]:
    decoder = ChatDecoder()
    chunks: list[Chunk] = []
    try:
        for piece in pieces:
            chunks += decoder.feed(piece)
        chunks += decoder.close()
    except LlmFailure as error:
        return chunks, str(error)
    return chunks, None


@given(st.sampled_from(STREAMS), st.data())
def test_any_split_of_a_stream_decodes_the_same(raw: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8))
    edges = [0, *sorted(cuts), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(edges)]

    assert outcome(pieces) == outcome([raw])


@given(st.binary(max_size=200) | st.lists(st.sampled_from(STREAMS)).map(b"".join))
def test_no_bytes_make_anything_but_chunks_or_a_failure(raw: bytes) -> None:
    chunks, _ = outcome([raw, b"\n\ndata: ", raw])

    content: tuple[Block, ...] = tuple(
        chunk.block for chunk in chunks if isinstance(chunk, BlockEnd) and chunk.block is not None
    )
    assert len(content) == sum(isinstance(chunk, BlockEnd) for chunk in chunks)
