"""The command line: one module a command, imported when it is used.

Reading a log needs no Trio, so neither `refold --help` nor the commands that read import it.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from refold.cli.shared.command_table import COMMANDS, MODULES
from refold.runtime.errors import RefoldError


class Commands(click.Group):
    """The command table, and the one place where errors become sentences and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        command: click.Command = importlib.import_module(f"refold.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        _accept_any_text()
        result = None
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_quietly()
        except RefoldError as error:
            from refold.cli.shared.exit_codes import exit_code, say

            say(str(error))
            ctx.exit(exit_code(error))
        return result


def _accept_any_text() -> None:
    """A terminal that lacks a character gets an escape, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_quietly() -> None:
    """Whoever read our output has gone: end as a program that SIGPIPE ends, without a word."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - os.devnull is no path to build on
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    raise SystemExit(141)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="refold", message="refold %(version)s")
def main() -> None:
    """LLM agents whose every request is a fold of an append-only session log.

    \b
    Look at what there is, and at a session:
      refold sessions
      refold show last
      refold usage last
      refold verify --all
    Ask why the cache was missed between two steps:
      refold diff last 1.1 2.1

    Sessions are found in --store, REFOLD_STORE, the `store` of refold.toml, or ./sessions. That is
    a folder, or sqlite:///FILE (sqlite:////FILE where the path is absolute). SESSION is an id, a
    unique beginning of one, `last` for the one written to last, or a path to a .jsonl file. STEP is
    turn.step, such as 3.1, or the seq of any event inside a step.

    Exit codes: 0 fine, 1 a difference or a failed check, 2 usage, 3 cannot open, 4 damaged log.
    """
