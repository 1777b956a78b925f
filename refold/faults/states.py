"""What a power cut or a kill may leave of what was done to a disk (design 5.5, 9).

What was synced stays. Of the bytes that were not, any part may be there; so may any of the names
that no sync of their folder covered, and what happens to one file says nothing of another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import attrs

from refold.faults.disk import Image, Mark, RecordingDisk
from refold.faults.losses import (
    KINDS,
    PIECES,
    Kind,
    Loss,
    byte_cuts,
    changed_pieces,
    subsets,
    without,
)
from refold.faults.moments import Moment, entered, moments

T = TypeVar("T")


@attrs.frozen
class CrashState:
    """What a disk may hold after a crash.

    `at` operations had been done when it came, and `marks` had been made; `lost` says what of
    them did not reach the disk. `digest` stands for the paths and the bytes of all files.
    """

    kind: Kind
    lost: str
    image: Image
    digest: bytes = attrs.field(repr=False)
    at: int
    marks: Sequence[object] = attrs.field(repr=False)

    def disk(self) -> RecordingDisk:
        """A disk that holds this state."""
        return RecordingDisk(self.image)


@attrs.define
class Seen:
    """The states that were given out, told apart by the content of all files, and their kinds."""

    counts: Counter[str] = attrs.field(factory=Counter)
    _digests: set[bytes] = attrs.field(factory=set, repr=False)

    def is_new(self, digest: bytes, kind: Kind) -> bool:
        """Whether no state with this content came before; counts it if so."""
        if digest in self._digests:
            return False
        self._digests.add(digest)
        self.counts[kind] += 1
        return True


def crash_states(
    disk: RecordingDisk,
    *,
    kinds: Collection[Kind] = KINDS,
    seen: Seen | None = None,
    seed: int = 0,
    drawn: int = 64,
) -> Iterator[CrashState]:
    """Every distinct state that a crash during the recorded operations may leave, lazily.

    The latest crashes come first, so of equal states the one with the most marks is given. Each
    unsynced file is cut at every byte, and loses blocks of 4,096 and sectors of 512 bytes: every
    subset of up to six; of more each one, all from each one on, and `drawn` subsets that depend
    on `seed`. Meanwhile everything else that is unsynced is there, or is not. `kinds` are what to
    enumerate; `seen` counts the states by kind, and joins the enumerations that it is given to.
    """
    known = Seen() if seen is None else seen
    chance = random.Random(seed)  # noqa: S311 - it draws states and no secrets
    marks = [operation.what for operation in disk.operations if isinstance(operation, Mark)]
    for moment in reversed(moments(disk)):
        told = marks[: moment.told]
        for setting, loss in _losses(moment, _Choice(kinds, chance, drawn)):
            digest = setting.digest(loss.data)
            if known.is_new(digest, loss.kind):
                image = setting.image(loss.data)
                yield CrashState(loss.kind, loss.lost, image, digest, moment.at, told)


def recovery_states(
    state: CrashState,
    recover: Callable[[RecordingDisk], object],
    *,
    kinds: Collection[Kind] = KINDS,
    seen: Seen | None = None,
    seed: int = 0,
    drawn: int = 64,
) -> Iterator[CrashState]:
    """As `crash_states`, for a crash while `recover` works on the disk that `state` left."""
    disk, known = state.disk(), Seen() if seen is None else seen
    recover(disk)
    for again in crash_states(disk, kinds=kinds, seed=seed, drawn=drawn):
        if known.is_new(again.digest, "crash during recovery"):
            marks = [*state.marks, *again.marks]
            lost = f"{state.lost}; then {again.lost}"
            yield attrs.evolve(again, kind="crash during recovery", marks=marks, lost=lost)


@attrs.frozen
class _Setting:
    """Everything but the bytes of one file, `varied`; None where no file's vary."""

    names: Mapping[Path, int]
    contents: Mapping[int, bytes] = attrs.field(repr=False)
    varied: int | None
    _frame: bytes = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_frame", b"".join(self._described()))

    def digest(self, data: bytes) -> bytes:
        """What stands for all files when the varied one holds `data`."""
        return _hash(self._frame + _hash(data))

    def image(self, data: bytes) -> Image:
        if self.varied is None:
            return Image(self.names, self.contents)
        return Image(self.names, {**self.contents, self.varied: data})

    def _described(self) -> Iterator[bytes]:
        first: dict[int, bytes] = {}
        for path, file in sorted(self.names.items()):
            name = bytes(path)
            same = first.setdefault(file, name)
            what = b"varied" if file == self.varied else _hash(self.contents.get(file, b"folder"))
            yield b"%b\0%b\0%b\0" % (name, same, what)


@attrs.frozen
class _Choice:
    """Which losses are wanted, and how those that are too many are drawn."""

    kinds: Collection[Kind]
    chance: random.Random
    drawn: int

    def subsets(self, pieces: Sequence[T]) -> Iterator[Sequence[T]]:
        return subsets(pieces, self.chance, self.drawn)


def _losses(moment: Moment, choice: _Choice) -> Iterator[tuple[_Setting, Loss]]:
    """What may be lost at a moment, and what the rest of the disk is meanwhile."""
    if "lost entry" in choice.kinds:
        yield from _entries_lost(moment, choice)
    if "byte cut" in choice.kinds:
        yield _Setting(*_others(moment)[0], None), Loss("byte cut", "nothing", b"")
    for file in moment.unsynced:
        for names, contents in _others(moment):
            paths = [path.name for path, found in names.items() if found == file]
            if paths:
                setting = _Setting(names, contents, file)
                for loss in _bytes_lost(moment, file, paths[0], choice):
                    yield setting, loss


def _entries_lost(moment: Moment, choice: _Choice) -> Iterator[tuple[_Setting, Loss]]:
    (_, there), (_, gone), *_ = _others(moment)
    for lost in choice.subsets(moment.entries):
        names = entered(moment.names, [entry for entry in moment.entries if entry not in lost])
        for contents in (there, gone):
            loss = Loss("lost entry", ", ".join(map(str, lost)), b"")
            yield _Setting(names, contents, None), loss


def _bytes_lost(moment: Moment, file: int, name: str, choice: _Choice) -> Iterator[Loss]:
    unsynced = moment.unsynced[file]
    if "byte cut" in choice.kinds and moment.goes_on != file:  # else a later moment has them all
        yield from byte_cuts(unsynced, name)
    for kind, size in PIECES.items():
        if kind in choice.kinds:
            for lost in choice.subsets(changed_pieces(unsynced, size)):
                yield without(unsynced, lost, kind, name)


def _others(moment: Moment) -> list[tuple[Mapping[Path, int], Mapping[int, bytes]]]:
    """Names and bytes with everything unsynced there, then with the bytes, the names, all gone."""
    there = {file: unsynced.new for file, unsynced in moment.unsynced.items()}
    gone = {file: unsynced.old for file, unsynced in moment.unsynced.items()}
    names = (entered(moment.names, moment.entries), moment.names)
    contents = ({**moment.synced, **there}, {**moment.synced, **gone})
    return [(some, bytes_) for some in names for bytes_ in contents]


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
