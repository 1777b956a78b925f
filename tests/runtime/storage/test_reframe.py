"""Foreign events in our order, with the bytes of their data as they were."""

from __future__ import annotations

import pytest

from refold.runtime.envelope import decode_line
from refold.runtime.errors import InvalidEvent
from refold.runtime.storage.framing import read_envelope
from refold.runtime.storage.reframe import event_bytes
from tests import golden

DATA = '{ "a" : [1.50, 1e3, 12345678901234567890123, "\\u00e9é\\"}{", {}], "b":\t{"data": 1} }'


@pytest.mark.parametrize(
    "line",
    [
        '{{"type": "x", "seq": 0, "time": 5, "data": {data}}}',
        '{{"data":{data},"time":5,"seq":0,"type":"x"}}',
        ' {{ "data" : {data} , "time" : 5 , "seq" : 0 , "type" : "x" }} \r',
        '{{"type":"x","seq":0,"data":{data},"time":5}}',
        '{{"type":"\\u0078","seq":0,"time":5,"data":{data}}} ',
        '{{"data":"an earlier double","type":"x","time":5,"seq":0,"data":{data}}}',
        '{{"seq":9,"type":"x","time":5,"data":{data},"seq":0}}',
    ],
)
def test_the_envelope_is_put_in_order_and_the_data_kept_byte_for_byte(line: str) -> None:
    event = decode_line(line.format(data=DATA).encode())
    expected = '{"type":"x","seq":0,"time":5,"data":' + DATA + "}"
    assert event_bytes(event) == expected.encode()
    assert decode_line(event_bytes(event)).data == event.data


def test_surface_fields_follow_the_data() -> None:
    data = '{"content": [], "source": {"kind": "user"}}'
    op = '{"end": 2, "op": "replace", "start": 1}'
    rest = f'"type":"user/message","seq":3,"time":5,"data":{data}'
    line = f'{{"surfaceOp":{op},"sourceEventSeqs":[1, 2],{rest}}}'
    assert (
        event_bytes(decode_line(line.encode()))
        == (
            f'{{"type":"user/message","seq":3,"time":5,"data":{data},"sourceEventSeqs":[1,2],'
            '"surfaceOp":{"op":"replace","start":1,"end":2}}'
        ).encode()
    )


def test_a_line_that_is_in_order_keeps_every_byte() -> None:
    line = b'{"type":"x","seq":0,"time":5,"data":{ "a": 1 } }'
    assert event_bytes(decode_line(line)) == line
    for lines in golden.logs("recorded-logs.tar.gz").values():
        for stored in lines[1:50]:
            try:
                event = decode_line(stored)
            except InvalidEvent:
                continue
            assert event_bytes(event) == stored


@pytest.mark.parametrize("type_", ["a\u2028b", 'quote"', "back\\slash", "\x01", "é"])
def test_any_type_can_be_framed(type_: str) -> None:
    quoted = "".join(f"\\u{ord(char):04x}" for char in type_)
    event = decode_line(f'{{"type":"{quoted}","seq":0,"time":5,"data":null}}'.encode())
    assert read_envelope(event_bytes(event)) == (type_, 0)


@pytest.mark.parametrize("data", ["-0.0", '[[1, {"x": -0.0}]]', "[" * 250 + "]" * 250])
def test_data_that_would_not_come_back_is_refused_with_its_path(data: str) -> None:
    event = decode_line(f'{{"type":"x","seq":4,"time":5,"data":{data}}}'.encode())
    with pytest.raises(InvalidEvent, match="at seq 4 cannot be kept without loss: data"):
        event_bytes(event)
