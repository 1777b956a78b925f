"""Run one benchmark by its name: python -m benchmarks many-sessions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import trio

from benchmarks import group_commit, many_sessions, resume


@click.group()
def main() -> None:
    """Measure what refold costs here; docs/benchmarks.md keeps the last run."""


@main.command("many-sessions")
@click.option("--sessions", default=1000, show_default=True, help="How many sessions are open.")
@click.option("--busy", default=20, show_default=True, help="How many of them take turns.")
@click.option("--turns", default=50, show_default=True, help="How many turns each busy one takes.")
def measure_many_sessions(sessions: int, busy: int, turns: int) -> None:
    """Do busy sessions notice the idle ones, and what does an idle one hold?"""
    with tempfile.TemporaryDirectory() as folder:
        load = many_sessions.Load(sessions, busy, turns)
        found = trio.run(many_sessions.run, load, Path(folder))
    click.echo(many_sessions.table(found))


@main.command("resume")
@click.option("--events", default=100_000, show_default=True, help="How long the log is.")
def measure_resume(events: int) -> None:
    """What does opening a long session cost, from its log alone and with its index file?"""
    with tempfile.TemporaryDirectory() as folder:
        found = resume.run(events, Path(folder))
    click.echo(resume.table(found))


@main.command("group-commit")
@click.option("--sessions", default=64, show_default=True, help="How many append at once.")
@click.option("--events", default=100, show_default=True, help="How many durable events each has.")
def measure_group_commit(sessions: int, events: int) -> None:
    """How many syncs does a durable event cost, alone and among many sessions?"""
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(group_commit.run, group_commit.Load(sessions, events), Path(folder))
    click.echo(group_commit.table(found))


main(prog_name="python -m benchmarks")
