"""What holds for the whole run."""

from __future__ import annotations

import sys

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which a package of ours was imported under its bare name.

    It would be there twice, with two of each class. Users' projects own these names.
    """
    bare = [name for name in ("runtime", "actors") if name in sys.modules]
    if bare:
        print(f"\nimported under a bare name: {', '.join(bare)}")  # noqa: T201 - pytest shows it
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
