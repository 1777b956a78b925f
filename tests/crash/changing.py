"""Sessions that are made, replaced or removed as a whole, for cutting the power meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from refold.faults import RecordingDisk
from refold.runtime.events import SessionRecovered
from refold.runtime.storage import JsonlFolder, LogCorrupt, NotFound
from refold.runtime.storage.files import remove
from refold.runtime.storage.salvage import Salvage, salvage
from tests.runtime.storage.logs import FOLDER, HEADER, LOG, event, get, put

ID = HEADER.id
SIZES = [1, 2, 3, 2]
"""The batches of each session here, so that the log of a new one ends where an old one did."""

Change = Callable[[JsonlFolder], object]


def events_of(letter: str) -> list[list[bytes]]:
    """The batches of a session; of another letter they are others, and as long."""
    found, seq = list[list[bytes]](), 0
    for size in SIZES:
        found.append([event(at, text=letter * 20) for at in range(seq, seq + size)])
        seq += size
    return found


def written(disk: RecordingDisk, letter: str) -> SessionRecovered | None:
    """Write a session, each batch durable and acknowledged, and close it: head and index stand
    beside it then. Returns what its making reported.
    """
    log = JsonlFolder(FOLDER, disk).create(HEADER)
    for batch in events_of(letter):
        start = log.next_seq
        log.append(batch)
        log.sync()
        for seq, encoded in enumerate(batch, start):
            disk.acknowledge(ID, seq, encoded)
    log.close()
    return log.recovered


def fresh() -> RecordingDisk:
    """A store that is used and holds no session."""
    disk = RecordingDisk()
    JsonlFolder(FOLDER, disk).create(HEADER).close()
    return disk


def closed(letter: str = "a") -> RecordingDisk:
    """A store with one closed session."""
    disk = fresh()
    written(disk, letter)
    return disk


def lived() -> RecordingDisk:
    """A session beside which everything stands that may."""
    disk = fresh()
    put(disk, LOG, b'{"crc":"012345')  # a making that was cut: set aside by the next
    written(disk, "a")
    put(disk, LOG, get(disk, LOG) + b'{"crc":"0123')  # a write that was cut: set aside, unreported
    JsonlFolder(FOLDER, disk).open(ID).close()
    for left in ("copy", "fork", "damaged-0"):
        put(disk, FOLDER / f"{ID}.{left}", b"left")
    return disk


def after(disk: RecordingDisk, change: Change) -> RecordingDisk:
    """A disk that holds what `disk` does, durably, and on which the change was made."""
    changed = RecordingDisk(disk.image())
    change(JsonlFolder(FOLDER, changed))
    changed.mark("done")
    return changed


def lines(letter: str) -> bytes:
    """The framed lines of a session's events."""
    data = get(closed(letter), LOG)
    return data[data.index(b"\n") + 1 :]


def without_log(disk: RecordingDisk) -> RecordingDisk:
    """A disk whose log somebody removed by hand, with nothing beside it."""
    remove(disk, LOG)
    return disk


def half_made() -> RecordingDisk:
    """A store in which the making of the session was cut inside its header."""
    disk = fresh()
    put(disk, LOG, b'{"crc":"012345')
    return disk


def flipped() -> RecordingDisk:
    """A closed session with one bit of a durable batch flipped."""
    disk = closed()
    data = bytearray(get(disk, LOG))
    data[len(data) // 2] ^= 1
    put(disk, LOG, bytes(data))
    return disk


def shortened() -> RecordingDisk:
    """A closed session whose last batch is gone: nothing but its head file says so."""
    disk = closed()
    *kept, _, _ = get(disk, LOG).splitlines(keepends=True)
    put(disk, LOG, b"".join(kept))
    return disk


def plan(store: JsonlFolder) -> Salvage | None:
    """How a damaged log would be repaired; None for one that is good."""
    try:
        store.read(ID)
    except LogCorrupt as damage:
        return None if damage.readable is None else salvage(store.raw(ID), damage.readable)
    return None


def repair(store: JsonlFolder) -> None:
    """Replace a damaged log by what can be kept of it; a good one is left alone."""
    if (kept := plan(store)) is not None:
        store.replace(kept.header, kept.lines, (len(kept.data), kept.dropped))


def delete(store: JsonlFolder) -> None:
    """Delete the session, if it is there."""
    try:
        store.delete(ID)
    except NotFound:
        return


def opened(disk: RecordingDisk) -> tuple[list[bytes], SessionRecovered | None] | None:
    """The events and the report of an opening, None for no session; raises how it is refused."""
    try:
        log = JsonlFolder(FOLDER, disk).open(ID)
    except NotFound:
        return None
    log.close()
    records = JsonlFolder(FOLDER, disk).read(ID).records
    return [record.encoded for record in records], log.recovered


def stands_beside(disk: RecordingDisk) -> list[str]:
    """What stands of the session besides its log."""
    return sorted(n for n in disk.listdir(FOLDER) if n.startswith(f"{ID}.") and n != LOG.name)
