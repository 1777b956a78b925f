"""Who this process is, and whether a process that a log names still runs."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from runtime.events import Owner


def this_process() -> Owner:
    """The owner that this process writes into `session/owner`."""
    return Owner(platform.node(), os.getpid(), _boot())


def is_running(owner: Owner) -> bool:
    """Whether `owner` is another process of this machine that has not ended."""
    here = this_process()
    if (owner.host, owner.boot) != (here.host, here.boot) or owner.pid == here.pid:
        return False
    try:
        os.kill(owner.pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def has_ended(owner: Owner) -> bool:
    """Whether `owner` was a process of this machine that does not run any more."""
    here = this_process()
    if owner.host != here.host or (owner.boot, owner.pid) == (here.boot, here.pid):
        return False
    return not is_running(owner)


@cache
def _boot() -> str:
    """The kernel's id of the current boot; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
