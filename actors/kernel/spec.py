"""What a supervisor knows of a child before it starts, and how it restarts one (design 3.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import attrs
import trio

from actors.kernel.errors import RestartLimit
from actors.kernel.mailbox import Size

Restart: TypeAlias = Literal["never", "on-failure", "always"]


@attrs.frozen
class Spec:
    """A child's name, mailbox and place among its supervisor's decisions.

    `shutdown` is how many seconds it may take to stop. More than `limit` restarts within `period`
    seconds are given up. The wait before a restart doubles from `backoff[0]` to `backoff[1]`
    seconds. Crashes of the classes in `fatal` are not mended by a restart, so there is none. A
    `significant` child ends its supervisor when it finishes; one that fails for good
    always does.
    """

    name: str
    mailbox: Size = 16
    shutdown: float = 5.0
    restart: Restart = "never"
    significant: bool = False
    limit: int = 3
    period: float = 60.0
    backoff: tuple[float, float] = (1.0, 30.0)
    fatal: tuple[type[Exception], ...] = ()


async def restarting(
    spec: Spec,
    run: Callable[[], Awaitable[None]],
    jitter: Callable[[], float],
    on_crash: Callable[[Exception], None],
) -> None:
    """Run a child until it finishes for good, as often as its spec allows.

    `jitter` gives numbers in [0, 1); a wait is between half and the whole of its backoff. Raises
    the crash of a child that is never restarted, and `RestartLimit` from the last crash of one
    that crashed too often. Cancelled, it does not restart.
    """
    restarts: deque[float] = deque()
    while True:
        crash: Exception | None = None
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - a supervisor is there to see any crash
            crash = sole_crash(error)
        if crash is None and spec.restart != "always":
            return
        if crash is not None:
            if spec.restart == "never" or isinstance(crash, spec.fatal):
                raise crash
            on_crash(crash)
        _count(restarts, spec, crash)
        await trio.sleep(_wait(spec, len(restarts)) * (1 - jitter() / 2))


def _count(restarts: deque[float], spec: Spec, crash: Exception | None) -> None:
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


def sole_crash(error: Exception) -> Exception:
    """The one error in a group that is not a cancellation, else the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = sole_error(error)
    return found if isinstance(found, Exception) else error


def sole_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """As `sole_crash`, for any group."""
    _, errors = group.split(trio.Cancelled)
    found: BaseException | None = errors
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return group if found is None else found
