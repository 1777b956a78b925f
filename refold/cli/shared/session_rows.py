"""The state that each session of a store is in, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from refold.cli.shared.exit_codes import DAMAGE
from refold.cli.shared.last_use import doubt
from refold.render import plural
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import InvalidSessionId, RefoldError, UnsupportedVersion
from refold.runtime.events import SURFACE, Owner, TurnStart
from refold.runtime.json import clean_text
from refold.runtime.storage import (
    LogCorrupt,
    MaintainedStore,
    NotFound,
    Scan,
    SessionHeader,
    StoreRefused,
    Torn,
    Unavailable,
)
from refold.runtime.storage.owners import has_ended
from refold.runtime.surface import fold_surface
from refold.runtime.usage import usage_by_step

_COUNTED = (*SURFACE, "turn/start", "turn/end", "step/start", "assistant/chunk")


NEWER = "newer format"
"""The state of a log that a later version of refold wrote: nobody here can say if it is good."""


@attrs.frozen
class Counts:
    """What the readable events of a session come to; tokens that nobody reported are None."""

    last_activity: int | None = None
    turns: int = 0
    open_turn: int | None = None
    tokens_in: int | None = None
    tokens_cached: int | None = None
    tokens_out: int | None = None

    @property
    def cached_share(self) -> float | None:
        if not self.tokens_in or self.tokens_cached is None:
            return None
        return self.tokens_cached / self.tokens_in


@attrs.frozen
class Row:
    """One file of a store; `detail` says more of its state, empty where there is no more.

    `durability` is the level that its header names.
    """

    session: str
    state: str
    detail: str = ""
    name: str | None = None
    created_at: int | None = None
    durability: str | None = None
    counts: Counts = Counts()
    holder: Holder | None = None
    damage: LogCorrupt | None = None

    @property
    def doubt(self) -> str:
        """Why the last activity cannot have been when the log says; empty if it can."""
        last = self.counts.last_activity
        return "" if last is None else doubt(last, self.created_at)


@attrs.frozen
class Holder:
    """Who has a session open for writing; without `owner` one that has not named itself yet."""

    owner: Owner | None

    def __str__(self) -> str:
        if self.owner is None:
            return "a process that has not named itself yet"
        return f"{self.owner.pid}@{self.owner.host}"


def read_row(store: MaintainedStore, file: str) -> Row:
    """The session of a log, or what stands in its place."""
    try:
        return _read(store, store.read(file))
    except LogCorrupt as damage:
        found = None if damage.readable is None else _read(store, damage.readable)
        row = found or Row(file, "damaged")
        return attrs.evolve(row, state="damaged", detail=_position(damage), damage=damage)
    except NotFound as missing:
        detail = f"{plural(missing.found_bytes, 'byte')} and no event"
        return Row(file, "half-written", detail)
    except (StoreRefused, Unavailable, InvalidSessionId) as refused:
        return Row(clean_text(file), "unreadable", str(refused))
    except UnsupportedVersion as other:
        return Row(file, NEWER if other.is_newer else "damaged", str(other))
    except RefoldError as refused:
        return Row(file, "damaged", f"in its header or vocabulary: {refused}")


def _position(damage: LogCorrupt) -> str:
    at = "in its header" if damage.expected_seq is None else f"seq {damage.expected_seq}"
    return f"at byte {damage.offset}, {at}: found {damage.found}"


def _read(store: MaintainedStore, found: Scan) -> Row:
    events: list[Event] = []
    header = found.header
    level = None if found.foreign else level_of(header)
    row = Row(header.id, "ok", "", header.name, header.created_at, level)
    try:
        events.extend(_counted(found))
        fold_surface(events)
    except DAMAGE as damage:
        counts = _count(events, found.header)
        return attrs.evolve(row, state="damaged", detail=str(damage), counts=counts)
    counts = _count(events, found.header)
    return _judged(attrs.evolve(row, counts=counts, holder=find_holder(store, found)), found)


def level_of(header: SessionHeader) -> str:
    """What a session's events survive before they are acknowledged; see the guide."""
    return header.durability or "power"


def _counted(found: Scan) -> Iterator[Event]:
    """The events that a row counts; most of a log is other chunks, which are passed over.

    The last event is always there, whatever it is: its time is that of the last activity.
    """
    end = found.records[-1].offset if found.records else 0
    for record in found.select(_COUNTED):
        counts = record.type != "assistant/chunk" or b'"usage"' in record.encoded
        if counts and record.offset != end:
            yield decode_line(record.encoded)
    if found.records:
        yield decode_line(found.records[-1].encoded)


def _count(events: Sequence[Event], header: SessionHeader) -> Counts:
    turns = [event for event in events if event.type in ("turn/start", "turn/end")]
    opened = turns[-1].data if turns else None
    steps = usage_by_step(events)
    last = max((event.time for event in events[-1:]), default=None)
    if last is not None and header.seed_length:
        last = max(last, header.created_at)  # what a fork begins with is older than the fork
    return Counts(
        last,
        sum(event.type == "turn/start" for event in turns),
        opened.turn if isinstance(opened, TurnStart) else None,
        _sum(step.tokens_in for step in steps),
        _sum(step.tokens_cached for step in steps),
        _sum(step.tokens_out for step in steps),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def find_holder(store: MaintainedStore, found: Scan) -> Holder | None:
    """Who has the session open, as its lock says; only its name is taken from the log.

    Where a lock cannot be asked, the log and this machine's processes are.
    """
    held = store.is_held(found.header.id)
    last = found.last_owner()
    owner = None if last is None or last.released else last.owner.owner
    if held is not None:
        return Holder(None if owner is None or has_ended(owner) else owner) if held else None
    if owner is None:
        return None
    return None if has_ended(owner) else Holder(owner)


def _lost(torn: Torn) -> str:
    if torn.missing_newline:
        return "tail: its last line lost its newline"
    return f"tail of {plural(torn.dropped_bytes, 'byte')} ({torn.reason})"


def _judged(row: Row, found: Scan) -> Row:
    turn = row.counts.open_turn
    if found.foreign:
        return attrs.evolve(row, state="foreign", detail="import it to go on with it")
    if row.holder is not None:
        at = "" if turn is None else f", turn {turn} is open"
        return attrs.evolve(row, state="owned", detail=f"by {row.holder}{at}")
    if found.torn is not None:
        return attrs.evolve(row, state="torn", detail=_lost(found.torn))
    return row if turn is None else attrs.evolve(row, state="open turn", detail=str(turn))
