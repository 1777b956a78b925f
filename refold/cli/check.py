"""`refold check`: is a log whole, and is it one that the rules allow?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from refold.cli.exits import DAMAGE, DIFFERENT, FINE, exit_code
from refold.cli.opening import Place, all_sessions, json_option, locate, store_option
from refold.cli.progress import watched
from refold.render import plural, styled, to_json, visible_line
from runtime.envelope import Event, decode_line
from runtime.errors import RefoldError, RuleBroken
from runtime.events import SessionRecovered
from runtime.repair import interrupted_turn_closers
from runtime.rules import Pairing, broken_rules
from runtime.session import Session
from runtime.storage import OS, JsonlFolder, LogCorrupt, Scan, Torn
from runtime.storage.files import exists, reported
from runtime.storage.head import Head, read_head
from runtime.storage.layout import Layout


@attrs.frozen
class Report:
    """What a check found of one session.

    `head` is what the head file vouches for, `head_damaged` whether there is one that cannot be
    trusted. `quarantine` gives, for each file of dropped bytes, the seq of the event that reports
    it; `unanswered` are the seqs of messages whose tool calls never got a result; `closers` counts
    the events that close an open turn.
    """

    session: str
    events: int = 0
    foreign: bool = False
    torn: Torn | None = None
    head: Head | None = None
    head_damaged: bool = False
    quarantine: tuple[tuple[str, int | None], ...] = ()
    broken: tuple[RuleBroken, ...] = ()
    unanswered: tuple[int, ...] = ()
    closers: int = 0
    error: RefoldError | None = None

    @property
    def findings(self) -> list[str]:
        """What is wrong, a line each."""
        return [*self._of_the_file(), *map(str, self.broken), *self._of_the_history()]

    def _of_the_file(self) -> Iterator[str]:
        if self.error is not None:
            yield str(self.error)
        if self.torn is not None:
            yield _torn(self.torn)
        if self.head_damaged:
            yield "its head file is damaged and vouches for nothing; the next closing renews it"
        for name, seq in self.quarantine:
            if seq is None:
                yield f"{name} holds dropped bytes that no event reports; the next opening does"

    def _of_the_history(self) -> Iterator[str]:
        if self.unanswered:
            seqs = ", ".join(map(str, self.unanswered))
            yield (
                f"the tool calls of seq {seqs} never got a result, so the history cannot be sent; "
                "fork the session at a turn/end before them"
            )

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and is not wrong, a line each."""
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        for name, seq in self.quarantine:
            if seq is not None:
                yield f"{name} holds the dropped bytes that seq {seq} reports"
        if self.closers:
            yield f"a turn is open; the next opening closes it ({plural(self.closers, 'event')})"
        if self.foreign:
            yield "not written by refold: its lines have no checksums"
        elif self.events and self.error is None and not self.head_damaged:
            yield from self._coverage()

    def _coverage(self) -> Iterator[str]:
        last = self.events - 1
        if self.head is None:
            yield "no head file: damage to the last batch would look like a torn tail"
        elif self.head.seq < last:
            yield f"its head file vouches for the events up to seq {self.head.seq} of {last}"

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return exit_code(self.error)
        return DIFFERENT if self.findings else FINE


@click.command("check")
@click.argument("sessions", nargs=-1, metavar="SESSION...")
@click.option("--all", "every", is_flag=True, help="Check every session of the store.")
@json_option
@store_option
@click.pass_context
def command(
    ctx: click.Context, sessions: tuple[str, ...], every: bool, as_json: bool, store: Path
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
    names = all_sessions(store) if every else sessions
    places = [Place(store, name) if every else locate(store, name) for name in names]
    checked = watched(places, lambda place: f"checking {place.session}")
    reports = [examine(place) for place in checked]
    if as_json:
        click.echo(to_json({"sessions": [*map(_as_json, reports)]}))
    else:
        click.echo("\n".join(line for report in reports for line in _lines(report)))
    ctx.exit(max([report.exit_code for report in reports], default=FINE))


def examine(place: Place) -> Report:
    """Everything that a check finds of one session; what stops it is kept in the report."""
    report = Report(place.session)
    try:
        report = _with_head(report, Layout(place.store))
        found = JsonlFolder(place.store).read(place.session)
    except LogCorrupt as damage:
        if damage.readable is not None:
            report = _read(report, damage.readable, place)
        return attrs.evolve(report, error=damage, torn=None)
    except RefoldError as refused:
        return attrs.evolve(report, error=refused)
    return _read(report, found, place)


def _with_head(report: Report, layout: Layout) -> Report:
    path = layout.head(report.session)
    with reported(path):
        head = read_head(OS, path)
        return attrs.evolve(report, head=head, head_damaged=head is None and exists(OS, path))


def _read(report: Report, found: Scan, place: Place) -> Report:
    report = attrs.evolve(report, events=len(found.records), foreign=found.foreign, torn=found.torn)
    try:
        events = [decode_line(record.encoded) for record in found.records]
        report = attrs.evolve(report, quarantine=tuple(_quarantine(place, events)))
        return _judged(report, events, found.header.seed_length or 0)
    except DAMAGE as damage:
        return attrs.evolve(report, error=damage)


def _judged(report: Report, events: Sequence[Event], seed_length: int) -> Report:
    read = watched(events, lambda event: f"checking {report.session}, seq {event.seq}")
    closers = interrupted_turn_closers(events, seed_length)
    return attrs.evolve(
        report,
        broken=tuple(broken_rules(read, seed_length)),
        closers=len(closers),
        unanswered=_unanswered(events),
    )


def _unanswered(events: Sequence[Event]) -> tuple[int, ...]:
    """The messages whose calls have no result on the surface, but for those of an open step."""
    session, opened = Session(retain=False), len(events)
    pairing = Pairing(session.surface)
    for event in events:
        session.replay(event)
        pairing.apply(event)
        if event.type == "step/start":
            opened = event.seq
        elif event.type in ("step/end", "turn/start", "turn/end"):
            opened = len(events)
    return tuple(seq for seq in pairing.unbalanced() if seq < opened)


def _quarantine(place: Place, events: Sequence[Event]) -> Iterator[tuple[str, int | None]]:
    named = {
        name: event.seq
        for event in events
        if event.type == "session/recovered" and isinstance(event.data, SessionRecovered)
        for name in (event.data.quarantine or "").split(",")
    }
    with reported(place.store):
        found = sorted(path.name for path in place.store.glob(f"{place.session}.torn-*"))
    return ((name, named.get(name)) for name in found)


def _torn(torn: Torn) -> str:
    if torn.missing_newline:
        return "its last line lost its newline; the next opening puts it back"
    return (
        f"its tail is torn at byte {torn.offset} ({torn.reason}): "
        f"{plural(torn.dropped_bytes, 'byte')} are no part of the log; the next opening cuts them"
    )


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
        "unanswered": report.unanswered,
    }
