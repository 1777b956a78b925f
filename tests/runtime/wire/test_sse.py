"""Server-sent events: lines, fields, and splits anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.wire.sse import SseEvent, SseSplitter


def split(*pieces: bytes) -> list[SseEvent]:
    splitter = SseSplitter()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return events + splitter.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_ends_a_line(end: bytes) -> None:
    assert split(b"data: a" + end + end + b"data: b" + end + end) == [
        SseEvent(b"a"),
        SseEvent(b"b"),
    ]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    assert split(b"data: a\r", b"\ndata: b\r\n\r\n") == [SseEvent(b"a\nb")]


def test_an_event_comes_with_its_blank_line_and_not_before() -> None:
    splitter = SseSplitter()

    assert splitter.feed(b"data: a\n") == []
    assert splitter.feed(b"\n") == [SseEvent(b"a")]


def test_several_data_lines_are_one_event() -> None:
    assert split(b"data: a\ndata:b\ndata\n\n") == [SseEvent(b"a\nb\n")]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert split(b"data:a\n\ndata:  b\n\n") == [SseEvent(b"a"), SseEvent(b" b")]


def test_comments_other_fields_and_events_without_data_are_left_out() -> None:
    raw = (
        b": keep-alive\n\n:\n\n: OPENROUTER PROCESSING\n\nid: 1\nretry: 2\nevent: x\n\ndata: a\n\n"
    )

    assert split(raw) == [SseEvent(b"a")]


def test_a_name_belongs_to_its_event_alone() -> None:
    assert split(b"event: error\ndata: a\n\ndata: b\n\n") == [
        SseEvent(b"a", "error"),
        SseEvent(b"b"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert split(b"\xef\xbb", b"\xbfdata: a\n\n") == [SseEvent(b"a")]


def test_the_end_completes_the_last_event() -> None:
    assert split(b"data: a\n\ndata: [DONE]") == [SseEvent(b"a"), SseEvent(b"[DONE]")]


@given(
    st.lists(
        st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b"event: n", b": c", b"\xc3\xa9"])
    ),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_any_split_gives_the_same_events(parts: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(parts)
    edges = [0, *sorted(cuts), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(edges)]

    assert split(*pieces) == split(raw)
