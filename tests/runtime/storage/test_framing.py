from __future__ import annotations

import orjson
import pytest

from refold.runtime.errors import IdMismatch, InvalidHeader, InvalidSessionId, UnsupportedVersion
from refold.runtime.storage import (
    SessionHeader,
    check_session_id,
    frame_batch,
    frame_header,
    parse_header,
    scan,
)
from refold.runtime.storage.walk import LogEnd

VECTOR = """\
{"crc":"d36c5e6e","type":"session","version":0,"id":"demo","createdAt":1760000000000,"durability":"power"}
{"crc":"63f70e33","dur":-1,"type":"turn/start","seq":0,"time":1760000000001,"data":{"turn":1,"trigger":{"kind":"message","source":{"kind":"user"}}}}
{"crc":"fbb42afa","dur":-1,"left":1,"type":"user/message","seq":1,"time":1760000000002,"data":{"content":[{"type":"text","text":"h\u00e9"}],"source":{"kind":"user"}},"surfaceOp":"append"}
{"crc":"645f5502","dur":-1,"type":"step/start","seq":2,"time":1760000000002,"data":{"turn":1,"step":1}}
""".encode()

TURN = b'{"type":"turn/start","seq":0,"time":1760000000001,"data":{"turn":1,"trigger":{"kind":"message","source":{"kind":"user"}}}}'  # noqa: E501 - as above
MESSAGE = '{"type":"user/message","seq":1,"time":1760000000002,"data":{"content":[{"type":"text","text":"h\u00e9"}],"source":{"kind":"user"}},"surfaceOp":"append"}'.encode()  # noqa: E501 - as above
STEP = b'{"type":"step/start","seq":2,"time":1760000000002,"data":{"turn":1,"step":1}}'


def test_a_log_is_framed_byte_for_byte_as_the_format_says() -> None:
    header = frame_header(SessionHeader("demo", 1_760_000_000_000, durability="power"))
    first, chain = frame_batch([TURN], 0, -1)
    second, chain = frame_batch([MESSAGE, STEP], chain, -1)
    assert header + first + second == VECTOR
    assert chain == 0x645F5502


def test_what_was_framed_comes_back_without_its_framing() -> None:
    found = scan(VECTOR, "demo", path="demo.jsonl")
    assert [record.encoded for record in found.records] == [TURN, MESSAGE, STEP]
    assert [(record.seq, record.dur, record.left) for record in found.records] == [
        (0, -1, 0),
        (1, -1, 1),
        (2, -1, 0),
    ]
    for record in found.records:
        line = VECTOR[record.offset : record.offset + record.length]
        assert line.endswith(b"}\n")
        assert line[8:16].decode() == record.crc
    assert (found.end, found.torn) == (LogEnd(3, len(VECTOR), 0x645F5502, -1), None)


def test_left_counts_down_within_a_batch_and_is_absent_at_its_end() -> None:
    lines, _ = frame_batch([TURN, MESSAGE, STEP], 0, -1)
    assert [orjson.loads(line).get("left") for line in lines.splitlines()] == [2, 1, None]


def test_a_type_with_escapes_is_read_as_its_text() -> None:
    odd = b'{"type":"a\\"\\u0001\\\\b","seq":0,"time":1,"data":null}'
    lines, _ = frame_batch([odd], 0, -1)
    found = scan(frame_header(SessionHeader("demo", 1)) + lines, "demo", path="p")
    assert found.records[0].type == 'a"\x01\\b'
    assert found.records[0].encoded == odd


def test_every_header_field_survives_the_round_trip() -> None:
    header = SessionHeader(
        id="a-b_C9",
        created_at=5,
        cwd="/home/\u00e9",
        parent_session="p",
        seed_length=3,
        seed_crc="0123abcd",
        delegation_depth=2,
        name="n",
        durability="process",
    )
    record = orjson.loads(frame_header(header))
    assert list(record) == [
        "crc", "type", "version", "id", "createdAt", "cwd", "parentSession", "seedLength",
        "seedCrc", "delegationDepth", "name", "durability",
    ]  # fmt: skip
    del record["crc"]
    assert parse_header(record, "a-b_C9") == header


@pytest.mark.parametrize(
    "bad", ["", "a" * 65, ".b", "-", "../a", "a/b", "a\n", "\u00e9", "a b", "-\x00"]
)
def test_ids_that_could_be_paths_are_refused(bad: str) -> None:
    with pytest.raises(InvalidSessionId):
        check_session_id(bad)


def test_ids_of_every_allowed_character_and_length_pass() -> None:
    allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz012345_@.:-"
    assert check_session_id(allowed[:64]) == allowed[:64]
    assert check_session_id("9:-.@_") == "9:-.@_"


def _record(**changes: object) -> dict[str, object]:
    record: dict[str, object] = {"type": "session", "version": 0, "id": "demo", "createdAt": 1}
    record.update(changes)
    return {key: value for key, value in record.items() if value is not ...}


@pytest.mark.parametrize("version", [1, -1, "0", 0.0, True, False, None, ...])
def test_any_version_but_0_is_refused(version: object) -> None:
    with pytest.raises(UnsupportedVersion):
        parse_header(_record(version=version), "demo")


def test_a_newer_version_is_told_from_an_unknown_one() -> None:
    with pytest.raises(UnsupportedVersion, match="newer refold"):
        parse_header(_record(version=1), "demo")
    with pytest.raises(UnsupportedVersion, match="no upgrade path"):
        parse_header(_record(version=-1), "demo")


def test_a_header_of_another_session_is_refused() -> None:
    with pytest.raises(IdMismatch):
        parse_header(_record(id="other"), "demo")


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "turn/start"},
        {"createdAt": ...},
        {"createdAt": "1"},
        {"cwd": None},
        {"durability": "maybe"},
        {"extra": 1},
    ],
)
def test_a_header_of_another_shape_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidHeader):
        parse_header(_record(**changes), "demo")


def test_a_header_with_an_id_that_could_be_a_path_is_refused() -> None:
    with pytest.raises(InvalidSessionId):
        parse_header(_record(id="../x"), None)
    with pytest.raises(InvalidSessionId):
        parse_header(_record(parentSession="../x"), "demo")


def test_a_foreign_header_takes_the_id_that_was_asked_for() -> None:
    record = _record(id="{{sessionId}}", version=..., unheard="of")
    assert parse_header(record, "mine", foreign=True) == SessionHeader("mine", 1)
    with pytest.raises(UnsupportedVersion):
        parse_header(_record(version=2), "mine", foreign=True)
