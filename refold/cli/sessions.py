"""`refold sessions`: the sessions of a store, and the state that each is in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from refold.cli.exits import DAMAGE, say
from refold.cli.opening import json_option, store_option
from refold.cli.progress import watched
from refold.cli.show import when
from refold.render import bar, number, plural, shortened, table, to_json
from runtime.envelope import Event, decode_line
from runtime.errors import InvalidSessionId, RefoldError
from runtime.events import SURFACE, Owner, TurnStart
from runtime.json import clean_text
from runtime.storage import (
    JsonlFolder,
    LogCorrupt,
    NotFound,
    Scan,
    StoreRefused,
    Unavailable,
    this_process,
)
from runtime.storage.files import reported
from runtime.storage.layout import SUFFIX, Layout
from runtime.storage.owners import is_running
from runtime.surface import fold_surface
from runtime.usage import usage_by_step

TITLES = ("session", "name", "last activity", "turns", "in", "out", "cached/in", "state")
_LEFT = frozenset({0, 1, 2, 6, 7})
_NAME = 30  # characters of a name that the table shows

_COUNTED = (*SURFACE, "turn/start", "turn/end", "step/start", "assistant/chunk")


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
    """One file of a store; `detail` says more of its state, empty where there is no more."""

    session: str
    state: str
    detail: str = ""
    name: str | None = None
    counts: Counts = Counts()
    owner: Owner | None = None
    damage: LogCorrupt | None = None


@click.command("sessions")
@json_option
@store_option
def command(as_json: bool, store: Path) -> None:
    """The sessions of a store, the one that was written to last first, and their states.

    A state is `ok`; `open turn`, which a crash left or a running agent is in; `owned`, open for
    writing in a process; `torn`, with a tail that the next opening cuts; `damaged`, with the
    position and the reason; `half-written`, without a whole header; `foreign`, not written by
    refold; or `unreadable`. A bad file never stops the list. Tokens are those of `refold usage`.

    \b
    Examples:
      refold sessions
      refold sessions --json
    """
    files = _files(store)
    rows = [_row(store, file) for file in watched(files, lambda file: f"reading {file}")]
    if as_json:
        click.echo(to_json({"sessions": [*map(_as_json, rows)]}))
    elif rows:
        click.echo(table(TITLES, map(_cells, rows), left=_LEFT))
    else:
        say(f"there are no sessions in {store}; name another folder with --store or REFOLD_STORE")


def _files(store: Path) -> list[str]:
    """What the logs in a store are called, the newest first; raises `Unavailable`."""
    with reported(store):
        names = os.listdir(store) if store.exists() else []  # noqa: PTH208 - names, not paths
    found = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
    return sorted(found, key=lambda name: (_written_at(store, name), name), reverse=True)


def _written_at(store: Path, name: str) -> int:
    try:
        return Layout(store).log(name).lstat().st_mtime_ns
    except OSError:
        return 0


def _row(store: Path, file: str) -> Row:
    try:
        return _read(JsonlFolder(store).read(file))
    except LogCorrupt as damage:
        found = None if damage.readable is None else _read(damage.readable)
        row = found or Row(file, "damaged")
        return attrs.evolve(row, state="damaged", detail=_position(damage), damage=damage)
    except NotFound as missing:
        detail = f"{plural(missing.found_bytes, 'byte')} and no event"
        return Row(file, "half-written", detail)
    except (StoreRefused, Unavailable, InvalidSessionId) as refused:
        return Row(clean_text(file), "unreadable", str(refused))
    except RefoldError as refused:
        return Row(file, "damaged", f"in its header or vocabulary: {refused}")


def _position(damage: LogCorrupt) -> str:
    at = "in its header" if damage.expected_seq is None else f"seq {damage.expected_seq}"
    return f"at byte {damage.offset}, {at}: found {damage.found}"


def _read(found: Scan) -> Row:
    events: list[Event] = []
    row = Row(found.header.id, "ok", name=found.header.name)
    try:
        events.extend(_counted(found))
        fold_surface(events)
    except DAMAGE as damage:
        return attrs.evolve(row, state="damaged", detail=str(damage), counts=_count(events))
    return _judged(attrs.evolve(row, counts=_count(events), owner=_holder(found)), found)


def _counted(found: Scan) -> Iterator[Event]:
    """The events that a row counts; most of a log is other chunks, which are passed over."""
    for record in found.select(_COUNTED):
        if record.type != "assistant/chunk" or b'"usage"' in record.encoded:
            yield decode_line(record.encoded)
    if found.records and found.records[-1].type not in _COUNTED:
        yield decode_line(found.records[-1].encoded)


def _count(events: Sequence[Event]) -> Counts:
    turns = [event for event in events if event.type in ("turn/start", "turn/end")]
    opened = turns[-1].data if turns else None
    steps = usage_by_step(events)
    return Counts(
        events[-1].time if events else None,
        sum(event.type == "turn/start" for event in turns),
        opened.turn if isinstance(opened, TurnStart) else None,
        _sum(step.tokens_in for step in steps),
        _sum(step.tokens_cached for step in steps),
        _sum(step.tokens_out for step in steps),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _holder(found: Scan) -> Owner | None:
    """Who has the session open, as its log and this machine's processes say."""
    seed = found.header.seed_length or 0
    own = attrs.evolve(found, records=found.records[seed:]) if seed else found
    last = own.last_owner()
    if last is None or last.released or last.owner.owner is None:
        return None
    owner = last.owner.owner
    return owner if owner.host != this_process().host or is_running(owner) else None


def _judged(row: Row, found: Scan) -> Row:
    turn = row.counts.open_turn
    if found.foreign:
        return attrs.evolve(row, state="foreign", detail="import it to go on with it")
    if row.owner is not None:
        at = "" if turn is None else f", turn {turn} is open"
        return attrs.evolve(row, state="owned", detail=f"by {row.owner.pid}@{row.owner.host}{at}")
    if found.torn is not None:
        lost = plural(found.torn.dropped_bytes, "byte")
        return attrs.evolve(row, state="torn", detail=f"tail of {lost} ({found.torn.reason})")
    return row if turn is None else attrs.evolve(row, state="open turn", detail=str(turn))


def _cells(row: Row) -> tuple[str, ...]:
    counts = row.counts
    return (
        row.session,
        shortened(row.name or "", _NAME),
        "-" if counts.last_activity is None else when(counts.last_activity),
        number(counts.turns),
        number(counts.tokens_in),
        number(counts.tokens_out),
        bar(counts.cached_share),
        f"{row.state} {row.detail}".rstrip(),
    )


def _as_json(row: Row) -> dict[str, Any]:
    counts = row.counts
    return {
        "session": row.session,
        "name": row.name,
        "lastActivity": counts.last_activity,
        "turns": counts.turns,
        "in": counts.tokens_in,
        "cached": counts.tokens_cached,
        "out": counts.tokens_out,
        "state": row.state,
        "detail": row.detail,
        "owner": None if row.owner is None else {"pid": row.owner.pid, "host": row.owner.host},
        "offset": None if row.damage is None else row.damage.offset,
        "seq": None if row.damage is None else row.damage.expected_seq,
    }
