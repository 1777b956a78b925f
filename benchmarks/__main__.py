"""Run one benchmark by its name: python -m benchmarks many-sessions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import trio

from benchmarks.many_sessions import Load, run, table


@click.group()
def main() -> None:
    """Measure what refold costs here; docs/benchmarks.md keeps the last run."""


@main.command("many-sessions")
@click.option("--sessions", default=1000, show_default=True, help="How many sessions are open.")
@click.option("--busy", default=20, show_default=True, help="How many of them take turns.")
@click.option("--turns", default=50, show_default=True, help="How many turns each busy one takes.")
def many_sessions(sessions: int, busy: int, turns: int) -> None:
    """Do busy sessions notice the idle ones, and what does an idle one hold?"""
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(run, Load(sessions, busy, turns), Path(folder))
    click.echo(table(found))


main(prog_name="python -m benchmarks")
