"""Every example is a complete program that does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold.runtime.storage import JsonlFolder
from refold.runtime.verify import verify_requests
from tests.snippets import ROOT

SAYS = {
    "quickstart.py": ["Buy milk, and call Ada.", ": completed."],
    "resume_after_kill.py": ["exit status is -9", "Done: version 1.2 is live"],
    "custom_seam.py": [
        "Turned away: passwords are not sent to a model.",
        "I will do it on Monday.",
        "prompt/blocked",
        "context/message",
    ],
    "budgeted_run.py": [
        "lost city? -> budget steps.",
        "mail. -> budget seconds.",
        "give up. -> completed. Then I give up: it is nowhere.",
    ],
    "two_agents.py": [
        "Writer: The sea is bigger than you.",
        "writer has seen 6 messages",
        "critic has seen 2 messages",
    ],
}
"""The programs, and what each prints."""

AGENTS = {"two_agents.py": 2}
"""How many sessions a program leaves, where it is not one."""

IN_MEMORY = {
    "crash_test.py": ["no order lost, none taken twice", "byte cut"],
}
"""Programs that leave no store, and what each prints."""

TESTS = {"test_my_agent.py": 3}
"""The examples that are tests, and how many there are in each."""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_example_is_run_here() -> None:
    assert sorted({*SAYS, *IN_MEMORY, *TESTS}) == sorted(
        p.name for p in (ROOT / "examples").glob("*.py")
    )


@pytest.mark.crash
@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs_and_its_requests_can_be_verified(name: str, tmp_path: Path) -> None:
    done = run(str(ROOT / "examples" / name), str(tmp_path / "store"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for expected in SAYS[name]:
        assert expected in done.stdout
    folder = JsonlFolder(tmp_path / "store")
    sessions = folder.list()
    assert len(sessions) == AGENTS.get(name, 1)
    for session in sessions:
        verdicts = list(verify_requests(folder.read(session).records))
        assert verdicts
        assert all(verdict.verified for verdict in verdicts)


@pytest.mark.parametrize("name", sorted(IN_MEMORY))
def test_an_example_in_memory_runs(name: str, tmp_path: Path) -> None:
    done = run(str(ROOT / "examples" / name), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for expected in IN_MEMORY[name]:
        assert expected in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(TESTS))
def test_an_example_of_tests_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    done = run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert f"{TESTS[name]} passed" in done.stdout
