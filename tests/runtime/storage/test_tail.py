from __future__ import annotations

import mmap
import zlib

import pytest

from refold.runtime.errors import InvalidHeader, LegacyEvent, RefoldError
from refold.runtime.storage import LogCorrupt, NotFound, Scan, Torn, scan
from refold.runtime.storage.scan import TornReason
from refold.runtime.storage.session_header import HEADER_BYTES
from tests.runtime.storage.logs import HEADER, batches, event, framed

SIZES = [1, 3, 2, 1, 2]


def _scan(data: bytes) -> Scan:
    return scan(data, "demo", path="demo.jsonl")


def _encoded(found: Scan) -> list[bytes]:
    return [record.encoded for record in found.records]


def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n")[:-1]


def _join(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def test_a_log_cut_at_any_byte_keeps_its_whole_batches_and_reports_the_rest() -> None:
    made = batches(SIZES)
    data, ends = framed(made)
    for size in range(len(data) + 1):
        if size < ends[0]:
            with pytest.raises(NotFound) as caught:
                _scan(data[:size])
            assert caught.value.found_bytes == size
            continue
        kept = max(index for index, end in enumerate(ends) if end <= size + 1)
        found = _scan(data[:size])
        assert _encoded(found) == [encoded for batch in made[:kept] for encoded in batch]
        assert found.end.offset == ends[kept]
        assert found.torn == _expected_tear(data[:size], ends[kept])


def _expected_tear(data: bytes, end: int) -> Torn | None:
    if len(data) == end:
        return None
    if len(data) == end - 1:
        return Torn(end - 1, 0, 0, "missing-newline", missing_newline=True)
    dropped = data[end:]
    records = dropped.rstrip(b"\n").count(b"\n") + 1
    reason: TornReason = "incomplete-batch" if dropped.endswith(b"\n") else "partial"
    return Torn(end, len(dropped), records, reason)


def test_no_flipped_bit_is_accepted_in_silence() -> None:
    data, _ = framed(batches(SIZES))
    whole = _encoded(_scan(data))
    outcomes = {"refused": 0, "torn": 0}
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = _scan(bytes(damaged))
        except RefoldError:
            outcomes["refused"] += 1
            continue
        assert found.torn is not None, bit
        assert not found.foreign, bit
        assert len(found.records) < len(whole) or found.torn.missing_newline, bit
        assert _encoded(found) == whole[: len(found.records)], bit
        # The last two batches alone can look torn: nothing sound is behind them to say otherwise.
        assert len(found.records) >= sum(SIZES[:-2]), bit
        outcomes["torn"] += 1
    assert outcomes["refused"] > outcomes["torn"] > 0


def test_a_bad_record_that_a_later_one_calls_durable_is_corruption() -> None:
    data, ends = framed(batches([1, 1, 1]))  # the last one names just the bad seq as durable
    damaged = data[: ends[1] + 40] + b"#" + data[ends[1] + 41 :]
    with pytest.raises(LogCorrupt) as caught:
        _scan(damaged)
    error = caught.value
    assert (error.path, error.offset, error.line) == ("demo.jsonl", ends[1], 3)
    assert error.expected_seq == 1
    assert error.readable is not None
    assert len(error.readable.records) == 1
    assert "restore the file" in str(error)


@pytest.mark.parametrize("newline", [b"\n", b""])
@pytest.mark.parametrize("at", [8, 40])
def test_one_record_behind_a_bad_one_is_believed_by_what_the_bad_one_was(
    at: int, newline: bytes
) -> None:
    """Damaged may be what it says or its checksum; nor does a witness need its newline."""
    data, ends = framed(batches([1, 1, 1]))
    place = ends[1] + at
    for digit in b"#", b"f" if data[place : place + 1] == b"0" else b"0":
        with pytest.raises(LogCorrupt) as caught:
            _scan(data[:place] + digit + data[place + 1 : -1] + newline)
        assert caught.value.expected_seq == 1
        assert "and seq 2 says it was durable" in caught.value.found


def test_a_later_record_that_is_bad_itself_is_no_witness() -> None:
    data, ends = framed(batches([1, 1, 1, 1]))
    damaged = bytearray(data)
    for start in ends[1:-1]:
        damaged[start + 40] ^= 1
    assert _scan(bytes(damaged)).torn == Torn(ends[1], len(data) - ends[1], 3, "bad-crc")


def test_a_bad_record_that_no_later_one_calls_durable_is_a_torn_tail() -> None:
    data, ends = framed(batches([1, 1, 1, 1]), synced=False)
    damaged = data[: ends[1] + 40] + b"#" + data[ends[1] + 41 :]
    found = _scan(damaged)
    assert found.torn == Torn(ends[1], len(data) - ends[1], 3, "bad-crc")
    assert len(found.records) == 1


@pytest.mark.parametrize("synced", [True, False])
def test_swapped_deleted_and_doubled_lines_break_the_chain(synced: bool) -> None:
    data, _ = framed(batches([1] * 8), synced=synced)
    lines = _lines(data)
    changed = []
    for place in range(1, len(lines)):
        for other in range(place + 1, len(lines)):
            swapped = list(lines)
            swapped[place], swapped[other] = lines[other], lines[place]
            changed.append(swapped)
        changed.append([*lines[: place + 1], *lines[place:]])
        if place < len(lines) - 1:
            changed.append(lines[:place] + lines[place + 1 :])
    for damaged in changed:
        try:
            found = _scan(_join(damaged))
        except LogCorrupt:
            continue
        assert found.torn is not None
        assert _join(lines).startswith(_join(damaged)[: found.torn.offset])
        if synced:
            assert len(found.records) >= 4  # two swapped near the end leave no sound pair


def test_a_record_of_another_session_does_not_fit() -> None:
    data, ends = framed(batches([1, 1]))
    other, _ = framed([[event(0, text="another")], [event(1)]])
    found = _scan(data[: ends[1]] + _lines(other)[2] + b"\n")
    assert found.torn is not None
    assert len(found.records) == 1


@pytest.mark.parametrize("zeros", [1, 511, 4096])
def test_zeros_at_the_end_are_a_torn_tail(zeros: int) -> None:
    data, _ = framed(batches(SIZES))
    found = _scan(data + bytes(zeros))
    assert found.torn == Torn(len(data), zeros, 0, "nul-tail")
    assert len(found.records) == sum(SIZES)


def test_a_whole_last_record_before_zeros_is_kept() -> None:
    data, _ = framed(batches(SIZES))
    found = _scan(data[:-1] + bytes(100))
    assert found.torn == Torn(len(data) - 1, 100, 0, "missing-newline", missing_newline=True)
    assert len(found.records) == sum(SIZES)
    assert found.end.offset == len(data)


def test_zeros_amid_a_batch_that_was_never_durable_are_a_torn_tail() -> None:
    data, ends = framed(batches([1, 1, 6]))
    damaged = data[: ends[2] + 100] + bytes(64) + data[ends[2] + 164 :]
    found = _scan(damaged)
    assert len(found.records) == 2
    assert found.torn is not None
    assert found.torn.offset == ends[2]


@pytest.mark.parametrize("rest", [b"x", b"\0x\0", b"x\0"])
def test_what_is_not_all_zeros_was_begun(rest: bytes) -> None:
    data, ends = framed(batches(SIZES))
    assert _scan(data + rest).torn == Torn(len(data), len(rest), 0, "partial")
    unended = _scan(data[:-1] + rest)
    if rest.rstrip(b"\0"):
        assert unended.torn == Torn(ends[-2], len(data) - 1 + len(rest) - ends[-2], 2, "partial")


def test_what_stands_in_an_unended_line_behind_good_ones_is_no_witness() -> None:
    data, ends = framed(batches([1, 1, 1]))
    last = data[ends[2] : -1]
    assert _scan(data[: ends[2]] + b"x" + last).torn == Torn(ends[2], len(last) + 1, 0, "partial")


def test_a_file_of_zeros_never_held_an_event() -> None:
    with pytest.raises(NotFound):
        _scan(bytes(1000))
    with pytest.raises(NotFound):
        _scan(bytes(512) + b'rest of a first batch"}\n')


def test_a_bad_header_before_a_believable_record_is_corruption() -> None:
    data, ends = framed(batches([1, 1, 1]))
    for damaged in (bytes(ends[0] - 1) + data[ends[0] - 1 :], b"x" + data[1:], data[5:]):
        with pytest.raises(LogCorrupt) as caught:
            _scan(damaged)
        assert caught.value.expected_seq is None


def test_one_believable_record_is_enough_to_tell_of_a_bad_header() -> None:
    data, ends = framed(batches([1]))
    for damaged in (
        bytes(ends[0] - 1) + data[ends[0] - 1 :],
        bytes(ends[0]) + data[ends[0] - 1 : -1],
    ):
        with pytest.raises(LogCorrupt):
            _scan(damaged)


def refused_header(data: bytes) -> str:
    with pytest.raises(LogCorrupt) as caught:
        _scan(data)
    error = caught.value
    assert (error.path, error.offset, error.line, error.expected_seq) == ("demo.jsonl", 0, 1, None)
    return error.found


def test_a_first_line_without_an_end_is_a_header_only_while_there_may_be_more_of_it() -> None:
    for size in (0, 1, HEADER_BYTES - 1):
        with pytest.raises(NotFound):
            _scan(b"x" * size)
    for size in (HEADER_BYTES, HEADER_BYTES + 1):
        unended = f"no end of a line within {HEADER_BYTES} bytes"
        assert refused_header(b"x" * size) == unended
        assert refused_header(b"x" * size + b"\n") == unended
    assert refused_header(b"\n") == "a damaged line"
    assert refused_header(b"x\n") == "a damaged line"
    assert refused_header(b"\n" + framed(batches([1]))[0]) == "a damaged line"


def test_a_file_that_starts_with_an_event_is_refused() -> None:
    data, ends = framed(batches([1, 1]))
    with pytest.raises(InvalidHeader):
        _scan(data[ends[0] :])


def test_a_header_with_a_wrong_checksum_is_corruption_even_alone() -> None:
    data, _ends = framed([])
    with pytest.raises(LogCorrupt):
        _scan(data.replace(b'"demo"', b'"dEmo"'))
    assert len(_scan(data).records) == 0


@pytest.mark.parametrize("change", [b"\r\n", b"\n\n", b" \n"])
def test_bytes_between_lines_are_never_skipped(change: bytes) -> None:
    data, _ = framed(batches([1, 1, 1, 1]))
    with pytest.raises(LogCorrupt):
        _scan(data.replace(b"\n", change))


def test_lines_end_at_one_byte_only() -> None:
    odd = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei"
    data, _ = framed([[event(0, text=odd)], [event(1, text=odd)]])
    assert "\u2028".encode() in data
    found = _scan(data)
    assert len(found.records) == 2
    assert found.torn is None


def _forged(*bodies: bytes) -> bytes:
    data, _ = framed([])
    crc = 0
    for body in bodies:
        crc = zlib.crc32(body, crc)
        data += b'{"crc":"%08x"%b\n' % (crc, body)
    return data


@pytest.mark.parametrize(
    ("bodies", "found"),
    [
        ([b',"dur":-1,"type":"t","seq":1,"time":1,"data":1}'], "seq 1"),
        ([b',"dur":-1,"type":"t","seq":0,"time":1,"data":1}'] * 2, "seq 0"),
        ([b',"dur":0,"type":"t","seq":0,"time":1,"data":1}'], "dur 0"),
        (
            [
                b',"dur":-1,"type":"t","seq":0,"time":1,"data":1}',
                b',"dur":0,"type":"t","seq":1,"time":1,"data":1}',
                b',"dur":-1,"type":"t","seq":2,"time":1,"data":1}',
            ],
            "dur -1 after 0",
        ),
        (
            [
                b',"dur":-1,"left":2,"type":"t","seq":0,"time":1,"data":1}',
                b',"dur":-1,"type":"t","seq":1,"time":1,"data":1}',
            ],
            "owed 2",
        ),
        ([b',"type":"t","seq":0,"time":1,"data":1}'], "no framed event"),
        ([b',"dur":-1,"left":0,"type":"t","seq":0,"time":1,"data":1}'], "no framed event"),
    ],
)
def test_a_sound_checksum_does_not_excuse_wrong_counting(bodies: list[bytes], found: str) -> None:
    with pytest.raises(LogCorrupt, match=found):
        _scan(_forged(*bodies))


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("request/header-delta", {"delta": {}}),
        ("request/header", {"header": {}, "reason": "delta"}),
        ("request/header", {"header": {}}),
    ],
)
def test_header_vocabulary_that_was_given_up_is_refused(
    type_: str, data: dict[str, object]
) -> None:
    log, _ = framed([[event(0)], [event(1, type_, **data)], [event(2)]])
    with pytest.raises(LegacyEvent) as caught:
        _scan(log)
    assert caught.value.seq == 1


