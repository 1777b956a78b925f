"""What can still be believed behind damage in a log. Pure, over bytes.

A log ends for its writer where its chain of checksums breaks: nothing behind that is ever counted
or gone on from. But a line is chained to the digits of the line before it, so each line behind one
that can be read vouches for itself again. People may be shown those, with the gaps between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from refold.runtime.storage.framing import (
    COVERED,
    FRAMED,
    SEALED,
    Record,
    is_whole,
    lines,
    record_at,
)
from refold.runtime.storage.scan import Scan


def believable(data: bytes, before: Scan | None) -> Iterator[Record]:
    """The records of a log behind those of `before`, in the order of their seqs, with gaps.

    Each fits its checksum, seeded with that of the line before it; `before` is None where not even
    the header can be read.
    """
    at = 0 if before is None else before.end.offset
    seeds, next_seq = {0 if before is None else before.end.chain}, 0
    if before is not None:
        next_seq = len(before.records)
    for start, end in lines(data, at):
        match = FRAMED.match(data, start, end)
        seq = -1 if match is None else int(match[6])
        tried = seeds if seq else {0}  # the first is chained to none
        if seq >= next_seq and any(is_whole(data, start, end, seed) for seed in tried):
            record = record_at(data, start, end)
            yield record
            seeds, next_seq = {record.chain}, seq + 1
            continue
        # What is damaged may be a line's checksum or what it is of; two lines may have become one.
        stored = {int(sealed[1], 16) for sealed in SEALED.finditer(data, start, end)}
        computed = {crc32(data[start + COVERED : end], seed) for seed in seeds}
        if stored:
            seeds = stored | (computed if len(seeds) == 1 else set())
        elif end - start > COVERED:
            seeds = computed
