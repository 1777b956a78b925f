"""`refold verify`: rebuild every request from the stored bytes and compare digests."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import click

from refold.cli.shared.exit_codes import DIFFERENT, FINE, exit_code, say
from refold.cli.shared.logs import Place, StoredLog, locate, open_log
from refold.cli.shared.options import json_option, store_option
from refold.render import is_terminal, plural, styled, to_json, visible_line
from refold.runtime.errors import RefoldError
from refold.runtime.storage import MaintainedStore
from refold.runtime.verify import Verdict, verify_requests

PATIENCE = 1.0
"""Seconds of work after which progress is shown, and between two signs of it."""


@attrs.frozen
class Tally:
    """What became of the requests of one session, or of several."""

    session: str
    verified: int = 0
    unsealed: int = 0
    unverifiable: int = 0
    mismatches: tuple[Verdict, ...] = ()
    error: RefoldError | None = None

    @property
    def sealed(self) -> int:
        return self.verified + self.unverifiable + len(self.mismatches)

    def count(self, verdict: Verdict) -> Tally:
        if verdict.problem:
            return attrs.evolve(self, mismatches=(*self.mismatches, verdict))
        return attrs.evolve(
            self,
            verified=self.verified + verdict.verified,
            unsealed=self.unsealed + (not verdict.sealed),
            unverifiable=self.unverifiable + verdict.unverifiable,
        )

    def complaint(self, *, allow_unsealed: bool) -> str:
        """Why these requests do not pass; empty if they do."""
        if self.mismatches:
            count = len(self.mismatches)
            return "1 mismatch" if count == 1 else f"{count} mismatches"
        if self.unsealed and not allow_unsealed:
            return (
                f"{plural(self.unsealed, 'request')} without a seal; "
                "--allow-unsealed lets them pass"
            )
        return ""


@click.command("verify")
@click.argument("sessions", nargs=-1, metavar="SESSION...")
@click.option("--all", "every", is_flag=True, help="Verify every session of the store.")
@click.option("--allow-unsealed", is_flag=True, help="Let requests pass that no seal speaks of.")
@json_option
@store_option
@click.pass_context
def command(
    ctx: click.Context,
    sessions: tuple[str, ...],
    every: bool,
    allow_unsealed: bool,
    as_json: bool,
    store: MaintainedStore,
) -> None:
    """Rebuild every request from the stored bytes and compare digests.

    Nothing is trusted but the bytes of the log. Sealed requests are verified, unverifiable (made
    by a codec that this version does not know) or mismatches. Exit code 1 on a mismatch, on a
    request without a seal, and if there was nothing to verify.

    \b
    Examples:
      refold verify last
      refold verify --all --json
    """
    if every == bool(sessions):
        raise click.UsageError("name one session or more, or give --all")
    places = _places(store, sessions)
    progress = Progress(len(places))
    tallies = [_verify(place, progress) for place in places]
    progress.finish()
    total = _total(tallies)
    complaint = _complaint(total, allow_unsealed=allow_unsealed)
    if as_json:
        click.echo(to_json({"sessions": [*map(_as_json, tallies)], "total": _as_json(total)}))
    else:
        click.echo("\n".join(_lines(tallies, total, complaint)))
    ctx.exit(_exit(tallies, complaint))


def _places(store: MaintainedStore, sessions: Sequence[str]) -> list[Place]:
    if not sessions:
        return [Place(store, session) for session in store.list()]
    return [locate(store, name) for name in sessions]


def _verify(place: Place, progress: Progress) -> Tally:
    """Verify what is readable of one log; what stops that is kept beside the counts."""
    tally = Tally(place.session)
    try:
        log = open_log(place)
        for verdict in progress.watch(log, verify_requests(log.scan.records)):
            tally = tally.count(verdict)
    except RefoldError as error:
        return attrs.evolve(tally, error=error)
    return attrs.evolve(tally, error=log.damage)


class Progress:
    """Signs of life on standard error, if it is a terminal and the work takes long."""

    def __init__(self, logs: int) -> None:
        self._logs, self._started = logs, 0
        self._next = time.monotonic() + PATIENCE
        self._shown = False

    def watch(self, log: StoredLog, verdicts: Iterator[Verdict]) -> Iterator[Verdict]:
        self._started += 1
        for verdict in verdicts:
            yield verdict
            if time.monotonic() >= self._next and is_terminal(sys.stderr):
                self._show(log, verdict.seq)

    def _show(self, log: StoredLog, seq: int) -> None:
        self._next = time.monotonic() + PATIENCE
        self._shown = True
        place = f"log {self._started} of {self._logs}, seq {seq} of {len(log.scan.records)}"
        click.echo(f"\rverifying {log.session}: {place}\x1b[K", err=True, nl=False)

    def finish(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def _total(tallies: Sequence[Tally]) -> Tally:
    return Tally(
        "total",
        sum(tally.verified for tally in tallies),
        sum(tally.unsealed for tally in tallies),
        sum(tally.unverifiable for tally in tallies),
        tuple(verdict for tally in tallies for verdict in tally.mismatches),
    )


def _complaint(total: Tally, *, allow_unsealed: bool) -> str:
    found = total.complaint(allow_unsealed=allow_unsealed)
    if found or total.verified or (allow_unsealed and total.unsealed):
        return found
    return "nothing to verify"


def _exit(tallies: Sequence[Tally], complaint: str) -> int:
    codes = []
    for tally in tallies:
        if tally.error is not None:
            say(f"{tally.session}: {tally.error}")
            codes.append(exit_code(tally.error))
    return max([*codes, DIFFERENT if complaint else FINE])


def _lines(tallies: Sequence[Tally], total: Tally, complaint: str) -> Iterator[str]:
    for tally in tallies:
        yield _line(tally)
        for verdict in tally.mismatches:
            yield styled(f"  {_mismatch(verdict)}", "red")
    if len(tallies) != 1:
        yield _line(total)
    if complaint:
        yield styled(f"not verified: {complaint}", "red")


def _line(tally: Tally) -> str:
    return visible_line(
        f"{tally.session}  {tally.sealed} sealed, {tally.verified} verified, "
        f"{tally.unsealed} unsealed, {tally.unverifiable} unverifiable, "
        f"{len(tally.mismatches)} mismatches"
    )


def _mismatch(verdict: Verdict) -> str:
    return visible_line(f"step {verdict.turn}.{verdict.step}, seq {verdict.seq}: {verdict.problem}")


def _as_json(tally: Tally) -> dict[str, Any]:
    return {
        "session": tally.session,
        "sealed": tally.sealed,
        "verified": tally.verified,
        "unsealed": tally.unsealed,
        "unverifiable": tally.unverifiable,
        "mismatches": [
            {"turn": v.turn, "step": v.step, "seq": v.seq, "problem": v.problem}
            for v in tally.mismatches
        ],
        "error": None if tally.error is None else str(tally.error),
    }
