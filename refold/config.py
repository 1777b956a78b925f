"""Finding and reading `refold.toml`, and the tools that it names.

Nothing reads a configuration by itself but the command line: a program that wants one asks for it.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import attrs

from refold.runtime.config import Config, InvalidConfig, parse_config
from refold.runtime.errors import Refused
from refold.runtime.storage.address import within

NAME = "refold.toml"
"""What a configuration file is called."""

LARGEST = 1 << 20
"""Bytes; what is larger is no configuration."""


@attrs.define(eq=False)
class ConfigUnreadable(Refused):
    """A configuration file that was asked for, or is there, and cannot be read."""

    path: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the configuration {self.path} cannot be read ({self.reason}); "
            "correct --config or REFOLD_CONFIG, or the file's permissions"
        )


def load_config(path: str | Path | None = None) -> Config:
    """The configuration at `path`, else the first that is found; empty where there is none.

    Looked for are the file that `REFOLD_CONFIG` names, `refold.toml` in the current folder, and
    `refold/refold.toml` in `XDG_CONFIG_HOME` or `~/.config`. The first one counts, whole; nothing
    is merged. A relative path in `store` is taken from the file's own folder. Raises
    `InvalidConfig`, and `ConfigUnreadable`, also where a file that was named is not there.
    """
    named = path or os.environ.get("REFOLD_CONFIG")
    if named:
        return _load(Path(named))
    for place in _places():
        try:
            return _load(place)
        except ConfigUnreadable as unreadable:
            if not isinstance(unreadable.__cause__, FileNotFoundError | NotADirectoryError):
                raise
    return Config()


def _places() -> Iterator[Path]:
    yield Path(NAME)
    # The XDG rules: a relative folder there is to be ignored.
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = base if Path(base).is_absolute() else os.path.expanduser("~/.config")  # noqa: PTH111 - Path.expanduser raises where there is no home
    yield Path(folder) / "refold" / NAME


def _load(path: Path) -> Config:
    config = parse_config(_parse(path), path)
    if config.store is None:
        return config
    try:
        return attrs.evolve(config, store=within(path.parent, config.store))
    except RuntimeError:
        raise InvalidConfig(str(path), "store", "begins with a home that is not known") from None


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path).decode())
    except OSError as error:
        raise ConfigUnreadable(str(path), error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(str(path), "the file", f"is not TOML ({error})") from None


def _read(path: Path) -> bytes:
    """The bytes of a file, also behind a link; a pipe is not waited for, a device not read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) and not os.path.samestat(found, os.stat(os.devnull)):  # noqa: PTH116 - os.devnull is no path to build on
            raise ConfigUnreadable(str(path), "it is no plain file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(LARGEST + 1)
    finally:
        os.close(fd)
    if len(data) > LARGEST:
        raise ConfigUnreadable(str(path), f"it is larger than {LARGEST} bytes")
    return data


def load_tools(config: Config) -> list[Callable[..., Any]]:
    """The functions that `config.tools` names, imported from the current folder or as installed.

    The current folder joins `sys.path`, and importing runs the modules. Raises `InvalidConfig`.
    """
    if config.tools and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return [_load_tool(config, number, name) for number, name in enumerate(config.tools)]


def _load_tool(config: Config, number: int, name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found = getattr(_import(config, number, module), function, None)
    if callable(found):
        return cast("Callable[..., Any]", found)
    raise _unusable(config, number, f"there is no function {function!r} in the module {module}")


def _import(config: Config, number: int, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:
        problem = f"{module} cannot be imported ({type(error).__name__}: {error})"
        raise _unusable(config, number, problem) from error


def _unusable(config: Config, number: int, problem: str) -> InvalidConfig:
    advice = "modules are looked for in the current folder and among the installed packages"
    return InvalidConfig(
        str(config.path), f"tools[{number}]", f"names no tool: {problem}; {advice}"
    )
