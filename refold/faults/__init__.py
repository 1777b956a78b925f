"""Putting faults in, and seeing what is left: tools for tests of stores and orchestration."""

from refold.faults.disk import Acknowledged, Image, RecordingDisk
from refold.faults.failing import FailingPort, Fault
from refold.faults.losses import KINDS, Kind
from refold.faults.promises import BrokenPromise, Journal, check_promises
from refold.faults.states import CrashState, Seen, crash_states, recovery_states
from refold.faults.witness import FOLDER, Witnessed, recorded_store

__all__ = [
    "FOLDER",
    "KINDS",
    "Acknowledged",
    "BrokenPromise",
    "CrashState",
    "FailingPort",
    "Fault",
    "Image",
    "Journal",
    "Kind",
    "RecordingDisk",
    "Seen",
    "Witnessed",
    "check_promises",
    "crash_states",
    "recorded_store",
    "recovery_states",
]
