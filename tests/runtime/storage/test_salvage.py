"""What is kept of a damaged log: whole batches that its checksums fit, and nothing else."""

from __future__ import annotations

import attrs
import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.storage import LogCorrupt, Scan, SessionHeader, frame_batch, frame_header
from refold.runtime.storage import scan as scan_bytes
from refold.runtime.storage.durable_mark import DurableMark
from refold.runtime.storage.salvage import Salvage, count_lost, lines_of, salvage, salvage_headless
from tests.runtime.storage.logs import HEADER, batches, event, framed

SIZES = (1, 3, 2, 1)


def scan(data: bytes, session: str = "demo") -> Scan:
    return scan_bytes(data, session, path="x")


def damage_of(data: bytes, head: DurableMark | None = None) -> LogCorrupt:
    with pytest.raises(LogCorrupt) as caught:
        found = scan(data)
        if head is not None:
            head.check(found, "x")
    return caught.value


def salvaged(data: bytes, head: DurableMark | None = None) -> Salvage:
    readable = damage_of(data, head).readable
    assert readable is not None
    return salvage(data, readable)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_whatever_bit_is_flipped_what_is_kept_is_a_log_of_whole_batches_and_nothing_is_lost() -> (
    None
):
    data, ends = framed(batches(SIZES))
    whole = scan(data)
    head, kept_counts = DurableMark.of(whole.end), set()
    for bit in range(ends[0] * 8, len(data) * 8):
        kept = salvaged(found := flipped(data, bit), head)
        again = scan(kept.data)
        assert (again.torn, len(again.records)) == (None, kept.events)
        assert kept.data == data[: len(kept.data)]
        assert len(kept.data) in ends
        assert kept.data + kept.dropped == found
        assert count_lost(kept, len(whole.records)) == 0
        kept_counts.add(kept.events)
    assert kept_counts == {0, 1, 4, 6}


def test_a_log_that_ends_before_its_head_file_says_keeps_all_that_is_there() -> None:
    data, ends = framed(batches(SIZES))
    kept = salvaged(data[: ends[2]], DurableMark.of(scan(data).end))
    assert (kept.data, kept.dropped, kept.events) == (data[: ends[2]], b"", 4)


def test_a_whole_log_that_is_not_the_one_its_head_file_saw_is_kept() -> None:
    data, _ = framed(batches(SIZES))
    head = DurableMark.of(scan(data).end)
    kept = salvaged(data, attrs.evolve(head, chain=head.chain ^ 1))
    assert (kept.data, kept.dropped) == (data, b"")


def test_a_lost_newline_before_a_head_file_s_word_is_put_back() -> None:
    data, ends = framed(batches(SIZES))
    cut = data[: ends[2] - 1]
    for tail in (b"", b"\0\0"):
        kept = salvaged(cut + tail, DurableMark.of(scan(data).end))
        assert (kept.data, kept.dropped) == (data[: ends[2]], tail)
        assert lines_of(cut + tail, scan(cut + tail)) == data[ends[0] : ends[2]]


def forked(seed: int, own: int) -> bytes:
    """A fork with so many events of its parent's and of its own, each a batch."""
    lines, chain, crc = b"", 0, ""
    for seq in range(seed + own):
        line, chain = frame_batch([event(seq)], chain, seq - 1)
        lines += line
        crc = f"{chain:08x}" if seq == seed - 1 else crc
    header = SessionHeader("demo", 0, parent_session="p", seed_length=seed, seed_crc=crc)
    return frame_header(header) + lines


@pytest.mark.parametrize(("place", "left", "lost"), [(0, 0, 5), (3, 3, 2), (4, 4, 1), (5, 5, 0)])
def test_the_seed_of_a_damaged_fork_is_what_is_left_of_it(place: int, left: int, lost: int) -> None:
    data = forked(5, 3)
    lines = data.splitlines(keepends=True)
    at = sum(map(len, lines[: place + 1])) + 40
    kept = salvaged(flipped(data, at * 8))
    assert (kept.events, kept.header.seed_length, kept.lost_seed) == (place, left, lost)
    again = scan(kept.data)
    assert (again.header.parent_session, again.torn, len(again.records)) == ("p", None, place)
    assert again.header.seed_crc == (again.records[left - 1].crc if left else None)


def test_a_fork_with_another_seed_than_its_header_says_keeps_what_is_there() -> None:
    data = forked(2, 1)
    header, _, lines = data.partition(b"\n")
    other = attrs.evolve(scan(data).header, seed_crc="00000000")
    kept = salvaged(frame_header(other) + lines)
    assert (kept.data, kept.lost_seed) == (header + b"\n" + lines, 0)


def test_whatever_bit_of_a_header_is_flipped_all_events_behind_it_are_kept() -> None:
    data, ends = framed(batches(SIZES))
    header, anew = ends[0], 0
    for bit in range(header * 8):
        try:
            scan(flipped(data, bit))
        except LogCorrupt:
            kept = salvage_headless(flipped(data, bit), "demo")
            assert kept is not None, bit
            assert (kept.lines, kept.dropped, kept.new_header) == (data[header:], b"", True)
            assert kept.header == SessionHeader("demo", 1_760_000_000_000, durability="power")
            anew += 1
        except RefoldError:  # it says something else, and not that it is damaged
            pass
    assert anew > header * 7


def test_nothing_is_kept_behind_a_damaged_header_if_the_first_event_is_damaged_too() -> None:
    data, ends = framed(batches(SIZES))
    header = ends[0]
    damaged = flipped(data, 40 * 8)
    for place in range(header, ends[1] - 1):
        assert salvage_headless(flipped(damaged, place * 8), "demo") is None
    assert salvage_headless(data[:header], "demo") is None
    assert salvage_headless(data[:header] + data[ends[1] :], "demo") is None


def test_of_a_log_that_was_cut_what_is_gone_is_counted_once() -> None:
    data, ends = framed(batches(SIZES))
    head = DurableMark.of(scan(data).end)
    begins = [at for at in range(ends[0], len(data)) if data[at - 1 : at + 1] == b"\n{"]
    for end in range(ends[0], len(data) - 1):
        kept = salvaged(data[:end], head)
        begun = sum(begin < end for begin in begins)
        assert count_lost(kept, len(begins)) == len(begins) - begun


def test_the_lines_of_a_torn_log_are_without_its_tail() -> None:
    data, ends = framed(batches(SIZES), synced=False)
    assert lines_of(data + b"{", scan(data + b"{")) == data[ends[0] :]
    header = frame_header(HEADER)
    assert lines_of(header + b"xx", scan(header + b"xx")) == b""
