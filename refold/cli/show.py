"""`refold show`: a readable transcript of a session, or its raw events."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import orjson

from refold.cli.opening import ReadLog, json_option, read_log, store_option
from refold.cli.transcript import transcript
from refold.render import shortened, styled, visible_json, visible_line
from runtime.envelope import Event
from runtime.storage import SessionHeader

DATA = 100
"""How many characters of an event's data `--events` shows; `--json` has all of it."""


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
@json_option
@store_option
def command(session: str, as_events: bool, from_seq: int, as_json: bool, store: Path) -> None:
    """A readable transcript of a session, or its raw events; with --from, those from a seq on.

    Characters that a terminal would obey or hide are shown as escapes. A damaged log is shown up
    to the damage (exit code 4). With --json each event is one line of JSON, whole.

    \b
    Examples:
      refold show last
      refold show last --events --from 10
      refold show last --json
    """
    log = read_log(store, session)
    lines: Iterable[str]
    if as_json:
        lines = (visible_json(event.encoded) for event in log.events[from_seq:])
    elif as_events:
        lines = map(_ledger_line, log.events[from_seq:])
    else:
        lines = _told(log, from_seq)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    log.complete()


def _ledger_line(event: Event) -> str:
    data = shortened(orjson.dumps(orjson.loads(event.encoded)["data"]).decode(), DATA)
    return f"{event.seq:>6}  {visible_line(event.type):<18}  {data}"


def _told(log: ReadLog, from_seq: int) -> Iterator[str]:
    yield styled(visible_line(_title(log.scan.header)), "bold")
    yield from transcript(log.events, from_seq)


def _title(header: SessionHeader) -> str:
    name = f' "{header.name}"' if header.name else ""
    parent = ""
    if header.parent_session is not None:
        parent = (
            f", a fork: its first {header.seed_length} events are those of {header.parent_session}"
        )
    return f"session {header.id}{name}, created {_day(header.created_at)}{parent}"


def _day(epoch_ms: int) -> str:
    try:
        return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{epoch_ms} epoch ms"
