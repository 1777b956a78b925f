"""One place for the private switch that makes Trio's scheduler follow a seed.

Trio offers it to Hypothesis only. The canary in `tests/actors/test_supervision.py` fails when
the names move.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
from trio._core import _run

T = TypeVar("T")


def run_seeded(
    main: Callable[[random.Random], Awaitable[T]], seed: int, patch: pytest.MonkeyPatch
) -> T:
    """Run `main` on virtual time with a schedule that depends on `seed` alone.

    `main` is given a random source of the same seed for delays and decisions of its own: the
    order of tasks alone finds little.
    """
    patch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    _run._r.seed(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(main, random.Random(seed), clock=clock)
