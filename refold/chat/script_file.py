"""A scripted model out of a Python file, for trying things out and for tests."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import attrs

from actors.script import Script
from runtime.errors import Refused


@attrs.define(eq=False)
class UnusableScript(Refused):
    """A file that defines no scripted model."""

    path: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.path} {self.problem}; a script is a Python file that says "
            "script = refold.Script([...])"
        )


def load_script(path: Path) -> Script:
    """Run the file at `path` and return its `script`; raises `UnusableScript`."""
    loader = SourceFileLoader("refold_chat_script", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None, "a loader that is given always makes a spec"
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except Exception as error:
        raise UnusableScript(str(path), f"fails with {type(error).__name__}: {error}") from error
    script = getattr(module, "script", None)
    if not isinstance(script, Script):
        raise UnusableScript(str(path), "defines no `script`")
    return script
