"""`refold export`: the stored bytes of a session, as a file or into another store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import click

from refold.cli.shared.exit_codes import CannotDo, say
from refold.cli.shared.export_target import check_target
from refold.cli.shared.logs import Place, locate
from refold.cli.shared.options import STORE, json_option, opened_store, store_option
from refold.render import is_terminal, plural, to_json, visible_line
from refold.runtime.errors import UnsupportedVersion
from refold.runtime.storage import (
    OS,
    ForeignLog,
    LogCorrupt,
    MaintainedStore,
    Scan,
    check_session_id,
)
from refold.runtime.storage.believable import believable
from refold.runtime.storage.files import reported, write_file
from refold.runtime.storage.salvage import lines_of, salvage


@click.command("export")
@click.argument("session")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--to", metavar=STORE, callback=opened_store, help="Copy it into another store.")
@click.option("--id", "wanted", metavar="ID", help="The session's id there, by default the same.")
@click.option("--readable", is_flag=True, help="Of a damaged log, what stands before the damage.")
@click.option("--raw", is_flag=True, help="All stored bytes, whatever they are.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
@store_option
def command(
    *,
    session: str,
    file: Path | None,
    to: MaintainedStore | None,
    wanted: str | None,
    readable: bool,
    raw: bool,
    force: bool,
    as_json: bool,
    store: MaintainedStore,
) -> None:
    """The stored bytes of a session, as a log file or into another store.

    Without FILE and without --to they go to standard output, unless that is a terminal. They are
    exactly those that are stored, but for a torn tail, which is left out and told. A file is
    overwritten only with --force. What is no plain file, what is in a store's own folder and what
    belongs to a SQLite file is never written to. Of a damaged log nothing is exported without
    --readable (exit code 4). With --raw the stored bytes are given unjudged: of a damaged log also
    what stands behind the damage, and those of a log that a newer refold wrote.

    \b
    Examples:
      refold export last | gzip -c | wc -c
      refold export last copy.jsonl
      refold export last --to sqlite:///copies.db
      refold export last --to elsewhere --id another --json
    """
    _check_usage(file, to, wanted, as_json=as_json)
    if raw and (to is not None or readable):
        raise click.UsageError("--raw goes with FILE or standard output, and not with --readable")
    place = locate(store, session)
    if file is not None:
        check_target(file, place.store)
    if raw:
        _export_raw(place, file, force=force, as_json=as_json)
        return
    taken = _read(place, readable=readable)
    if to is not None:
        _into_store(taken, to, wanted)
    elif file is not None:
        _into_file(taken.data, file, force=force)
    else:
        click.echo(taken.data, nl=False)
    if to is not None or file is not None:
        where = to.address if to is not None else str(file)
        name = wanted or taken.place.session
        click.echo(to_json(_as_json(taken, name, where)) if as_json else visible_line(where))
        say(f"{plural(taken.events, 'event')} of {taken.place.session} are in {where}")


def _check_usage(
    file: Path | None, to: MaintainedStore | None, wanted: str | None, *, as_json: bool
) -> None:
    if file is not None and to is not None:
        raise click.UsageError("give FILE or --to, not both")
    if wanted is not None:
        if to is None:
            raise click.UsageError("--id goes with --to; a file keeps the bytes as they are")
        check_session_id(wanted)
    if file is None and to is None:
        if as_json:
            raise click.UsageError("--json goes with FILE or --to; the log is JSON by itself")
        if is_terminal(sys.stdout):
            raise click.UsageError("name a FILE, or --to another store, or redirect the output")


@attrs.frozen
class Taken:
    """What is exported of a log; `left_out` counts the bytes that are not."""

    place: Place
    found: Scan
    data: bytes = attrs.field(repr=False)
    lines: bytes = attrs.field(repr=False)
    left_out: int

    @property
    def events(self) -> int:
        return len(self.found.records)


def _read(place: Place, *, readable: bool) -> Taken:
    try:
        found = place.store.read(place.session)
    except LogCorrupt as damage:
        return _before(place, damage, readable=readable)
    except UnsupportedVersion:
        say("--raw exports its bytes as they are")
        raise
    stored = place.store.raw(place.session)
    lines = lines_of(stored, found)
    start = found.records[0].offset if found.records else found.end.offset
    data = stored[:start] + lines
    left_out = 0 if found.torn is None else found.torn.dropped_bytes
    if left_out:
        say(f"{plural(left_out, 'byte')} at the end of {place.session} are torn; left out")
    return Taken(place, found, data, lines, left_out)


def _before(place: Place, damage: LogCorrupt, *, readable: bool) -> Taken:
    """What stands before the damage, where that is wanted; raises the damage else."""
    found = damage.readable
    if found is None:
        say(f"nothing of {place.session} can be exported but its bytes as they are, with --raw")
        raise damage
    if not readable:
        count = plural(len(found.records), "event")
        say(f"{count} before the damage can be read; --readable exports those, --raw all bytes")
        raise damage
    say(str(damage))
    stored = place.store.raw(place.session)
    behind = [record.seq for record in believable(stored, found)]
    if behind:
        say(
            f"{plural(len(behind), 'event')} behind the damage still fit their checksums; no log "
            "can hold them without those between: `refold show "
            f"{place.session} --from {behind[0]}` shows them, and --raw exports all bytes"
        )
    kept = salvage(stored, found)
    found = attrs.evolve(found, header=kept.header)
    return Taken(place, found, kept.data, kept.lines, len(kept.dropped))


def _into_store(taken: Taken, to: MaintainedStore, wanted: str | None) -> None:
    if taken.found.foreign:
        raise ForeignLog(taken.place.session)
    header = taken.found.header
    to.adopt(attrs.evolve(header, id=wanted or header.id), taken.lines)


def _export_raw(place: Place, file: Path | None, *, force: bool, as_json: bool) -> None:
    data = place.store.raw(place.session)
    if file is None:
        click.echo(data, nl=False)
        return
    _into_file(data, file, force=force)
    told = {"session": place.session, "to": str(file), "bytes": len(data)}
    click.echo(to_json(told) if as_json else visible_line(str(file)))
    say(f"{plural(len(data), 'byte')} of {place.session} are in {file}, unjudged")


def _into_file(data: bytes, file: Path, *, force: bool) -> None:
    """Write the file whole and durable, or leave what was there.

    Of many who want its name one gets it, and without `force` none overwrites another's.
    """
    with reported(file):
        try:
            write_file(OS, file, data, sync=True, replace=force)
        except FileExistsError:
            what = "name another file, or overwrite it with --force"
            raise CannotDo(f"{file} is there already; {what}") from None


def _as_json(taken: Taken, session: str, where: str) -> dict[str, Any]:
    return {
        "session": session,
        "to": where,
        "events": taken.events,
        "bytes": len(taken.data),
        "leftOutBytes": taken.left_out,
    }
