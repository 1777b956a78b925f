"""`refold import`: take a log file into the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
import orjson

from refold.cli.shared.exit_codes import DAMAGED, USAGE, CannotDo, say
from refold.cli.shared.options import json_option, store_option
from refold.cli.shared.progress import watched
from refold.render import plural, to_json
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import InvalidSessionId, Refused
from refold.runtime.history import History
from refold.runtime.rules.soundness import refusal_of
from refold.runtime.storage import (
    LogCorrupt,
    MaintainedStore,
    Scan,
    SessionHeader,
    check_session_id,
    frame_header,
    scan,
)
from refold.runtime.storage.files import reported
from refold.runtime.storage.reframe import reframe
from refold.runtime.storage.salvage import lines_of

_ADVICE = "nothing was imported; take another copy of the log"


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--id", "wanted", metavar="ID", help="The session's id, by default the log's own.")
@json_option
@store_option
def command(file: Path, wanted: str | None, as_json: bool, store: MaintainedStore) -> None:
    """Take a log file into the store as a session; its id is printed.

    The lines of a log that refold wrote are copied as they are. A log without checksums gets them;
    the data of its events is kept byte for byte and nothing is added. What no log may hold is
    refused before anything is written, and so is a log of whose events none is whole. A torn tail
    behind others is left out and told, and so is a history that no session can go on with. No
    session is ever overwritten.

    \b
    Examples:
      refold import recorded.jsonl
      refold import recorded.jsonl --id another --json
    """
    taken = _read(file, None if wanted is None else check_session_id(wanted))
    store.adopt(taken.header, taken.lines)
    if taken.unusable is not None:
        say(f"no session goes on with this history: {taken.unusable}")
    if taken.left_out:
        say(f"{plural(taken.left_out, 'byte')} at the end of {file} are no whole event; left out")
    if as_json:
        click.echo(to_json(_as_json(taken)))
    else:
        click.echo(taken.header.id)
        say(f"{plural(taken.events, 'event')} of {file} are session {taken.header.id}")


@attrs.frozen
class Taken:
    """A log as it will stand in the store: `lines` are its framed events, `chain` ends them.

    `left_out` counts the bytes of a torn tail; `unusable` says why no session can go on with it.
    """

    header: SessionHeader
    lines: bytes = attrs.field(repr=False)
    events: int
    chain: int
    foreign: bool
    left_out: int
    unusable: Refused | None = None


def _read(file: Path, wanted: str | None) -> Taken:
    """What becomes of a log file; raises what is wrong with it."""
    with reported(file):
        data = file.read_bytes()
    if b"\n" not in data:
        what = "has no whole line, so there is nothing to import"
        raise CannotDo(f"{file} {what}; name a session's log")
    first = _first_line(data)
    foreign = "crc" not in first
    if foreign:
        data = _with_last_newline(data)
    found = _scan(data, _expected_id(file, first, wanted), file)
    events = _events(found)
    header = attrs.evolve(found.header, id=wanted or found.header.id)
    lines, chain = lines_of(data, found), found.end.chain
    if foreign:
        header, lines = reframe(attrs.evolve(header, durability="power"), events)
        chain = scan(frame_header(header) + lines, header.id, path=str(file)).end.chain
    left_out = 0 if found.torn is None else found.torn.dropped_bytes
    return Taken(header, lines, len(events), chain, foreign, left_out, refusal_of(events))


def _scan(data: bytes, session: str, file: Path) -> Scan:
    """What the file holds; raises `CannotDo`, `LogCorrupt`, and what else `scan` raises."""
    try:
        found = scan(data, session, path=str(file))
    except LogCorrupt as damage:
        raise attrs.evolve(damage, advice=_ADVICE) from None
    if found.torn is not None and found.torn.dropped_bytes and not found.records:
        count = plural(found.torn.dropped_bytes, "byte")
        raise CannotDo(
            f"{file} has no event that is whole: {count} behind its header cannot be trusted "
            f"({found.torn.reason}); {_ADVICE}",
            DAMAGED,
        )
    return found


def _expected_id(file: Path, first: Mapping[str, Any], wanted: str | None) -> str:
    """What the log has to be called; in a foreign one the wanted id wins."""
    own = first.get("id")
    if "crc" in first or not first:
        return str(own)
    try:
        return wanted or check_session_id(own if isinstance(own, str) else "")
    except InvalidSessionId:
        what = f"{file} has no id that a session can have ({own!r})"
        raise CannotDo(f"{what}; give one with --id", USAGE) from None


def _first_line(data: bytes) -> dict[str, Any]:
    try:
        first = orjson.loads(data.partition(b"\n")[0])
    except orjson.JSONDecodeError:
        return {}
    return first if isinstance(first, dict) else {}


def _with_last_newline(data: bytes) -> bytes:
    """A last line that is whole JSON lost nothing but its newline: no part of it would parse."""
    try:
        orjson.loads(data[data.rfind(b"\n") + 1 :])
    except orjson.JSONDecodeError:
        return data
    return data + b"\n"


def _events(found: Scan) -> Sequence[Event]:
    """The events, each of which the log before it allows; raises what a session refuses."""
    session = History()
    for record in watched(found.records, lambda record: f"reading seq {record.seq}"):
        session.replay(decode_line(record.encoded))
    return session.events


def _as_json(taken: Taken) -> dict[str, Any]:
    found: dict[str, Any] = {
        "session": taken.header.id,
        "events": taken.events,
        "foreign": taken.foreign,
        "leftOutBytes": taken.left_out,
    }
    return found if taken.unusable is None else {**found, "unusable": str(taken.unusable)}
