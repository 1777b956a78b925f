"""`refold show`: a readable transcript of a session, or its raw events."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import click
import orjson

from refold.cli.shared.exit_codes import say
from refold.cli.shared.logs import Place, decoded, locate, read_log
from refold.cli.shared.options import json_option, store_option
from refold.cli.shared.session_rows import level_of
from refold.cli.shared.transcript import Gap, transcript, with_gaps
from refold.render import shortened, styled, visible_json, visible_line
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import check_position
from refold.runtime.storage import LogCorrupt, LogReader, MaintainedStore, SessionHeader
from refold.runtime.storage.believable import believable
from refold.runtime.times import utc

DATA = 100
"""How many characters of an event's data `--events` shows; `--json` has all of it."""

INTERVAL = 0.2
"""Seconds between two looks at a log that is followed."""

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ends, as shells count."""

Form: TypeAlias = Literal["transcript", "events", "json"]


@click.command("show")
@click.argument("session")
@click.option("--events", "as_events", is_flag=True, help="The raw ledger, one line an event.")
@click.option(
    "--from",
    "from_seq",
    metavar="SEQ",
    type=click.IntRange(0),
    default=0,
    help="Begin at this seq.",
)
@click.option("--follow", is_flag=True, help="Go on with what is appended, until Ctrl-C.")
@json_option
@store_option
@click.pass_context
def command(
    ctx: click.Context,
    session: str,
    as_events: bool,
    from_seq: int,
    follow: bool,
    as_json: bool,
    store: MaintainedStore,
) -> None:
    """A readable transcript of a session, or its raw events; with --from, those from a seq on.

    Characters that a terminal would obey or hide are shown as escapes. Of a damaged log what stands
    before the damage is shown, and behind it every event that still fits its checksum; where some
    are missing a line says which (exit code 4). With --json each event is one line of JSON, whole,
    and what is missing is told on standard error. With --follow
    events are shown as soon as they are complete in the file, also those that another program
    appends later; Ctrl-C ends that, with exit code 130.

    \b
    Examples:
      refold show last
      refold show last --events --from 10
      refold show last --json
      refold show last --follow
    """
    form: Form = "json" if as_json else "events" if as_events else "transcript"
    if follow:
        ctx.exit(_follow(locate(store, session), from_seq, form))
    place = locate(store, session)
    try:
        log = read_log(store, session)
    except LogCorrupt as damage:
        if damage.expected_seq is not None:
            raise  # else only its header is damaged
        events = decoded(believable(place.store.raw(place.session), None))
        title = f"session {place.session}, whose header is damaged"
        _print(title, with_gaps(events), from_seq, form)
        raise damage from None
    if log.damage is None:
        check_position(from_seq, len(log.events))
    title = _title(log.scan.header, foreign=log.scan.foreign)
    _print(title, with_gaps([*log.events, *log.behind()]), from_seq, form)
    log.complete()


def _print(title: str, events: Iterable[Event | Gap], from_seq: int, form: Form) -> None:
    sys.stdout.writelines(f"{line}\n" for line in _lines(title, events, from_seq, form))


def _lines(title: str, events: Iterable[Event | Gap], from_seq: int, form: Form) -> Iterator[str]:
    if form == "transcript":
        yield styled(visible_line(title), "bold")
        yield from transcript(events, from_seq)
        return
    for event in events:
        if isinstance(event, Gap):
            if form == "json" and event.last >= from_seq:
                say(str(event))
            elif event.last >= from_seq:
                yield styled(f"-- {event}", "red")
        elif event.seq >= from_seq:
            yield visible_json(event.encoded) if form == "json" else _ledger_line(event)


def _follow(place: Place, from_seq: int, form: Form) -> int:
    """Print events as they come until Ctrl-C; the exit code that a shell expects of it."""
    followed = Followed(place)
    try:
        _print(_title(followed.header), followed.events(from_seq), from_seq, form)
    except KeyboardInterrupt:
        sys.stdout.flush()
    finally:
        followed.close()
    return INTERRUPTED


class Followed:
    """One log's events, those that stand in it and those that another process appends."""

    def __init__(self, place: Place) -> None:
        """Raises as `MaintainedStore.reader` does."""
        self._place = place
        self._next_seq = 0
        self._reader = self._open()
        self.header = self._reader.header

    def events(self, wanted: int = 0) -> Iterator[Event]:
        """Every complete event, without end; raises `LogCorrupt`, `NotFound`, `InvalidEvent`.

        And `NoSuchPosition` where the log does not reach `wanted` yet.
        """
        reached = 0
        while True:
            for record in self._reader.read_batches():
                if record.seq == self._next_seq:
                    self._next_seq += 1
                    yield decode_line(record.encoded)
            sys.stdout.flush()
            check_position(wanted, max(self._next_seq, reached))
            reached = wanted  # it was, and what comes next may be a shorter copy
            time.sleep(INTERVAL)
            self._keep_up()

    def _keep_up(self) -> None:
        # A repair may have put a copy in the log's place; what we read then never grows again.
        if not self._reader.is_current():
            reader = self._open()
            self._reader.close()
            self._reader = reader

    def _open(self) -> LogReader:
        return self._place.store.reader(self._place.session)

    def close(self) -> None:
        self._reader.close()


def _ledger_line(event: Event) -> str:
    data = shortened(orjson.dumps(orjson.loads(event.encoded)["data"]).decode(), DATA)
    return f"{event.seq:>6}  {visible_line(event.type):<18}  {data}"


def _title(header: SessionHeader, *, foreign: bool = False) -> str:
    name = f' "{header.name}"' if header.name else ""
    parent = ""
    if header.parent_session is not None:
        parent = (
            f", a fork: its first {header.seed_length} events are those of {header.parent_session}"
        )
    level = "" if foreign else f", durability {level_of(header)}"
    return f"session {header.id}{name}, created {utc(header.created_at)}{level}{parent}"
