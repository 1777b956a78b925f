"""`refold delete`: remove sessions for good."""

from __future__ import annotations

from collections.abc import Sequence

import click

from refold.cli.shared.confirmation import agreed, asking_options
from refold.cli.shared.exit_codes import DIFFERENT, say
from refold.cli.shared.logs import Place, check_store, locate
from refold.cli.shared.options import store_option
from refold.cli.shared.removal import Removal, remove, tell
from refold.render import visible_line
from refold.runtime.storage import MaintainedStore


@click.command("delete")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@asking_options
@store_option
@click.pass_context
def command(
    ctx: click.Context, sessions: tuple[str, ...], yes: bool, as_json: bool, store: MaintainedStore
) -> None:
    """Remove sessions for good, with all that is kept beside their logs.

    Damaged ones can be removed, too. A fork is a session of its own and loses nothing with its
    parent. One that somebody has open is refused, and the others are removed even so; the exit
    code then is 1. In a SQLite file that is damaged itself none is removed (exit code 4).

    \b
    Examples:
      refold delete last --yes
      refold delete last --yes --json
    """
    places = _named(store, sessions)
    if as_json and not yes:
        tell([Removal(place.session) for place in places], as_json=True)
        ctx.exit(DIFFERENT)
    names = ", ".join(place.session for place in places)
    if not agreed(visible_line(f"Delete {names} for good?"), yes=yes):
        say("nothing was deleted")
        ctx.exit(DIFFERENT)
    ctx.exit(tell([*remove(places)], as_json=as_json))


def _named(store: MaintainedStore, names: Sequence[str]) -> list[Place]:
    """The sessions that are named, each once."""
    places = [locate(store, name) for name in names]
    for found in {place.store.address: place.store for place in places}.values():
        check_store(found)
    return [*{(place.store.address, place.session): place for place in places}.values()]
