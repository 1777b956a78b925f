"""A small run of each benchmark counts what it says; nothing here is timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import group_commit, many_sessions, resume


async def test_idle_sessions_hold_no_task_and_no_descriptor(tmp_path: Path) -> None:
    load = many_sessions.Load(sessions=50, busy=5, turns=4)
    found = await many_sessions.run(load, tmp_path)
    assert found.parked == found.idle_sessions == 45
    assert (found.idle_tasks, found.idle_descriptors) == (0, 0)
    assert len(found.seconds) == found.finished == 20
    assert len(list(tmp_path.rglob("*.jsonl"))) == 51
    assert "| tasks of all idle sessions (aim: 0) | 0 |" in many_sessions.table(found)


async def test_sessions_that_append_at_once_share_the_rounds_of_one_committer(
    tmp_path: Path,
) -> None:
    found = await group_commit.run(group_commit.Load(sessions=64, events=5), tmp_path)
    files_alone, files, rows_alone, rows = found
    for alone in (files_alone, rows_alone):
        assert (alone.events, alone.syncs) == (5, 5)
    for together in (files, rows):
        assert together.events == 64 * 5
        assert together.rounds < together.events / 3
    assert rows.syncs <= rows.rounds  # a transaction syncs for all of its sessions
    assert "| SQLite, 64 at once | 320 |" in group_commit.table(found)


def test_a_long_session_is_opened_from_its_log_and_with_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(resume.__file__).parents[1]))
    found = resume.run(2_000, tmp_path)
    assert found.events >= 2_000
    assert (tmp_path / "source" / "long.index").exists()
    assert "| with the index file |" in resume.table(found)
