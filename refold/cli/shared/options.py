"""The options that commands share: which store, which configuration, and which form of output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from refold.cli.shared.exit_codes import USAGE, CannotDo
from refold.config import load_config
from refold.runtime.config import Config
from refold.runtime.storage import MaintainedStore, open_sessions
from refold.runtime.storage.address import MEMORY

STORE = "FOLDER|sqlite:///FILE"
"""How help calls the address of a store."""

Command = TypeVar("Command", bound=Callable[..., Any])


_CONFIG = "refold.config"


def _note_config(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    ctx.meta[_CONFIG] = path


def chosen_config() -> Config:
    """The configuration that this run goes by; raises `InvalidConfig`, `ConfigUnreadable`."""
    return load_config(click.get_current_context().meta.get(_CONFIG))


def opened_store(
    ctx: click.Context, _param: click.Parameter, address: str | None
) -> MaintainedStore | None:
    """The store at an address, let go of when the command is over.

    Raises `NoSuchStore`, and `CannotDo` for a store in memory.
    """
    if address is None:
        return None
    if address == MEMORY:
        raise CannotDo(
            f"a store in memory ({MEMORY}) ends with its program, so no command has one; give a "
            f"folder's path, or sqlite:///FILE (a folder of that name is ./{MEMORY})",
            USAGE,
        )
    store = open_sessions(address)
    ctx.call_on_close(store.close)
    return store


def _default_store() -> str:
    return chosen_config().store or "sessions"


def store_option(command: Command) -> Command:
    """`--store`, which holds the sessions, and `--config`, which may name it too."""
    store = click.option(
        "--store",
        metavar=STORE,
        callback=opened_store,
        envvar="REFOLD_STORE",
        default=_default_store,
        show_default="$REFOLD_STORE, else the configuration's, else ./sessions",
        help="Where the sessions are.",
    )
    config = click.option(
        "--config",
        metavar="PATH",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_note_config,
        help="The configuration, by default $REFOLD_CONFIG or the refold.toml that is found.",
    )
    return store(config(command))


def json_option(command: Command) -> Command:
    """`--json`: print data for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
