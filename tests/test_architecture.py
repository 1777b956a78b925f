"""The walls between the packages, and what is public."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold

ROOT = Path(refold.__file__).parent.parent

WAITING = {"asyncio", "concurrent", "multiprocessing", "queue", "sched", "threading", "trio"}
CLOCKS = {"datetime", "time"}
NETWORK = {"ftplib", "h11", "http", "httpcore2", "httpx2", "select", "selectors", "smtplib"}
NETWORK |= {"socket", "socketserver", "ssl", "trio_websocket", "wsproto"}
PROCESSES = {"pty", "signal", "subprocess"}


def modules(package: str) -> Iterator[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert len(found) > 10, f"{package} is not where this test looks for it"
    yield from found


def imports(path: Path) -> Iterator[str]:
    """The top-level names of everything that a module imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield str(node.module).partition(".")[0]


def forbidden(package: str, names: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if name in names
    ]


def test_runtime_imports_neither_actors_nor_refold() -> None:
    assert forbidden("runtime", {"actors", "refold"}) == []


def test_runtime_has_no_tasks_no_threads_no_clock_and_no_network() -> None:
    # The actors call a store from worker threads, so what these two share has a guard.
    guards = ["runtime/storage/locks.py", "runtime/storage/sqlite/database.py"]
    found = forbidden("runtime", WAITING | CLOCKS | NETWORK | PROCESSES)
    assert found == [f"{path} imports threading" for path in guards]


def runtime_imports(path: Path) -> set[str]:
    """The rooms and front modules of `runtime` that one of its modules imports."""
    return {
        parts[parts.index("runtime") + 1]
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for parts in [[*str(node.module).split("."), *(alias.name for alias in node.names)]]
        if "runtime" in parts
    }


def test_the_words_of_a_stream_stand_below_the_log_and_the_wire_formats_above_requests() -> None:
    """So a wire format can be added, and nothing of the log changes with it."""
    above = {"audit", "comparison", "config", "difference", "usage", "verify"}
    for path in modules("runtime"):
        room, *_ = path.relative_to(ROOT / "runtime").with_suffix("").parts
        found = runtime_imports(path)
        if room == "stream":
            assert found <= {"stream", "errors", "json", "messages"}, path
        elif room == "wire":
            assert not found & above, path
        elif room not in above:
            assert "wire" not in found, path


def test_the_command_line_knows_stores_by_their_addresses_alone() -> None:
    kinds = {"JsonlFolder", "SqliteFile", "FolderNames", "SqliteNames", "LogFiles"}
    found = {
        (path.name, alias.name)
        for folder in ("refold/cli", "refold/chat")
        for path in modules(folder)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in kinds
    }
    assert found == set()


def test_runtime_starts_no_thread_and_waits_for_none() -> None:
    used = {
        node.attr
        for path in modules("runtime")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "threading"
    }
    assert used <= {"Lock"}


def test_actors_does_not_import_refold() -> None:
    assert forbidden("actors", {"refold"}) == []


def test_importing_refold_loads_neither_trio_nor_the_actors() -> None:
    program = (
        "import refold, sys; print([n for n in ('trio', 'actors', 'httpx2') if n in sys.modules])"
    )
    assert run(program, ROOT).stdout.strip() == "[]"


def test_the_public_names_are_these() -> None:
    assert sorted(refold.__all__) == [
        "ActorCrashed",
        "ActorStopped",
        "Agent",
        "AgentOptions",
        "Budgets",
        "Call",
        "CallView",
        "Config",
        "ContextMessage",
        "Delay",
        "Deny",
        "End",
        "Fail",
        "Ge",
        "GoOn",
        "Hang",
        "InBatch",
        "InvalidArgument",
        "InvalidOption",
        "InvariantViolation",
        "KeyConflict",
        "Le",
        "LlmCallConfig",
        "MaxLen",
        "Message",
        "MinLen",
        "NoSuchPrompt",
        "Outcome",
        "Pattern",
        "PromptRemoved",
        "PromptView",
        "Provider",
        "RefoldError",
        "Reject",
        "Replace",
        "Runtime",
        "Say",
        "Script",
        "SeamLog",
        "SeamMisused",
        "Seams",
        "Source",
        "StepView",
        "Stop",
        "Submit",
        "TextBlock",
        "Think",
        "Tool",
        "ToolError",
        "Turn",
        "TurnView",
        "draft",
        "load_config",
        "load_tools",
        "open",
        "text_of",
        "tool",
    ]


def test_every_public_name_can_be_had() -> None:
    missing = [name for name in refold.__all__ if not hasattr(refold, name)]
    assert missing == []


@pytest.mark.parametrize("name", ["runtime", "actors"])
@pytest.mark.parametrize("shape", ["{}.py", "{}/__init__.py"])
def test_a_module_that_hides_one_of_our_packages_is_named(
    tmp_path: Path, name: str, shape: str
) -> None:
    hiding = tmp_path / shape.format(name)
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("")
    done = run("import refold", tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert str(hiding) in last
    assert "rename or move" in last


def test_nothing_is_said_where_nothing_is_hidden(tmp_path: Path) -> None:
    assert run("import refold", tmp_path).returncode == 0


def run(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a user would whose own folder comes first on the path."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
