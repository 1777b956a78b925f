"""The ways in which what is unsynced may not reach the disk, each with a name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Literal, TypeAlias, TypeVar, get_args

import attrs

from refold.faults.moments import Unsynced, applied
from refold.faults.recording import Truncate

T = TypeVar("T")

Kind: TypeAlias = Literal[
    "byte cut", "lost block", "torn sector", "lost entry", "crash during recovery"
]

KINDS: tuple[Kind, ...] = get_args(Kind)

PIECES: dict[Kind, int] = {"lost block": 4096, "torn sector": 512}
"""How many bytes a disk or a file system writes at once, or not."""

ALL_SUBSETS = 6
"""Up to how many pieces every subset of them is tried."""


@attrs.frozen
class Loss:
    """One way to lose a part of a file's unsynced changes: `data` is what the disk then holds."""

    kind: Kind
    lost: str
    data: bytes = attrs.field(repr=False)


def byte_cuts(file: Unsynced, name: str) -> Iterator[Loss]:
    """The unsynced changes up to every byte of every write, and all of them."""
    before = file.old
    for change in file.changes:
        after = applied(before, change)
        if isinstance(change, Truncate):
            yield Loss("byte cut", f"{name} before it was cut to {change.size}", before)
        else:
            for end in range(change.offset, change.offset + len(change.data)):
                lost = f"{name} from byte {end} on"
                yield Loss("byte cut", lost, after[:end] + before[end:])
        before = after
    yield Loss("byte cut", "nothing", file.new)


def changed_pieces(file: Unsynced, size: int) -> list[int]:
    """Where the blocks or sectors of `size` bytes begin that the unsynced changes changed."""
    old = _filled(file)
    places = range(0, len(old), size)
    return [at for at in places if old[at : at + size] != file.new[at : at + size]]


def without(file: Unsynced, lost: Sequence[int], kind: Kind, name: str) -> Loss:
    """The unsynced changes without the pieces at `lost`."""
    size, old, data = PIECES[kind], _filled(file), bytearray(file.new)
    for at in lost:
        data[at : at + size] = old[at : at + size]
    return Loss(kind, f"{name}, {size} bytes at {', '.join(map(str, lost))}", bytes(data))


def _filled(file: Unsynced) -> bytes:
    """What stands where nothing was written: the old bytes, and NUL where there were none."""
    return file.old[: len(file.new)].ljust(len(file.new), b"\0")


def subsets(pieces: Sequence[T], chance: random.Random, drawn: int) -> Iterator[Sequence[T]]:
    """What may be lost of `pieces`: every subset but the empty one, of many some."""
    if len(pieces) <= ALL_SUBSETS:
        for count in range(1, len(pieces) + 1):
            yield from combinations(pieces, count)
        return
    for place, piece in enumerate(pieces):
        yield [piece]
        yield pieces[place:]
    for _ in range(drawn):
        yield [piece for piece in pieces if chance.random() < 0.5]
