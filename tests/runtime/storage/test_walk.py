"""The walk along a log foretells how lines begin; here is the slow way that it must agree with."""

from __future__ import annotations

import random
from zlib import crc32

from refold.runtime.storage.framing import COVERED, frame_batch, frame_header
from refold.runtime.storage.walk import Index, LogEnd, Walk, _is_miscounted, _parse, walk
from tests.runtime.storage.logs import HEADER, event

TYPES = ["turn/start", "assistant/chunk", "assistant/chunk", "tool/call", "tool/result", "é\n"]


def walk_by_parsing(data: bytes, start: LogEnd | None = None) -> Walk:
    """What `walk` finds, each line looked at by itself."""
    at = start or LogEnd()
    found = Walk(data, Index(at.offset), at, at)
    seq, offset, chain, dur, left = at.next_seq, at.offset, at.chain, at.dur, 0
    while (end := data.find(b"\n", offset)) >= 0:
        value = crc32(data[offset + COVERED : end], chain)
        line = _parse(found, offset, end, value)
        if line is None or _is_miscounted(found, line, seq, dur, left):
            break
        seq, offset, chain, dur, left = seq + 1, end + 1, value, line.dur, line.left
        found.index.ends.append(offset)
        found.index.kinds.append(line.kind)
        if not left:
            found.whole = LogEnd(seq, offset, chain, dur)
    found.reached, found.left = LogEnd(seq, offset, chain, dur), left
    return found


def log(rng: random.Random, batches: int) -> tuple[bytes, LogEnd]:
    """A log whose checksums all fit, and whose counting may not."""
    data, start = frame_header(HEADER), LogEnd(offset=len(frame_header(HEADER)))
    seq, chain, dur = 0, 0, -1
    for _ in range(batches):
        size, odd = rng.choice((1, 1, 1, 2, 5)), rng.random()
        seq += odd < 0.01
        texts = ["x" * rng.randrange(30) for _ in range(size)]
        made = [event(seq + n, rng.choice(TYPES), text=text) for n, text in enumerate(texts)]
        lines, last = frame_batch(made, chain, seq if 0.01 < odd < 0.02 else dur)
        if 0.02 < odd < 0.03 and size > 1:  # a batch that goes on as another
            lines = lines[: lines.index(b"\n") + 1]
            last, size = int(lines[8:16], 16), 1
        data, chain, seq = data + lines, last, seq + size
        if rng.random() < 0.3:
            dur = seq - 1
    return data, start


def test_the_fast_walk_finds_what_the_slow_one_finds_whatever_was_damaged() -> None:
    rng, problems = random.Random(7), set[str]()
    for round_ in range(400):
        data, start = log(rng, rng.randrange(1, 40))
        damaged = bytearray(data)
        for _ in range(round_ % 3):
            kind, at = rng.randrange(4), rng.randrange(start.offset, len(damaged) - 1)
            if kind == 0:
                damaged[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del damaged[at : at + rng.randrange(1, 200)]
            elif kind == 2:
                damaged[at:at] = damaged[start.offset : at]
            else:
                damaged = damaged[: max(at, start.offset + 2)]
        slow, fast = (way(bytes(damaged), start) for way in (walk_by_parsing, walk))
        assert fast == slow
        problems.add(str(slow.problem)[:12])
    assert {told.split()[0] for told in problems} == {"None", "a", "seq", "dur"}
    assert any("batch" in told for told in problems)
