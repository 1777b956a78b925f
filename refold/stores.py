"""Where sessions live, as the runtime sees it: for stores of your own, which `refold.open` takes.

A `Store` hands out one `Grant` on a session at a time, which appends and makes durable; what each
promises is checked by `refold.testing.store_contract`.
"""

from __future__ import annotations

from refold.actors.stores import Grant, Progress, Store, open_store

__all__ = ["Grant", "Progress", "Store", "open_store"]
