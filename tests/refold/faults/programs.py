"""Programs to be killed, for `test_killer`."""

# ruff: noqa: T201 - programs speak on standard output

from __future__ import annotations

import os
import random
import signal
import sys
import time


def count(upto: str) -> None:
    """Say the numbers up to `upto`, then nothing more."""
    for number in range(int(upto)):
        print(number, flush=True)
    time.sleep(60)


def tear() -> None:
    """Say a line and a half."""
    os.write(1, b"whole\nhal")
    time.sleep(60)


def flood(lines: str) -> None:
    """Say more than a pipe holds, and end."""
    for _ in range(int(lines)):
        print("x" * 999)


def stop_itself() -> None:
    print("stopping", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    print("went on", flush=True)


def leave_a_child() -> None:
    """End, while a child keeps the output open."""
    print("leaving", flush=True)
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)


def draw() -> None:
    print(random.random())


def fail() -> None:
    raise ValueError("as it was told")


def say_modules() -> None:
    print("tests.refold.faults.programs" in sys.modules, os.getppid())
