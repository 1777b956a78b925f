"""`refold repair`: explain what is wrong with a log, ask, and keep what can be kept."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from refold.cli.shared.confirmation import agreed, asking_options
from refold.cli.shared.exit_codes import DIFFERENT, FINE
from refold.cli.shared.logs import locate
from refold.cli.shared.options import store_option
from refold.cli.shared.repair_plan import Plan, plan_repair, repair
from refold.render import plural, styled, to_json, visible_line
from refold.runtime.errors import RefoldError
from refold.runtime.storage import MaintainedStore


@click.command("repair")
@click.argument("session")
@asking_options
@store_option
@click.pass_context
def command(
    ctx: click.Context, session: str, yes: bool, as_json: bool, store: MaintainedStore
) -> None:
    """Explain what is wrong with a log, ask, and keep what can be kept.

    Of a damaged log the verified events before the damage are kept, up to the last whole batch. A
    copy of all that was stored stays beside it, and so do the bytes that are no part of it any
    more; the next opening reports those in the log. A torn tail, a lost newline and a damaged
    head file are mended as an opening does it. Nothing is done to a log that somebody has open.

    What events say is never changed. Where tool calls have no result, so that the history cannot
    be sent, the command that forks the session before them is printed. Exit code 1 if something is
    left to do, 4 if the log cannot be repaired: in a SQLite file that is damaged itself none can.

    \b
    Examples:
      refold repair last
      refold repair last --yes --json
    """
    place = locate(store, session)
    try:
        plan = plan_repair(place)
    except RefoldError as refused:
        if as_json:
            click.echo(to_json(_refusal(place.session, refused)))
        raise
    named = place.store is not store or _said(ctx, "store")
    fork = _fork_command(plan, named=named)
    if not as_json:
        click.echo("\n".join(_explained(plan)))
    done, copy = False, None
    if plan.steps and (yes or not as_json):
        done = agreed(f"Repair {place.session}?", yes=yes)
        copy = repair(plan) if done else None
    if as_json:
        click.echo(to_json(_as_json(plan, done, copy, fork)))
    else:
        click.echo("\n".join(_told(plan, done, copy, fork)))
    ctx.exit(DIFFERENT if plan.limits or (plan.steps and not done) else FINE)


def _said(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _fork_command(plan: Plan, *, named: bool) -> str | None:
    """How the session is forked before what is wrong with its history, ready to be pasted."""
    if plan.report.fork_at is None or not plan.limits:
        return None
    store = ["--store", shlex.quote(plan.place.store.address)] if named else []
    return " ".join(["refold fork", plan.place.session, f"--at {plan.report.fork_at}", *store])


def _explained(plan: Plan) -> Iterator[str]:
    report = plan.report
    found = plural(len(report.findings), "finding") if report.findings else "good"
    yield visible_line(f"{report.session}  {plural(report.events, 'event')}, {found}")
    for finding in report.findings:
        yield styled(f"  {visible_line(finding)}", "red")
    if plan.steps:
        yield "A repair will"
    for step in plan.steps:
        yield f"  - {step}"


def _told(plan: Plan, done: bool, copy: str | None, fork: str | None) -> Iterator[str]:
    session = plan.report.session
    if done:
        kept = "" if copy is None else f"; what was stored is kept in {copy}"
        yield styled(visible_line(f"{session} is repaired{kept}"), "green")
    elif plan.steps:
        yield f"{session} was left as it is"
    elif not plan.limits:
        yield f"there is nothing to repair in {session}"
    if plan.limits:
        yield "No repair changes what events say."
    if fork is not None and (done or plan.salvage is None):
        yield "A fork that leaves out what is wrong:"
        yield f"  {visible_line(fork)}"


def _refusal(session: str, refused: RefoldError) -> dict[str, Any]:
    """A plan's JSON form where there is no plan."""
    why = [str(refused)]
    nothing: dict[str, Any] = {"steps": [], "repaired": False, "copy": None}
    return {"session": session, "findings": why, **nothing, "beyondRepair": why, "fork": None}


def _as_json(plan: Plan, done: bool, copy: str | None, fork: str | None) -> dict[str, Any]:
    return {
        "session": plan.report.session,
        "findings": plan.report.findings,
        "steps": plan.steps,
        "repaired": done,
        "copy": copy,
        "beyondRepair": plan.limits,
        "fork": fork,
    }
