"""Asking before something is changed for good."""

from __future__ import annotations

import click

from refold.cli.shared.options import Command


def agreed(question: str, *, yes: bool) -> bool:
    """Whether to go on: said beforehand, or now; an input that has ended says no."""
    if yes:
        return True
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def asking_options(command: Command) -> Command:
    """`--yes` and `--json`, which never asks."""
    yes = click.option("--yes", is_flag=True, help="Do it without asking.")
    as_json = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON and never ask: nothing is changed without --yes (exit code 1).",
    )
    return yes(as_json(command))
