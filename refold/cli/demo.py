"""`refold demo`: the two-minute tour."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refold.cli.shared.exit_codes import CANNOT_OPEN, DIFFERENT
from refold.cli.shared.exit_codes import say as say_why
from refold.cli.shared.options import STORE, opened_store
from refold.runtime.storage import MaintainedStore
from refold.runtime.storage.address import within

if TYPE_CHECKING:
    from refold.demo.outcome import Outcome


@click.command("demo", short_help="A tour: an agent is killed inside a tool and comes back.")
@click.option("--engine", is_flag=True, help="Run it on a real inference engine (extra `engine`).")
@click.option(
    "--store",
    "--keep",
    "store",
    metavar=STORE,
    callback=opened_store,
    help="Keep the sessions there; without it, in a new temporary folder that is named and kept.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a summary as JSON; the tale on stderr."
)
def command(*, engine: bool, store: MaintainedStore | None, as_json: bool) -> None:
    """A tour without a key and without a network.

    An agent on a scripted model works in a process of its own. That process is killed with SIGKILL
    inside a tool call; the agent comes back from its log and goes on. Then every request that
    either of them sent is rebuilt from the log and checked, and a chart shows how much of each
    request a prefix cache can keep. With --engine the model is a real inference server on this
    machine, and the chart shows its own count of cached tokens.

    Exits with 1 when a check fails.

    \b
    Example:
      refold demo
    """
    where = None if store is None else within(Path.cwd(), store.address)
    outcome = _give(where, engine=engine, as_json=as_json)
    if as_json:
        click.echo(json.dumps(outcome.as_json(), indent=2))
    else:
        for line in _report(outcome):
            click.echo(line)
    if not outcome.good:
        sys.exit(DIFFERENT)


def _give(store: str | None, *, engine: bool, as_json: bool) -> Outcome:
    import trio

    from refold.demo.story import tell
    from refold.testing import EngineUnavailable

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    async def tour() -> Outcome:
        return await tell(kept, engine=engine, say=say)

    kept = store or tempfile.mkdtemp(prefix="refold-demo-")
    try:
        return trio.run(tour)
    except EngineUnavailable as unavailable:
        say_why(str(unavailable))
        if store is None:
            Path(kept).rmdir()
        sys.exit(CANNOT_OPEN)


def _report(outcome: Outcome) -> Iterator[str]:
    from refold.demo.chart import draw, equalities

    yield ""
    yield "What each request kept of the one before it, in bytes of its body:"
    yield from draw(outcome.requests, tokens=False)
    if outcome.engine:
        yield ""
        yield "What the engine says it had cached, in tokens:"
        yield from draw(outcome.requests, tokens=True)
        yield ""
        yield from equalities(outcome.requests)
    yield ""
    for promise, kept in outcome.checks.items():
        yield f"  {'ok    ' if kept else 'FAILED'}  {promise}"
    yield ""
    yield from _next_commands(outcome)


def _next_commands(outcome: Outcome) -> Iterator[str]:
    session = outcome.session
    yield "Look at the log yourself:"
    yield f"  export REFOLD_STORE={shlex.quote(outcome.store)}"
    yield f"  refold show {session}"
    yield f"  refold usage {session}"
    yield f"  refold request {session} {outcome.requests[-1].name}"
    yield f"  refold diff {session} {outcome.requests[0].name} {outcome.requests[-1].name}"
    yield f"  refold verify {session}"
