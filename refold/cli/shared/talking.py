"""What `refold chat` and `refold prompt` are told of an agent, and what it is opened with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
from click.core import ParameterSource

from refold.cli.shared.logs import locate
from refold.cli.shared.options import chosen_config

if TYPE_CHECKING:
    from refold.actors.request.script import Script
    from refold.actors.turn.options import AgentOptions
    from refold.chat.opening import Wanted
    from refold.runtime.config import Config
    from refold.runtime.storage import MaintainedStore
    from refold.runtime.wire.providers import Provider

Command = TypeVar("Command", bound=Any)


@attrs.frozen
class Said:
    """What the command line says of an agent; None where it says nothing."""

    model: str | None
    system: str | None
    max_tokens: int | None
    temperature: float | None
    name: str | None
    script: Path | None


_OPTIONS = (
    click.option("--model", metavar="PROVIDER/MODEL", help="Who answers; needed once a session."),
    click.option("--system", metavar="TEXT", help="The system prompt."),
    click.option(
        "--max-tokens",
        metavar="COUNT",
        type=click.IntRange(1),
        help="The most tokens that one answer may have.",
    ),
    click.option(
        "--temperature",
        metavar="NUMBER",
        type=click.FloatRange(0),
        help="How freely the model picks its words.",
    ),
    click.option("--name", metavar="LABEL", help="A label for a new session."),
    click.option(
        "--script",
        metavar="PATH",
        type=click.Path(path_type=Path),
        help="For trying out and tests: a Python file that defines `script`, a refold.Script, "
        "which answers in place of a model.",
    ),
)


def agent_options(command: Command) -> Command:
    """The options that say what an agent is; they are `Said`'s fields."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def wanted(store: MaintainedStore, session: str | None, said: Said) -> Wanted:
    """What is to be opened: `session`, or a new one.

    A new session takes from the configuration what is not said; one that goes on keeps what it
    had. Raises `CannotDo`, `InvalidConfig` and what a command's usage forbids.
    """
    from refold.chat.opening import Wanted

    if session is not None and said.name is not None:
        raise click.UsageError("--name is for a new session; leave it out, or leave SESSION out")
    config, scripts = chosen_config(), _scripts(said.script)
    options = _agent(said, config, scripts, new=session is None)
    if session is not None:
        place = locate(store, session)
        store, session = place.store, place.session
    providers: list[Provider | Script] = [*config.providers, *scripts]
    return Wanted(store.address, session, said.name, options, providers, _again(store, said))


def _again(store: MaintainedStore, said: Said) -> str:
    """The options without which the session would not be found, or nobody would answer."""
    given = click.get_current_context().get_parameter_source("store")
    named = []
    if given is ParameterSource.COMMANDLINE:
        named.append(f"--store {shlex.quote(store.address)}")
    if said.script is not None:
        named.append(f"--script {shlex.quote(str(said.script))}")
    return "".join(f" {option}" for option in named)


def _scripts(path: Path | None) -> list[Script]:
    from refold.chat.script_file import load_script

    return [] if path is None else [load_script(path)]


def _agent(said: Said, config: Config, scripts: Sequence[Script], *, new: bool) -> AgentOptions:
    from refold.config import load_tools

    options: AgentOptions = {"tools": load_tools(config)}
    if new:
        model = f"{scripts[0].name}/any" if scripts and said.model is None else None
        said = _over(attrs.evolve(said, model=said.model or model), config)
        if said.model is None:
            raise click.UsageError("name a model with --model PROVIDER/MODEL, or in refold.toml")
    if said.model is not None:
        options["model"] = said.model
    if said.system is not None:
        options["system"] = said.system
    if said.max_tokens is not None:
        options["max_tokens"] = said.max_tokens
    if said.temperature is not None:
        options["temperature"] = said.temperature
    return options


def _over(said: Said, config: Config) -> Said:
    """What is said, and for the rest what the configuration says."""
    names = ("model", "system", "max_tokens", "temperature")
    unsaid = (name for name in names if getattr(said, name) is None)
    return attrs.evolve(said, **{name: getattr(config, name) for name in unsaid})
