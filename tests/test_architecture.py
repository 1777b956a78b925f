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
    """Where everything comes from that a module imports, inside functions too.

    The top-level name; of refold itself `refold.runtime` or `refold.actors`, if it is in there.
    """
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            inner = rest.partition(".")[0]
            yield f"refold.{inner}" if top == "refold" and inner in ("runtime", "actors") else top


def forbidden(package: str, names: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if name in names
    ]


def test_runtime_imports_neither_actors_nor_refold() -> None:
    assert forbidden("runtime", {"refold.actors", "refold"}) == []


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
    above = {"audit", "divergence", "config", "json_diff", "usage", "verify"}
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
        "import refold, sys; "
        "print([n for n in sys.modules if n in ('trio', 'httpx2') or n.startswith('refold.')])"
    )
    assert run(program, ROOT).stdout.strip() == "[]"


def test_the_public_names_are_these() -> None:
    assert sorted(refold.__all__) == [
        "ActorCrashed",
        "ActorStopped",
        "Agent",
        "AgentOptions",
        "Answer",
        "Asked",
        "Budgets",
        "Call",
        "CallView",
        "Code",
        "Config",
        "Context",
        "ContextMessage",
        "Delay",
        "Deny",
        "End",
        "Fail",
        "FinishedCall",
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
        "Pending",
        "Piece",
        "Progress",
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
        "from_asyncio",
        "load_config",
        "load_tools",
        "open",
        "text_of",
        "tool",
    ]


def test_every_public_name_can_be_had() -> None:
    missing = [name for name in refold.__all__ if not hasattr(refold, name)]
    assert missing == []


def test_nothing_here_imports_the_bare_names() -> None:
    # Links give the folders their names within `refold`; a second way in would be a second module.
    folders = ("runtime", "actors", "refold", "tests", "examples", "docs", "benchmarks")
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imports(path)
        if name in {"runtime", "actors"}
    ]
    assert found == []


@pytest.mark.parametrize("shape", ["{}.py", "{}/__init__.py"])
def test_a_project_has_a_runtime_and_actors_of_its_own(tmp_path: Path, shape: str) -> None:
    for name in ("runtime", "actors"):
        module = tmp_path / shape.format(name)
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"mine = {name!r}\n")
    program = """
import trio, refold, runtime, actors

async def main():
    model = refold.Script([refold.Say("hello")])
    async with refold.open("memory:", providers=[model]) as rt:
        agent = await rt.start_agent(model="script/any")
        print((await agent.ask("hi")).text, runtime.mine, actors.mine)

trio.run(main)
"""
    done = run(program, tmp_path)
    assert done.stdout == "hello runtime actors\n", done.stderr


def test_public_classes_say_refold_as_their_module() -> None:
    others = [
        name
        for name in refold.__all__
        if isinstance(found := getattr(refold, name), type)
        and found.__module__ not in ("refold", "refold.errors")
    ]
    assert others == []


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
