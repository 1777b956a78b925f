"""What a power cut or a kill may leave of what was done to a disk.

What was synced stays. Of the bytes that were not, any part may be there; so may any of the names
that no sync of their folder covered, and what happens to one file says nothing of another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import attrs

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
from refold.faults.recording import Image, RecordingDisk

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
    digest: int = attrs.field(repr=False)
    at: int
    marks: Sequence[object] = attrs.field(repr=False)

    def disk(self) -> RecordingDisk:
        """A disk that holds this state."""
        return RecordingDisk(self.image)


@attrs.define
class Seen:
    """The states that were given out, told apart by the content of all files, and their kinds."""

    counts: Counter[str] = attrs.field(factory=Counter)
    _digests: set[int] = attrs.field(factory=set, repr=False)

    def is_new(self, digest: int, kind: Kind) -> bool:
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
    marks = disk.marks
    for moment in reversed(moments(disk)):
        told = marks[: moment.told]
        for setting, loss in _losses(moment, _Choice(kinds, chance, drawn)):
            digest = setting.digest(loss.data)
            if known.is_new(digest, loss.kind):
                image = setting.image(loss.data)
                lost = loss.lost + setting.besides
                yield CrashState(loss.kind, lost, image, digest, moment.at, told)


def recovery_states(
    state: CrashState,
    recover: Callable[[RecordingDisk], object],
    *,
    kinds: Collection[Kind] = KINDS,
    seen: Seen | None = None,
    seed: int = 0,
    drawn: int = 64,
) -> Iterator[CrashState]:
    """As `crash_states`, for a crash while `recover` works on the disk that `state` left.

    Raises `TypeError` if `recover` is an async function.
    """
    disk, known = state.disk(), Seen() if seen is None else seen
    made = recover(disk)
    if isinstance(made, Awaitable):
        if isinstance(made, Coroutine):
            made.close()
        raise TypeError(
            "`recover` is async, and nobody awaits it here: give a plain function, such as "
            "`lambda disk: trio.run(recover, disk)` outside of Trio"
        )
    for again in crash_states(disk, kinds=kinds, seed=seed, drawn=drawn):
        if known.is_new(again.digest, "crash during recovery"):
            marks = [*state.marks, *again.marks]
            lost = f"{state.lost}; then {again.lost}"
            yield attrs.evolve(again, kind="crash during recovery", marks=marks, lost=lost)


@attrs.frozen
class _Rest:
    """What a disk holds besides the loss in question; `besides` says what else is lost."""

    names: Mapping[Path, int]
    contents: Mapping[int, bytes] = attrs.field(repr=False)
    besides: str


class _Setting:
    """Everything but the bytes of one file, `varied`; None where no file's vary."""

    def __init__(self, rest: _Rest, varied: int | None) -> None:
        names, contents, self.besides = rest.names, rest.contents, rest.besides
        self._names, self._contents, self._varied = names, contents, varied
        paths: dict[int, bytes] = {}
        for path, file in sorted(names.items()):
            paths[file] = paths.get(file, b"") + bytes(path) + b"\0"
        self._paths = paths.pop(varied, b"") if varied is not None else b""
        self._rest = sum(_number(paths[file], contents.get(file)) for file in paths)

    def digest(self, data: bytes) -> int:
        """What stands for all files when the varied one holds `data`."""
        # A sum, so that it is the same whichever file was the varied one.
        return self._rest + (_number(self._paths, data) if self._paths else 0)

    def image(self, data: bytes) -> Image:
        if self._varied is None:
            return Image(self._names, self._contents)
        return Image(self._names, {**self._contents, self._varied: data})


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
        yield _Setting(_rests(moment)[0], None), Loss("byte cut", "nothing", b"")
    for file in moment.unsynced:
        for rest in _rests(moment, file):
            paths = [path.name for path, found in rest.names.items() if found == file]
            if paths:
                setting = _Setting(rest, file)
                for loss in _bytes_lost(moment, file, paths[0], choice):
                    yield setting, loss


def _entries_lost(moment: Moment, choice: _Choice) -> Iterator[tuple[_Setting, Loss]]:
    for lost in choice.subsets(moment.entries):
        kept = [entry for entry in moment.entries if entry not in lost]
        loss = Loss("lost entry", ", ".join(map(str, lost)), b"")
        for rest in _rests(attrs.evolve(moment, names=entered(moment.names, kept), entries=())):
            yield _Setting(rest, None), loss


def _bytes_lost(moment: Moment, file: int, name: str, choice: _Choice) -> Iterator[Loss]:
    unsynced = moment.unsynced[file]
    if "byte cut" in choice.kinds and moment.goes_on != file:  # else a later moment has them all
        yield from byte_cuts(unsynced, name)
    for kind, size in PIECES.items():
        if kind in choice.kinds:
            for lost in choice.subsets(changed_pieces(unsynced, size)):
                yield without(unsynced, lost, kind, name)


def _rests(moment: Moment, file: int | None = None) -> list[_Rest]:
    """What is there apart from the bytes of `file`: all that is unsynced, or none of it."""
    there = {one: unsynced.new for one, unsynced in moment.unsynced.items()}
    gone = {one: unsynced.old for one, unsynced in moment.unsynced.items()}
    contents = [({**moment.synced, **there}, ""), ({**moment.synced, **gone}, ", no other byte")]
    names = [(entered(moment.names, moment.entries), ""), (moment.names, ", no other name")]
    if not moment.entries:
        names.pop()
    if moment.unsynced.keys() <= {file}:
        contents.pop()
    return [
        _Rest(some, bytes_, no_bytes + no_names)
        for some, no_names in names
        for bytes_, no_bytes in contents
    ]


def _number(paths: bytes, data: bytes | None) -> int:
    """What stands for one file under all its names; a folder has no data."""
    content = b"" if data is None else blake2b(data, digest_size=16).digest()
    return int.from_bytes(blake2b(paths + content, digest_size=16).digest(), "big")
