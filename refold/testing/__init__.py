"""What tests of agents need beside a `Script`: recorded sessions as models, and a real engine."""

from refold.testing.engine import Engine, EngineUnavailable, open_engine
from refold.testing.replaying import Diverged, replay

__all__ = ["Diverged", "Engine", "EngineUnavailable", "open_engine", "replay"]
