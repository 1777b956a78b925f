"""Every example is a complete program that does what it says."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refold.runtime.envelope import decode_line
from refold.runtime.storage import JsonlFolder
from refold.runtime.verify import verify_requests
from tests.snippets import ROOT

SAYS = {
    "quickstart.py": ["Buy milk, and call Ada.", ": completed."],
    "resume_after_kill.py": ["exit status is -9", "Done: version 1.2 is live"],
    "orchestrate.py": ["bed. Try 2. Done.", "Verdict: All three are described."],
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

AGENTS = {"two_agents.py": 2, "orchestrate.py": 5}
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


@pytest.mark.crash
def test_the_orchestrator_is_killed_and_run_again_until_it_is_done(tmp_path: Path) -> None:
    """Nothing is done twice, whenever it dies, and the last run says what a whole one says."""
    program = [sys.executable, str(ROOT / "examples" / "orchestrate.py"), str(tmp_path / "store")]
    chance = random.Random(7)
    for _ in range(8):
        life = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT)})
        time.sleep(chance.uniform(0.3, 1.0))
        life.kill()
        life.wait()
    done = run(*program[1:], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Describe: lamp. Try 1. Done.",
        "Describe: bed. Try 2. Done.",
        "Describe: desk. Try 1. Done.",
        "Verdict: All three are described.",
    ]
    folder = JsonlFolder(tmp_path / "store")
    assert sorted(folder.list()) == ["judge", "planner", "worker:1", "worker:2", "worker:3"]
    for session in folder.list():
        records = folder.read(session).records
        assert all(verdict.verified for verdict in verify_requests(records))
        own = [
            decode_line(one.encoded)
            for one in records[folder.read(session).header.seed_length or 0 :]
        ]
        keys = [event.data.idempotency_key for event in own if event.type == "inbox/queued"]
        assert len(keys) == len(set(keys)) > 0


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
