"""Putting faults in, and seeing what is left: tools for tests of stores and orchestration."""

from refold.faults.fork_server import ForkServer
from refold.faults.killer import Kill, Life, OutOfPatience, Program, kill, start_program
from refold.faults.promises import BrokenPromise, Journal, check_promises

__all__ = [
    "BrokenPromise",
    "ForkServer",
    "Journal",
    "Kill",
    "Life",
    "OutOfPatience",
    "Program",
    "check_promises",
    "kill",
    "start_program",
]
