"""Every example is a complete program that does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.storage import JsonlFolder
from runtime.verify import verify_requests
from tests.snippets import ROOT

SAYS = {
    "quickstart.py": ["Buy milk, and call Ada.", ": completed."],
    "resume_after_kill.py": ["exit status is -9", "Done: version 1.2 is live"],
}


def test_every_example_is_run_here() -> None:
    assert sorted(SAYS) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.crash
@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs_and_its_requests_can_be_verified(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for expected in SAYS[name]:
        assert expected in done.stdout
    folder = JsonlFolder(tmp_path / "store")
    (session,) = folder.list()
    verdicts = list(verify_requests(folder.read(session).records))
    assert verdicts
    assert all(verdict.verified for verdict in verdicts)
