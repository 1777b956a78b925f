"""What a supervisor knows of a child before it starts, and how it restarts one."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import attrs
import trio

from refold.actors.kernel.errors import RestartLimit
from refold.actors.kernel.nursery import sole_error

Restart: TypeAlias = Literal["never", "on-failure"]


@attrs.frozen
class Spec:
    """A child's name, mailbox and place among its supervisor's decisions.

    `mailbox` is how many messages may wait. `shutdown` is how many seconds it may take to stop.
    More than `limit` restarts within `period` seconds are given up. The wait before a restart
    doubles from `backoff[0]` to `backoff[1]` seconds. Crashes of the classes in `fatal` are not
    mended by a restart, so there is none. A child that fails for good ends its supervisor.
    """

    name: str
    mailbox: int = 16
    shutdown: float = 5.0
    restart: Restart = "never"
    limit: int = 3
    period: float = 60.0
    backoff: tuple[float, float] = (1.0, 30.0)
    fatal: tuple[type[Exception], ...] = ()


async def restarting(
    spec: Spec,
    run: Callable[[], Awaitable[None]],
    has_started: Callable[[], bool],
    jitter: Callable[[], float],
    on_crash: Callable[[Exception], None],
) -> None:
    """Run a child until it finishes, and after a crash again, as often as its spec allows.

    `jitter` gives numbers in [0, 1); a wait is between half and the whole of its backoff. Raises
    the crash of a child that is never restarted or had not started yet, and `RestartLimit` from
    the last crash of one that crashed too often. Cancelled, it does not restart.
    """
    restarts: deque[float] = deque()
    while True:
        try:
            return await run()
        except Exception as error:  # a supervisor is there to see any crash
            found = sole_error(error)
            crash = found if isinstance(found, Exception) else error
            if spec.restart == "never" or isinstance(crash, spec.fatal) or not has_started():
                if crash is error:
                    raise
                raise crash from crash.__cause__
        on_crash(crash)
        _count(restarts, spec, crash)
        await trio.sleep(_wait(spec, len(restarts)) * (1 - jitter() / 2))


def _count(restarts: deque[float], spec: Spec, crash: Exception) -> None:
    now = trio.current_time()
    while restarts and restarts[0] <= now - spec.period:
        restarts.popleft()
    restarts.append(now)
    if len(restarts) > spec.limit:
        raise RestartLimit(spec.name, spec.limit, spec.period) from crash


def _wait(spec: Spec, count: int) -> float:
    low, high = spec.backoff
    wait: float = low * 2 ** (count - 1)
    return min(high, wait)
