"""A small run of each benchmark counts what it says; nothing here is timed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.many_sessions import Load, run, table


async def test_idle_sessions_hold_no_task_and_no_descriptor(tmp_path: Path) -> None:
    found = await run(Load(sessions=50, busy=5, turns=4), tmp_path)
    assert found.parked == found.idle_sessions == 45
    assert (found.idle_tasks, found.idle_descriptors) == (0, 0)
    assert len(found.seconds) == found.finished == 20
    assert len(list(tmp_path.rglob("*.jsonl"))) == 51
    assert "| tasks of all idle sessions (aim: 0) | 0 |" in table(found)
