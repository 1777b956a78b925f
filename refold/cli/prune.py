"""`refold prune`: remove the sessions that were not used for long."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs
import click

from refold.cli.shared.confirmation import agreed, asking_options
from refold.cli.shared.exit_codes import DIFFERENT, FINE, CannotDo, say
from refold.cli.shared.last_use import doubt, newest_first, now_ms
from refold.cli.shared.logs import Place, check_store
from refold.cli.shared.options import store_option
from refold.cli.shared.progress import watched
from refold.cli.shared.removal import Removal, remove, tell
from refold.cli.shared.session_rows import NEWER, Row, read_row
from refold.render import plural, table
from refold.runtime.storage import MaintainedStore
from refold.runtime.times import utc

_UNITS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

BAD = frozenset({"damaged", "unreadable", "half-written", "foreign"})
"""The states of logs that nobody can go on with, and that may be all that is left of something."""


def _age(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    """An age in ms from its form on the command line."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no age such as 90m, 12h, 30d or 8w")
    return int(found[1]) * _UNITS[found[2]]


@attrs.frozen
class Old:
    """A session that was last used at `since`, epoch ms."""

    name: str
    row: Row
    since: int

    @property
    def known(self) -> dict[str, Any]:
        """What JSON says of it beside its name."""
        return {"lastActivity": self.since, "state": self.row.state}


@click.command("prune")
@click.option(
    "--older-than",
    "age",
    required=True,
    metavar="AGE",
    callback=_age,
    help="How long ago the last activity was, such as 90m, 12h, 30d or 8w.",
)
@click.option("--damaged", is_flag=True, help="Damaged and foreign logs, too.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@asking_options
@store_option
@click.pass_context
def command(
    ctx: click.Context,
    age: int,
    damaged: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    store: MaintainedStore,
) -> None:
    """Remove the sessions whose last activity was long ago, for good.

    They are listed before it asks, and each is looked at again before it goes: one that was used
    or damaged in between is left alone, and one that somebody has open is refused. The others are
    removed even so; the exit code then is 1.

    The last activity is that of `refold sessions`; a damaged log, whose last event nobody knows,
    goes by when it was written to, and is left alone without --damaged. What cannot be dated, since
    a clock was wrong, and what a newer refold wrote is left alone too; `refold delete`
    removes it. With --json, what is old is
    listed; the exit code is 1 if there is any and neither --yes nor --dry-run is given.

    \b
    Examples:
      refold prune --older-than 30d --dry-run
      refold prune --older-than 8w --yes --json
    """
    check_store(store)
    old = [*_older(store, now_ms() - age, damaged=damaged)]
    if as_json and (dry_run or not yes or not old):
        tell([Removal(found.name, known=found.known) for found in old], as_json=True)
        ctx.exit(FINE if dry_run or not old else DIFFERENT)
    if not as_json:
        click.echo(_listed(old))
    if dry_run or not old:
        ctx.exit(FINE)
    if not agreed(f"Delete {plural(len(old), 'session')} for good?", yes=yes):
        say("nothing was deleted")
        ctx.exit(DIFFERENT)
    ctx.exit(tell([*_remove(store, old)], as_json=as_json))


def _older(store: MaintainedStore, than: int, *, damaged: bool) -> Iterator[Old]:
    """The sessions whose last activity was at `than` (epoch ms) or before, the oldest first."""
    names = [*reversed(newest_first(store, store.names()))]
    undated: list[str] = []
    for name in watched(names, lambda name: f"reading {name}"):
        row = read_row(store, name)
        if row.state == NEWER or (row.state in BAD and not damaged):
            continue
        since = _since(store, name, row)
        if _doubt(row, since):
            undated.append(name)
        elif since <= than:
            yield Old(name, row, since)
    if undated:
        say(
            f"{plural(len(undated), 'session')} cannot be dated, for a clock was wrong, and "
            f"{'is' if len(undated) == 1 else 'are'} left alone; `refold sessions` shows which"
        )


def _remove(store: MaintainedStore, old: list[Old]) -> Iterator[Removal]:
    """Delete them but for those that changed after the listing; a question may wait for long."""
    listed = {found.name: found for found in old}

    def check(place: Place) -> None:
        was, row = listed[place.session], read_row(store, place.session)
        is_used = _since(store, place.session, row) > was.since
        spoilt = row.state in (*BAD, NEWER) and was.row.state not in BAD
        if is_used or spoilt:
            what = f"session {place.session!r} has changed since it was listed"
            raise CannotDo(f"{what}; it is left alone", DIFFERENT)

    for removal in remove([Place(store, found.name) for found in old], check):
        yield attrs.evolve(removal, known=listed[removal.session].known)


def _since(store: MaintainedStore, name: str, row: Row) -> int:
    last = row.counts.last_activity
    written = store.written_at(name) // 1_000_000
    return written if last is None or row.state in BAD else last


def _doubt(row: Row, since: int) -> str:
    return doubt(since) if row.state in BAD else row.doubt


def _listed(old: list[Old]) -> str:
    if not old:
        return "no session is that old"
    rows = [(found.name, utc(found.since), found.row.state) for found in old]
    return table(("session", "last activity", "state"), rows, left=frozenset({0, 1, 2}))
