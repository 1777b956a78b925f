"""Where logs live, as actors see it: one contract, and the stores that keep it (design 5.1)."""

from actors.stores.contract import Grant, Store
from actors.stores.embedded import EmbeddedStore, open_store

__all__ = ["EmbeddedStore", "Grant", "Store", "open_store"]
