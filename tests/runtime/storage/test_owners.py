"""Whether the owner that a log names may still write it, and whether it is named as its holder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from refold.runtime.events import Owner, SessionOwner
from refold.runtime.storage import this_process
from refold.runtime.storage.owners import _boot, busy, has_ended, is_running, may_write_still
from refold.runtime.storage.scan import LastOwner

HERE = this_process()
KERNEL, _, SPACE = HERE.boot.partition("/")


@pytest.fixture
def running() -> Iterator[int]:
    """The number of another process that runs, and is only looked at."""
    waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate()
    assert process.returncode == 0


def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def owner(pid: int, **other: str) -> Owner:
    return attrs.evolve(HERE, pid=pid, **other)


# Of each: runs it here, may it write still, and has it ended for all that anybody here knows?
CASES: dict[str, tuple[dict[str, str], tuple[bool, bool, bool], tuple[bool, bool, bool]]] = {
    "of this machine": ({}, (True, True, False), (False, False, True)),
    "of another host": ({"host": "other"}, (False, True, False), (False, True, False)),
    "of an earlier boot": ({"boot": f"before/{SPACE}"}, (False, False, True), (False, False, True)),
    "of another space of ids": (
        {"boot": f"{KERNEL}/other"},
        (False, True, False),
        (False, True, False),
    ),
}


@pytest.mark.parametrize("which", CASES)
def test_what_is_known_of_an_owner(which: str, running: int) -> None:
    other, alive, dead = CASES[which]
    for pid, expected in ((running, alive), (gone(), dead)):
        named = owner(pid, **other)
        last = LastOwner(SessionOwner(3, named), 5, released=False)
        assert (is_running(named), may_write_still(last), has_ended(named)) == expected
        assert may_write_still(attrs.evolve(last, released=True)) is False
        refused = busy("s", last)
        known = (refused.pid, refused.host, refused.since, refused.here)
        assert known == ((None, None, None, False) if expected[2] else (pid, named.host, 5, False))
        assert busy("s", attrs.evolve(last, released=True)).pid is None


def test_this_process_is_no_other_one() -> None:
    """It knows of its own logs what it holds, and is named as the holder of one that is locked."""
    here = this_process()
    last = LastOwner(SessionOwner(1, here), 5, released=False)
    assert (is_running(here), may_write_still(last), has_ended(here)) == (False, False, False)
    refused = busy("s", last)
    assert (refused.pid, refused.here) == (here.pid, True)


def test_a_log_that_names_nobody_has_no_owner() -> None:
    assert may_write_still(None) is False
    assert may_write_still(LastOwner(SessionOwner(1), 0, released=False)) is False
    assert busy("s", None).pid is None
    assert busy("s", LastOwner(SessionOwner(1), 0, released=False)).pid is None


def test_the_boot_names_the_kernel_and_the_space_of_process_ids() -> None:
    _boot.cache_clear()
    kernel, _, space = this_process().boot.partition("/")
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() == kernel
    assert Path("/proc/self/ns/pid").readlink().name == f"pid:[{space}]"
