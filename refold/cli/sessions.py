"""`refold sessions`: the sessions of a store, and the state that each is in."""

from __future__ import annotations

from typing import Any

import click

from refold.cli.shared.exit_codes import say
from refold.cli.shared.last_use import newest_first
from refold.cli.shared.options import json_option, store_option
from refold.cli.shared.progress import watched
from refold.cli.shared.session_rows import Row, read_row
from refold.render import bar, number, shortened, table, to_json
from refold.runtime.storage import MaintainedStore
from refold.runtime.times import utc

TITLES = ("session", "name", "last activity", "turns", "in", "out", "cached/in", "state")
_LEFT = frozenset({0, 1, 2, 6, 7})
_NAME = 30  # characters of a name that the table shows


@click.command("sessions")
@json_option
@store_option
def command(as_json: bool, store: MaintainedStore) -> None:
    """The sessions of a store, the one that was written to last first, and their states.

    A state is `ok`; `open turn`, which a crash left or a running agent is in; `owned`, open for
    writing in a process; `torn`, with a tail that the next opening cuts; `damaged`, with the
    position and the reason; `half-written`, without a whole header; `foreign`, not written by
    refold; `newer format`, of a later version; or `unreadable`. A bad file never stops the list.
    Tokens are those of `refold usage`.

    A last activity that cannot be right, since it is in the future or older than its session, has a
    question mark: the clock was wrong then. In a SQLite file the order is that of writing all the
    same; in a folder such a session comes last.

    \b
    Examples:
      refold sessions
      refold sessions --json
    """
    files = newest_first(store, store.names())
    rows = [read_row(store, file) for file in watched(files, lambda file: f"reading {file}")]
    if as_json:
        click.echo(to_json({"sessions": [*map(_as_json, rows)]}))
    elif rows:
        click.echo(table(TITLES, map(_cells, rows), left=_LEFT))
    else:
        say(
            f"there are no sessions in {store.address}; name another store with --store or "
            "REFOLD_STORE"
        )


def _cells(row: Row) -> tuple[str, ...]:
    counts = row.counts
    return (
        row.session,
        shortened(row.name or "", _NAME),
        "-" if counts.last_activity is None else utc(counts.last_activity) + "?" * bool(row.doubt),
        number(counts.turns),
        number(counts.tokens_in),
        number(counts.tokens_out),
        bar(counts.cached_share),
        f"{row.state} {row.detail}".rstrip() + (f"; last used {row.doubt}" if row.doubt else ""),
    )


def _as_json(row: Row) -> dict[str, Any]:
    counts, owner = row.counts, None if row.holder is None else row.holder.owner
    return {
        "session": row.session,
        "name": row.name,
        "lastActivity": counts.last_activity,
        "doubt": row.doubt or None,
        "durability": row.durability,
        "turns": counts.turns,
        "in": counts.tokens_in,
        "cached": counts.tokens_cached,
        "out": counts.tokens_out,
        "state": row.state,
        "detail": row.detail,
        "owner": None if owner is None else {"pid": owner.pid, "host": owner.host},
        "offset": None if row.damage is None else row.damage.offset,
        "seq": None if row.damage is None else row.damage.expected_seq,
    }
