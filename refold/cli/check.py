"""`refold check`: is a log whole, and is it one that the rules allow?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import click

from refold.cli.shared.exit_codes import DIFFERENT, FINE, CannotDo, exit_code, say
from refold.cli.shared.findings import Report, examine
from refold.cli.shared.logs import Place, check_store, locate
from refold.cli.shared.options import json_option, store_option
from refold.cli.shared.progress import watched
from refold.render import plural, styled, to_json, visible_line
from refold.runtime.errors import HistoryUnbalanced, HistoryUnreadable, RefoldError
from refold.runtime.storage import FileCorrupt, MaintainedStore
from refold.runtime.storage.durable_mark import MARK
from refold.runtime.storage.session_header import file_name


@click.command("check")
@click.argument("sessions", nargs=-1, metavar="SESSION...")
@click.option("--all", "every", is_flag=True, help="Check every session of the store.")
@json_option
@store_option
@click.pass_context
def command(
    ctx: click.Context,
    sessions: tuple[str, ...],
    every: bool,
    as_json: bool,
    store: MaintainedStore,
) -> None:
    """Is a log whole, and is it one that the rules allow? Nothing is changed.

    Integrity: framing and checksum chain, the head file, a torn tail, files of dropped bytes and
    whether an event reports them. Rules: what every event may be after those before it, and whether
    a session can go on with them: tool calls without results, results without calls, events that
    lack what says where the log stands. With --all also sessions that are gone though their head
    files are there, and the pages and indexes of a SQLite file. Exit code 1 where a rule is broken,
    a tail is torn, a session is gone or there is nothing to check, 4 where a log or a SQLite file
    is damaged, 3 where it or the store cannot be read.

    \b
    Examples:
      refold check last
      refold check --all --json
    """
    if every == bool(sessions):
        raise click.UsageError("name one session or more, or give --all")
    found = _examine_all(store) if every else _Found([*_examine(store, sessions)])
    if as_json:
        click.echo(to_json(_all_as_json(found)))
    else:
        for line in (line for report in found.reports for line in _lines(report)):
            click.echo(line)
        for session in found.vanished:
            click.echo(styled(visible_line(_vanished(store, session)), "red"))
    if found.problem is not None:
        say(str(found.problem))
    ctx.exit(found.exit_code)


@attrs.frozen
class _Found:
    """What a check found; `problem` is what is wrong with the store itself, or that it is empty."""

    reports: list[Report]
    vanished: Sequence[str] = ()
    problem: RefoldError | None = None

    @property
    def exit_code(self) -> int:
        codes = [report.exit_code for report in self.reports]
        if self.problem is not None:
            codes.append(exit_code(self.problem))
        return max([*codes, DIFFERENT if self.vanished else FINE])


def _examine(store: MaintainedStore, names: Sequence[str]) -> Iterator[Report]:
    places = [locate(store, name) for name in names]
    return map(examine, watched(places, lambda place: f"checking {place.session}"))


def _examine_all(store: MaintainedStore) -> _Found:
    try:
        if not store.is_there():
            where = "name another with --store or REFOLD_STORE"
            raise CannotDo(f"there is no store at {store.address}; {where}")
        places, vanished = [Place(store, name) for name in store.list()], store.vanished()
    except RefoldError as refused:
        return _Found([], problem=refused)
    reports = [*map(examine, watched(places, lambda place: f"checking {place.session}"))]
    return _Found(reports, vanished, _problem(store, found_any=bool(reports or vanished)))


def _problem(store: MaintainedStore, *, found_any: bool) -> RefoldError | None:
    try:
        check_store(store)
    except FileCorrupt as damage:  # also of pages that reading sessions does not meet
        return damage
    if found_any:
        return None
    return CannotDo(
        f"nothing to check: there are no sessions in {store.address}; name another store with "
        "--store or REFOLD_STORE",
        DIFFERENT,
    )


def _vanished(store: MaintainedStore, session: str) -> str:
    head = store.reports / f"{file_name(session)}{MARK}"
    return (
        f"{session}  gone: its head file {head} is there and its log is not; restore the log from "
        "a copy, or remove that file if it is not missed"
    )


def _lines(report: Report) -> Iterator[str]:
    findings = report.findings
    verdict = plural(len(findings), "finding") if findings else "good"
    yield visible_line(f"{report.session}  {plural(report.events, 'event')}, {verdict}")
    for finding in findings:
        yield styled(f"  {visible_line(finding)}", "red")
    for note in report.notes:
        yield styled(f"  {visible_line(note)}", "dim")


def _all_as_json(found: _Found) -> dict[str, Any]:
    return {
        "sessions": [*map(_as_json, found.reports)],
        "vanished": [*found.vanished],
        "error": None if found.problem is None else str(found.problem),
    }


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "session": report.session,
        "events": report.events,
        "foreign": report.foreign,
        "good": not report.findings,
        "findings": report.findings,
        "notes": report.notes,
        "brokenRules": [
            {"seq": b.seq, "rule": b.rule, "problem": b.problem} for b in report.broken
        ],
        **_history_as_json(report.unusable),
        "forkAt": report.fork_at,
    }


def _history_as_json(unusable: HistoryUnbalanced | HistoryUnreadable | None) -> dict[str, Any]:
    """The seqs of events that a session cannot go on with, by what is wrong with them."""
    calls = unusable if isinstance(unusable, HistoryUnbalanced) else HistoryUnbalanced(())
    unreadable = unusable.places if isinstance(unusable, HistoryUnreadable) else ()
    return {
        "unanswered": calls.seqs,
        "orphans": calls.orphans,
        "doubled": calls.doubled,
        "unreadable": [place[0] for place in unreadable],
    }
