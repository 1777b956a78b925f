"""Every name that a user meets comes from `refold`, and a few modules of it with plain names."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
import refold.errors
import refold.events
import refold.logs
import refold.stores
from refold.runtime.stream.failures import LASTING, OF_TURNS, RETRYABLE

ROOT = Path(__file__).parents[2]
ROOMS = (refold.errors, refold.events, refold.logs, refold.stores)


def subclasses(cls: type[object]) -> Iterator[type[object]]:
    for sub in type.__subclasses__(cls):
        yield sub
        yield from subclasses(sub)


def test_every_error_that_refold_raises_is_in_refold_errors() -> None:
    for found in pkgutil.walk_packages(refold.__path__, "refold."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    ours = {one for one in subclasses(refold.RefoldError) if one.__module__.startswith("refold")}
    hidden = {one.__name__ for one in ours} - set(refold.errors.__all__)
    assert hidden == {"CannotDo", "DemoFailed", "Diverged"}, "ends of commands and of replays"
    for one in ours - {sub for sub in ours if sub.__name__ in hidden}:
        assert getattr(importlib.import_module(one.__module__), one.__name__) is one


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_a_room_holds_what_it_says(room: object) -> None:
    names = room.__all__  # type: ignore[attr-defined]  # each has it
    assert len(set(names)) == len(names) > 0
    for name in names:
        assert hasattr(room, name)


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    assert dir(refold) == sorted(
        (*refold.__all__, "errors", "events", "faults", "logs", "stores", "testing")
    )
    for name in dir(refold):
        assert getattr(refold, name) is not None
    done = subprocess.run(
        [sys.executable, "-c", "from refold import *; import refold; print(refold.logs, Agent)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "refold.Agent" in done.stdout


def test_type_checkers_see_the_table_of_names() -> None:
    tree = ast.parse((ROOT / "refold" / "__init__.py").read_text("utf-8"))
    seen = {
        (alias.asname, node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
        if alias.asname is not None
    }
    table = {(name, home) for name, home in refold._HOMES.items() if name != "open"}
    assert seen == table


@pytest.mark.parametrize("name", [name for name in refold.__all__ if name != "load_tools"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    found = getattr(refold, name)
    if not isinstance(found, type) and not callable(found):
        return  # a type of values, which has no text of its own
    assert inspect.getdoc(found), name
    if isinstance(found, type) and found.__module__.startswith("refold"):
        for method, value in vars(found).items():
            if not method.startswith("_") and callable(value):
                assert inspect.getdoc(value), f"{name}.{method}"


TEXTS = [ROOT / "README.md", ROOT / "docs" / "guide.md", *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_users_are_shown_no_inner_room(path: Path) -> None:
    text = path.read_text("utf-8")
    for inner in ("refold.runtime", "refold.actors"):
        assert inner not in text


def test_the_docs_of_public_names_lead_to_no_inner_room() -> None:
    for name in refold.__all__:
        text = inspect.getdoc(getattr(refold, name)) or ""
        assert "refold.runtime" not in text, name
        assert "refold.actors" not in text, name


def test_each_failure_has_a_code_that_says_what_it_means() -> None:
    assert {*RETRYABLE, *LASTING, *OF_TURNS} == {code.value for code in refold.Code}
    for code in refold.Code:
        assert code == code.name == str(code)
        assert code.meaning.endswith((".", "it."))
    guide = (ROOT / "docs" / "guide.md").read_text("utf-8")
    for code in refold.Code:
        again = "once" if code is refold.Code.EMPTY_RESPONSE else "yes" if code.again else "no"
        assert f"| `{code}` | {again} | {code.meaning} |" in guide
