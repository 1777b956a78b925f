"""Putting faults in, and seeing what is left: tools for tests of stores and orchestration."""

from refold.faults.faults import OPERATIONS, FailingPort, Fault
from refold.faults.fork_server import ForkServer
from refold.faults.killer import Kill, Life, OutOfPatience, Program, kill, start_program
from refold.faults.losses import KINDS, Kind
from refold.faults.promises import BrokenPromise, Journal, check_promises
from refold.faults.recording import Acknowledged, Image, RecordingDisk
from refold.faults.states import CrashState, Seen, crash_states, recovery_states
from refold.faults.witness import FOLDER, Witnessed, recorded_store

__all__ = [
    "FOLDER",
    "KINDS",
    "OPERATIONS",
    "Acknowledged",
    "BrokenPromise",
    "CrashState",
    "FailingPort",
    "Fault",
    "ForkServer",
    "Image",
    "Journal",
    "Kill",
    "Kind",
    "Life",
    "OutOfPatience",
    "Program",
    "RecordingDisk",
    "Seen",
    "Witnessed",
    "check_promises",
    "crash_states",
    "kill",
    "recorded_store",
    "recovery_states",
    "start_program",
]
