"""`refold fork`: a new session that begins with the events of another."""

from __future__ import annotations

import re

import click

from refold.actors.ids import new_id, now_ms
from refold.cli.shared.exit_codes import USAGE, CannotDo, say
from refold.cli.shared.logs import ReadLog, locate, read_log
from refold.cli.shared.options import json_option, store_option
from refold.render import to_json
from refold.runtime.events import TurnEnd
from refold.runtime.rules.soundness import refusal_of
from refold.runtime.storage import LogCorrupt, MaintainedStore, SessionHeader
from refold.runtime.storage.fork import fork_point
from refold.runtime.storage.owners import current_folder


def _check_at(_ctx: click.Context, _param: click.Parameter, at: str | None) -> str | None:
    form = r"(turn:)?[0-9]{1,18}|[0-9]{1,18}\.[0-9]{1,18}"
    if at is not None and re.fullmatch(form, at, re.ASCII) is None:
        raise click.BadParameter(f"{at!r} is no seq, no step such as 3.1 and no turn:3")
    return at


@click.command("fork")
@click.argument("session")
@click.option(
    "--at",
    callback=_check_at,
    metavar="SEQ|STEP|TURN",
    help="The seq of a turn/end, the last step of a turn such as 3.1, or turn:3.",
)
@click.option("--name", help="A label for the new session.")
@json_option
@store_option
def command(
    session: str, at: str | None, name: str | None, as_json: bool, store: MaintainedStore
) -> None:
    """A new session that begins with the events of another; its id is printed.

    A session forks where a turn has ended, by default the last one: the bytes up to there are
    copied as they are, so the requests of the fork begin with those of its parent. The parent is
    not changed, and may be running. A history that no session can go on with is refused, such as
    one that holds tool calls without results, and the last turn before that named: give it with
    --at.

    \b
    Examples:
      refold fork last
      refold fork last --at turn:1 --name "another try"
    """
    parent = locate(store, session)
    header = SessionHeader(
        new_id(),
        created_at=now_ms(),
        cwd=current_folder(),
        name=name,
        durability="power",
    )
    log = read_log(parent.store, parent.session)
    seq = None if at is None else _seq(log, at)
    _check_history(log, seq)
    parent.store.fork(parent.session, seq, header)
    seq = (parent.store.read(header.id).header.seed_length or 0) - 1
    if as_json:
        click.echo(to_json({"session": header.id, "parent": parent.session, "at": seq}))
    else:
        click.echo(header.id)
        say(f"{header.id} is a fork of {parent.session} at seq {seq}")


def _check_history(log: ReadLog, at: int | None) -> None:
    """Raise why a fork could never be gone on with, and where one could.

    What the store refuses is left to it, with its own words.
    """
    if log.scan.foreign:
        return
    if isinstance(log.damage, LogCorrupt) and (at is None or at >= len(log.events)):
        return
    end = fork_point(log.scan, at).seq + 1
    if len(log.events) < end:
        log.complete()
    refused = refusal_of(log.events[:end])
    if refused is not None:
        raise refused


def _seq(log: ReadLog, at: str) -> int:
    """The seq that `at` speaks of; raises `CannotDo`, `NoSuchStep`, and what is damaged."""
    if at.isdigit():
        return int(at)
    turn = at.startswith("turn:")
    return _turn_end(log, at) if turn else _after_step(log, at)


def _turn_end(log: ReadLog, at: str) -> int:
    ends = {event.data.turn: event.seq for event in log.events if isinstance(event.data, TurnEnd)}
    turn = int(at.removeprefix("turn:"))
    if turn not in ends:
        log.complete()
        hint = f"the last is turn:{max(ends)}" if ends else "none has ended yet"
        raise CannotDo(
            f"session {log.session!r} has no turn {turn} that has ended; {hint}, and a session "
            "forks where a turn has ended",
            USAGE,
        )
    return ends[turn]


def _after_step(log: ReadLog, at: str) -> int:
    """The `turn/end` behind a turn's last step; behind another, a seq that the store refuses."""
    step = log.find_step(at)
    for event in log.events[step.end :]:
        if event.type == "turn/end":
            return event.seq
        if event.type == "step/start":
            break
    return step.end - 1
