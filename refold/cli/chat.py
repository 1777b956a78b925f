"""`refold chat`: talk to an agent in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from refold.chat.refusal import opening_code
from refold.cli.shared.exit_codes import say
from refold.cli.shared.logs import locate
from refold.cli.shared.options import chosen_config, store_option
from refold.runtime.errors import RefoldError

if TYPE_CHECKING:
    from refold.actors.request.script import Script
    from refold.actors.turn.options import AgentOptions
    from refold.chat.run import Wanted
    from refold.runtime.config import Config
    from refold.runtime.storage import MaintainedStore


@click.command("chat", short_help="Talk to an agent in the terminal.")
@click.argument("session", required=False)
@click.option("--model", metavar="PROVIDER/MODEL", help="Who answers; needed once a session.")
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.option("--name", metavar="LABEL", help="A label for a new session.")
@click.option(
    "--script",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="For trying out and tests: a Python file that defines `script`, a refold.Script, which "
    "answers in place of a model.",
)
@store_option
def command(
    *,
    session: str | None,
    model: str | None,
    system: str | None,
    name: str | None,
    script: Path | None,
    store: MaintainedStore,
) -> None:
    """Talk to an agent in the terminal.

    Without SESSION a new session begins, and its id is printed; with it that session goes on, with
    the model and the system prompt that it had unless others are named here. Model, system prompt,
    store, providers and tools can stand in refold.toml; those of the first two are for new
    sessions.

    Ctrl-C cancels the turn that runs, and what was said so far is kept. A line that is typed
    meanwhile is queued. Ctrl-D on an empty line or /quit leaves; /help lists what else there is.

    Where input or output is no terminal, each line of the input is a prompt, even one
    that begins with /, answers go to standard output and all else to standard error. Exit code 1
    if a turn ended in an error, 3 if the session cannot be opened.

    \b
    Examples:
      refold chat --model deepseek/deepseek-chat
      refold chat last
      echo 'Hello!' | refold chat --script answers.py
    """
    if session is not None and name is not None:
        raise click.UsageError("--name is for a new session; leave it out, or leave SESSION out")
    try:
        wanted = _wanted(store, Said(session, model, system, name, script))
    except RefoldError as error:
        say(str(error))
        sys.exit(opening_code(error))
    sys.exit(_run(wanted))


@attrs.frozen
class Said:
    """What the command line says; None where it says nothing."""

    session: str | None
    model: str | None
    system: str | None
    name: str | None
    script: Path | None


def _wanted(store: MaintainedStore, said: Said) -> Wanted:
    from refold.chat.run import Wanted

    config, scripts = chosen_config(), _scripts(said.script)
    options, session = _options(said, config, scripts), said.session
    if session is not None:
        place = locate(store, session)
        store, session = place.store, place.session
    return Wanted(store.address, session, said.name, options, [*config.providers, *scripts])


def _scripts(path: Path | None) -> list[Script]:
    from refold.chat.script_file import load_script

    return [] if path is None else [load_script(path)]


def _options(said: Said, config: Config, scripts: Sequence[Script]) -> AgentOptions:
    """What an agent is opened with; a session that goes on keeps what is not said outright."""
    from refold.config import load_tools

    options: AgentOptions = {"tools": load_tools(config)}
    model, system = said.model, said.system
    if said.session is None:
        model = model or (f"{scripts[0].name}/any" if scripts else config.model)
        system = config.system if system is None else system
        if model is None:
            raise click.UsageError("name a model with --model PROVIDER/MODEL, or in refold.toml")
    if model is not None:
        options["model"] = model
    if system is not None:
        options["system"] = system
    return options


def _run(wanted: Wanted) -> int:
    import trio

    from refold.chat.run import chat

    try:
        return trio.run(chat, wanted)
    except KeyboardInterrupt:  # while the session was being opened or closed
        return 128 + signal.SIGINT
