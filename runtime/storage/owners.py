"""Who this process is, and whether a process that a log names still runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

from refold.runtime.errors import RefoldError
from refold.runtime.events import Owner
from refold.runtime.storage.errors import SessionBusy
from refold.runtime.storage.scan import LastOwner, Scan


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


def may_write_still(last: LastOwner | None) -> bool:
    """Whether the log's last owner did not release it and is not known to have ended.

    Its lock is ours, so it should have; but a lock file can be replaced. Of a process of another
    host or in another space of process ids nobody here knows. Of its own logs this one does.
    """
    if last is None or last.released or last.owner.owner is None:
        return False
    owner, here = last.owner.owner, this_process()
    if owner.host != here.host or _is_elsewhere(owner.boot, here.boot):
        return True
    return is_running(owner)


def has_ended(owner: Owner) -> bool:
    """Whether `owner` was a process of this machine that does not run any more.

    Of one in another space of process ids, such as a container's, nobody here knows.
    """
    here = this_process()
    if owner.host != here.host or (owner.boot, owner.pid) == (here.boot, here.pid):
        return False
    return not _is_elsewhere(owner.boot, here.boot) and not is_running(owner)


def _is_elsewhere(boot: str, here: str) -> bool:
    """Whether a process runs under the same kernel, in another space of process ids."""
    (kernel, _, space), (ours, _, our_space) = boot.partition("/"), here.partition("/")
    return kernel == ours and space != our_space


def last_owner_of(read: Callable[[], Scan]) -> LastOwner | None:
    """The last owner that the log names which `read` reads; None also where it cannot be read."""
    try:
        return read().last_owner()
    except RefoldError:
        return None


def current_folder() -> str | None:
    """The path of the folder that this process works in; None where that was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 - the same as Path.cwd(), without a Path
    except FileNotFoundError:
        return None


def busy(session_id: str, last: LastOwner | None) -> SessionBusy:
    """The refusal of a session that somebody has locked, with its holder's name if it is known.

    The log names its last owner. That is the holder, unless it released the log or its process
    has ended: then somebody else has just taken the lock and not written its own name yet, and
    the refusal names nobody.
    """
    owner = None if last is None or last.released else last.owner.owner
    if last is None or owner is None or has_ended(owner):
        return SessionBusy(session_id)
    here = owner == this_process()
    return SessionBusy(session_id, owner.pid, owner.host, last.since, here)


@cache
def _boot() -> str:
    """The kernel's id of the current boot, and of the space that process ids are of.

    Empty where there is none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return ""
    return f"{boot}/{space}"
