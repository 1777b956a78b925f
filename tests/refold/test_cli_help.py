"""The command table, its help, and what is imported for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli import main
from refold.cli.shared.command_table import COMMANDS
from tests.refold.cli_stores import CliStore
from tests.snippets import ROOT

WRITING = ["fork", "repair", "export", "import", "delete", "prune"]
READING = [name for name in COMMANDS if name not in ("demo", "chat", "prompt", *WRITING)]


def examples() -> list[str]:
    """Every example in the help of the group and of its commands, but for those that never end."""
    context = main.make_context("refold", [], resilient_parsing=True)
    commands = [main.get_command(context, name) for name in (*READING, *WRITING)]
    texts = [main.help, *(command.help for command in commands if command is not None)]
    lines = [line.strip() for text in texts for line in (text or "").split("\n")]
    return [line for line in lines if line.startswith("refold ") and "--follow" not in line]


def run_in_shell(line: str, store: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    script = f'refold() {{ "{sys.executable}" -m refold "$@"; }}\n{line}'
    environment = {**os.environ, "REFOLD_STORE": str(store), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=environment, cwd=cwd, check=False
    )


def test_help_lists_every_command(made_store: CliStore) -> None:
    ran = made_store.run("--help")
    assert ran.code == 0
    assert all(re.search(rf"^  {name} ", ran.out, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", [*READING, *WRITING])
def test_every_command_teaches_by_example(made_store: CliStore, name: str) -> None:
    ran = made_store.run(name, "--help")
    assert ran.code == 0
    assert f"refold {name} " in ran.out.partition("Examples:")[2]
    assert "--json" in ran.out
    assert "--store" in ran.out


@pytest.mark.parametrize("line", examples())
def test_the_examples_in_the_help_work(own_store: CliStore, tmp_path: Path, line: str) -> None:
    recorded = own_store.log("tour").read_bytes().split(b"\n")[0].replace(b"tour", b"recorded")
    bare = re.sub(rb'"crc":"[0-9a-f]+",', b"", recorded)
    (tmp_path / "recorded.jsonl").write_bytes(bare + b"\n")
    ran = run_in_shell(line, own_store.path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    assert "Traceback" not in ran.stderr


def test_an_unknown_command_is_a_usage_error(made_store: CliStore) -> None:
    ran = made_store.run("frobnicate")
    assert ran.code == 2
    assert "frobnicate" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["sessions"],
        ["show", "last"],
        ["check", "last"],
        ["request", "last", "1.1"],
        ["diff", "last", "1.1", "1.2"],
        ["verify", "last"],
        ["usage", "last"],
        ["export", "last", "copy.jsonl"],
        ["repair", "last"],
    ],
)
def test_help_and_the_commands_that_read_logs_never_import_trio(
    made_store: CliStore, tmp_path: Path, arguments: list[str]
) -> None:
    program = (
        "import sys\nfrom refold.cli import main\n"
        f"try:\n    main({arguments!r}, standalone_mode=False)\nexcept SystemExit: pass\n"
        "print([name for name in ('trio', 'actors', 'httpx2') if name in sys.modules])"
    )
    environment = {**os.environ, "REFOLD_STORE": str(made_store.path), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"


def test_every_module_beside_the_command_table_is_a_command() -> None:
    found = {path.stem for path in (ROOT / "refold/cli").glob("*.py")} - {"__init__"}
    assert {name.removesuffix("_") for name in found} == {*COMMANDS}