def test_a_bad_request_header_is_refused_behind_a_good_one_too() -> None:
    good = event(0, "request/header", header={}, reason="initial")
    bad = event(1, "request/header", header={}, reason="delta")
    log, _ = framed([[good], [bad]], synced=False)
    with pytest.raises(LegacyEvent):
        _scan(log)


def test_a_request_header_that_is_no_json_is_refused_for_all_its_checksum() -> None:
    with pytest.raises(LogCorrupt, match="no JSON"):
        _scan(_forged(b',"dur":-1,"type":"request/header","seq":0,"time":1,"data":}'))


def test_a_full_request_header_passes() -> None:
    log, _ = framed([[event(0, "request/header", header={}, reason="change")]])
    assert len(_scan(log).records) == 1


def test_the_last_owner_is_known_and_whether_it_released_the_session() -> None:
    owner = event(1, "session/owner", term=3, owner={"host": "h", "pid": 7, "boot": "b"})
    log, _ = framed([[event(0)], [owner], [event(2)]])
    last = _scan(log).last_owner()
    assert last is not None
    assert last.owner.owner is not None
    assert (last.owner.term, last.owner.owner.pid) == (3, 7)
    assert (last.since, last.released) == (1_760_000_000_001, False)
    log, _ = framed([[event(0)], [owner], [event(2, "session/released", term=3, reason="stop")]])
    last = _scan(log).last_owner()
    assert last is not None
    assert last.released


