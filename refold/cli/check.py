"""`refold check`: is a log whole, and is it one that the rules allow?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from refold.cli.exits import FINE
from refold.cli.opening import Place, locate
from refold.cli.options import json_option, store_option
from refold.cli.progress import watched
from refold.cli.report import Report, examine
from refold.render import plural, styled, to_json, visible_line
from runtime.storage import Sessions


@click.command("check")
@click.argument("sessions", nargs=-1, metavar="SESSION...")
@click.option("--all", "every", is_flag=True, help="Check every session of the store.")
@json_option
@store_option
@click.pass_context
def command(
    ctx: click.Context, sessions: tuple[str, ...], every: bool, as_json: bool, store: Sessions
) -> None:
    """Is a log whole, and is it one that the rules allow? Nothing is changed.

    Integrity: framing and checksum chain, the head file, a torn tail, files of dropped bytes and
    whether an event reports them. Rules: what every event may be after those before it, and tool
    calls that never got a result. Exit code 1 where a rule is broken or a tail is torn, 4 where a
    log is damaged, 3 where it cannot be read.

    \b
    Examples:
      refold check last
      refold check --all --json
    """
    if every == bool(sessions):
        raise click.UsageError("name one session or more, or give --all")
    names = store.list() if every else sessions
    places = [Place(store, name) if every else locate(store, name) for name in names]
    checked = watched(places, lambda place: f"checking {place.session}")
    reports = [examine(place) for place in checked]
    if as_json:
        click.echo(to_json({"sessions": [*map(_as_json, reports)]}))
    else:
        click.echo("\n".join(line for report in reports for line in _lines(report)))
    ctx.exit(max([report.exit_code for report in reports], default=FINE))


def _lines(report: Report) -> Iterator[str]:
    findings = report.findings
    verdict = f"{len(findings)} found" if findings else "good"
    yield visible_line(f"{report.session}  {plural(report.events, 'event')}, {verdict}")
    for finding in findings:
        yield styled(f"  {visible_line(finding)}", "red")
    for note in report.notes:
        yield styled(f"  {visible_line(note)}", "dim")


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
        "unanswered": [] if report.unbalanced is None else report.unbalanced.seqs,
        "forkAt": report.fork_at,
    }
