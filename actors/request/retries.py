"""When a failed request is sent again, and after how long.

With the same bytes and in the same step, also after content had begun: nothing was acted on yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from refold.runtime.stream.failures import RETRYABLE, Failure


@attrs.frozen
class Retries:
    """At most `limit` retries of one request; waits double from `first` to `longest` seconds.

    A provider's own wish is honoured up to `patience` seconds; one that wants longer is not asked
    again. `jitter` gives numbers in [0, 1), which spread a wait between half and the whole of it.
    """

    limit: int = 5
    first: float = 0.5
    longest: float = 10.0
    patience: float = 60.0
    jitter: Callable[[], float] = random.random

    def delay(self, attempt: int, failure: Failure) -> float | None:
        """Seconds to wait after the `attempt`-th failure (from 1); None to give up.

        Failures that asking again cannot mend, such as a wrong key or a spent quota, are given up;
        an empty answer is asked for once more: it was paid for.
        """
        limit = min(self.limit, 1) if failure.code == "EMPTY_RESPONSE" else self.limit
        if attempt > limit or failure.code not in RETRYABLE:
            return None
        if failure.retry_after_ms is not None:
            wished = failure.retry_after_ms / 1000
            return wished if wished <= self.patience else None
        wait: float = self.first * 2 ** (attempt - 1)
        return min(self.longest, wait) * (1 - self.jitter() / 2)