def test_an_owner_in_a_torn_batch_is_not_the_last_owner() -> None:
    first = event(0, "session/owner", term=1, owner={"host": "h", "pid": 7, "boot": "b"})
    second = event(1, "session/owner", term=2, owner={"host": "h", "pid": 8, "boot": "b"})
    log, _ = framed([[first], [second, event(2)]])
    last = _scan(log[:-9]).last_owner()
    assert last is not None
    assert last.owner.term == 1


def test_an_owner_of_another_shape_is_no_owner() -> None:
    released = event(1, "session/released", term=1, reason="stop")
    log, _ = framed([[event(0, "session/owner", who="me"), released]])
    assert _scan(log).last_owner() is None
    broken = b',"dur":-1,"type":"session/owner","seq":0,"time":1,"data":}'
    assert _scan(_forged(broken)).last_owner() is None


def test_records_of_some_types_are_found_without_the_others() -> None:
    types = ["a", "b", "a", "c", "b"]
    data, _ = framed([[event(seq, type_) for seq, type_ in enumerate(types)]])
    assert [record.seq for record in _scan(data).select({"a", "c", "z"})] == [0, 2, 3]
    assert [record.seq for record in _scan(FOREIGN).select({"turn/end"})] == [1]


def test_records_are_a_sequence() -> None:
    data, _ = framed(batches([3, 2]))
    records = _scan(data).records
    assert records[-1].seq == 4
    assert [record.seq for record in records[1:3]] == [1, 2]
    assert [record.seq for record in reversed(records)] == [4, 3, 2, 1, 0]
    with pytest.raises(IndexError):
        records[5]


