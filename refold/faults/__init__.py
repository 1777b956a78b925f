"""Putting faults in, and seeing what is left: tools for tests of stores and orchestration."""

from refold.faults.promises import BrokenPromise, Journal, check_promises

__all__ = ["BrokenPromise", "Journal", "check_promises"]
