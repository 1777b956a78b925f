"""`refold show`: a readable transcript of a session, or its raw events."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import click
import orjson

from refold.cli.opening import Place, locate, read_log
from refold.cli.options import json_option, store_option
from refold.cli.transcript import transcript
from refold.render import shortened, styled, visible_json, visible_line
from runtime.envelope import Event, decode_line
from runtime.moments import utc
from runtime.storage import LogReader, MaintainedStore, SessionHeader

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

    Characters that a terminal would obey or hide are shown as escapes. A damaged log is shown up
    to the damage (exit code 4). With --json each event is one line of JSON, whole. With --follow
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
    log = read_log(store, session)
    _print(log.scan.header, log.events, from_seq, form)
    log.complete()


def _print(header: SessionHeader, events: Iterable[Event], from_seq: int, form: Form) -> None:
    sys.stdout.writelines(f"{line}\n" for line in _lines(header, events, from_seq, form))


def _lines(
    header: SessionHeader, events: Iterable[Event], from_seq: int, form: Form
) -> Iterator[str]:
    if form == "transcript":
        yield styled(visible_line(_title(header)), "bold")
        yield from transcript(events, from_seq)
        return
    shown = (event for event in events if event.seq >= from_seq)
    if form == "json":
        yield from (visible_json(event.encoded) for event in shown)
    else:
        yield from map(_ledger_line, shown)


def _follow(place: Place, from_seq: int, form: Form) -> int:
    """Print events as they come until Ctrl-C; the exit code that a shell expects of it."""
    followed = Followed(place)
    try:
        _print(followed.header, followed.events(), from_seq, form)
    except KeyboardInterrupt:
        sys.stdout.flush()
    finally:
        followed.close()
    return INTERRUPTED


class Followed:
    """One log's events, those that stand in it and those that another process appends."""

    def __init__(self, place: Place) -> None:
        """Raises as `Sessions.reader` does."""
        self._place = place
        self._next_seq = 0
        self._reader = self._open()
        self.header = self._reader.header

    def events(self) -> Iterator[Event]:
        """Every complete event, without end; raises `LogCorrupt`, `NotFound`, `InvalidEvent`."""
        while True:
            for record in self._reader.read_batches():
                if record.seq == self._next_seq:
                    self._next_seq += 1
                    yield decode_line(record.encoded)
            sys.stdout.flush()
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


def _title(header: SessionHeader) -> str:
    name = f' "{header.name}"' if header.name else ""
    parent = ""
    if header.parent_session is not None:
        parent = (
            f", a fork: its first {header.seed_length} events are those of {header.parent_session}"
        )
    return f"session {header.id}{name}, created {utc(header.created_at)}{parent}"