def test_a_mapped_file_is_scanned_like_its_bytes() -> None:
    data, _ = framed(batches([3, 2]))
    with mmap.mmap(-1, len(data)) as mapped:
        mapped.write(data)
        assert len(scan(mapped, "demo", path="").records) == 5


FOREIGN = (
    b'{"type":"session","id":"{{id}}","createdAt":0}\n'
    b'{"type":"turn/start","seq":0,"time":1,"data":{}}\n'
    b'{"type":"turn/end","seq":1,"time":1,"data":{}}\n'
)


def test_a_log_without_checksums_loads_as_foreign() -> None:
    found = _scan(FOREIGN)
    assert found.foreign
    assert found.header.id == "demo"
    assert [record.encoded for record in found.records] == _lines(FOREIGN)[1:]
    assert {record.crc for record in found.records} == {""}
    assert found.torn is None


def test_an_unfinished_line_of_a_foreign_log_is_told_and_left_out() -> None:
    found = _scan(FOREIGN[:-5])
    assert len(found.records) == 1
    begun = FOREIGN.rindex(b"\n", 0, -1) + 1
    assert found.torn == Torn(begun, len(FOREIGN) - 5 - begun, 1, "partial")


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"turn/end","seq":5,"time":1,"data":{}}',
        b'{"type":"turn/end","seq":1,"time":1,"data":{}}',
        b"not json",
        b"[]",
        b"",
        b'{"crc":"00000000","dur":-1,"type":"turn/end","seq":2,"time":1,"data":{}}',
    ],
)
def test_a_foreign_log_with_a_line_that_is_not_the_next_event_is_refused(line: bytes) -> None:
    with pytest.raises(LogCorrupt) as caught:
        _scan(FOREIGN + line + b"\n")
    assert (caught.value.expected_seq, caught.value.line) == (2, 4)


