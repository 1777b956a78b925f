"""Where logs live, as actors see it: one contract, and the stores that keep it."""

from refold.actors.stores.committer import Statistics
from refold.actors.stores.contract import Grant, Progress, Store
from refold.actors.stores.local import EmbeddedStore, open_store

__all__ = ["EmbeddedStore", "Grant", "Progress", "Statistics", "Store", "open_store"]
