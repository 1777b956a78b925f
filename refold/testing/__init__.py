"""What tests of agents need beside the `script` and `replay` models: a real inference engine."""

from refold.testing.engine import Engine, EngineUnavailable, open_engine

__all__ = ["Engine", "EngineUnavailable", "open_engine"]