def test_a_log_that_lost_the_checksum_of_its_header_is_not_taken_for_a_foreign_one() -> None:
    data, _ = framed(batches([1]))
    assert HEADER.id == "demo"
    with pytest.raises(LogCorrupt):
        _scan(data.replace(b'"crc"', b'"crb"', 1))


def test_a_first_write_whose_first_sector_never_came_held_no_acknowledged_event() -> None:
    data, _ = framed(batches([9, 9]), synced=False)
    with pytest.raises(NotFound):
        _scan(bytes(512) + data[512:])


@pytest.mark.parametrize("sizes", [[9, 9], [1, 9]])
def test_a_log_whose_first_sector_is_gone_behind_a_durable_mark_is_corrupt(
    sizes: list[int],
) -> None:
    """The mark may be that of the very first event."""
    data, _ = framed(batches(sizes))
    assert refused_header(bytes(512) + data[512:]) == "a damaged line"


def test_what_is_less_than_a_sector_of_zeros_was_damaged_later() -> None:
    """A disk writes a sector whole, or not at all."""
    data, _ = framed(batches([9, 9]), synced=False)
    for zeros in (1, 511):
        assert data[zeros:512].strip(b"\0")
        assert refused_header(bytes(zeros) + data[zeros:]) == "a damaged line"
    mixed = (b"\0x" * 256)[:512]
    assert refused_header(mixed + data[512:]) == "a damaged line"
