"""A scripted model out of a Python file, for trying things out and for tests."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from refold.actors.request.script import Script
from refold.cli.shared.exit_codes import CannotDo


def load_script(path: Path) -> Script:
    """Run the file at `path` and return its `script`; raises `CannotDo`."""
    loader = SourceFileLoader("refold_chat_script", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None, "a loader that is given always makes a spec"
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except Exception as error:
        raise _unusable(path, f"fails with {type(error).__name__}: {error}") from error
    script = getattr(module, "script", None)
    if not isinstance(script, Script):
        raise _unusable(path, "defines no `script`")
    return script


def _unusable(path: Path, problem: str) -> CannotDo:
    return CannotDo(
        f"{path} {problem}; a script is a Python file that says script = refold.Script([...])"
    )
