"""Removing sessions one by one, each or not; what `refold delete` and `refold prune` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import click

from refold.cli.shared.exit_codes import DIFFERENT, FINE, say
from refold.cli.shared.logs import Place
from refold.cli.shared.progress import watched
from refold.render import plural, to_json, visible_line
from refold.runtime.errors import RefoldError
from refold.runtime.json import clean_text


@attrs.frozen
class Removal:
    """What became of one session; `error` is why it is still there, if it was tried.

    `known` is what else is printed of it as JSON.
    """

    session: str
    deleted: bool = False
    error: RefoldError | None = None
    known: Mapping[str, Any] = {}


def remove(
    places: Sequence[Place], check: Callable[[Place], None] | None = None
) -> Iterator[Removal]:
    """Delete the sessions, each of which may be refused; `check` raises why, just before it."""
    for place in watched(places, lambda place: f"deleting {place.session}"):
        try:
            if check is not None:
                check(place)
            place.store.delete(place.session)
        except RefoldError as error:
            yield Removal(place.session, error=error)
        else:
            yield Removal(place.session, deleted=True)


def tell(removals: Sequence[Removal], *, as_json: bool) -> int:
    """Print what became of them, refusals on standard error; returns the exit code."""
    refused = [removal.error for removal in removals if removal.error is not None]
    for error in refused:
        say(str(error))
    if as_json:
        click.echo(to_json({"sessions": [*map(_as_json, removals)]}))
    else:
        for removal in removals:
            if removal.deleted:
                click.echo(visible_line(removal.session))
        gone = len(removals) - len(refused)
        say(f"deleted {plural(gone, 'session')}" + (f" of {len(removals)}" if refused else ""))
    return DIFFERENT if refused else FINE


def _as_json(removal: Removal) -> dict[str, Any]:
    return {
        "session": clean_text(removal.session),
        "deleted": removal.deleted,
        "error": None if removal.error is None else str(removal.error),
        **removal.known,
    }
