"""A process that has imported everything once and forks a child for each run.

A run costs a fork in place of an interpreter and its imports: milliseconds in place of half a
second. The server has no thread, so that nothing is in hand at a fork, and it ends with whoever
started it, its children too.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from types import TracebackType
from typing import Any, Self

from refold.faults.killer import PATIENCE, Program

_LONGEST = 1 << 16
"""Bytes of one request."""

_SERVER = f"import sys, {__name__} as server; server.serve(int(sys.argv[1]), sys.argv[2:])"


class ForkServer:
    """Starts functions of importable modules as programs; leaving its `with` block ends it.

    `modules` are imported when it starts; none of them may start a thread then. They are looked
    for as in this process. Raises `RuntimeError` where the server did not come up.
    """

    def __init__(self, *modules: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(PATIENCE)
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._server = Popen(  # noqa: S603 - it is this interpreter
                [sys.executable, "-P", "-c", _SERVER, str(theirs.fileno()), *modules],
                stdin=DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
            )
        try:
            self._answer("ready")
        except BaseException:
            self.close()
            raise

    def start(self, function: str, *arguments: str) -> Program:
        """Call `function`, written as `module:name`, with `arguments` in a new process.

        Its standard output is the program's. It ends with status 0 when the function returns and
        1 when it raises, which is told on standard error.
        """
        output, theirs = os.pipe()
        try:
            self._ask({"start": function, "arguments": arguments}, theirs)
            pid = self._answer("pid")
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(theirs)
        return Program(pid, output, lambda: self._reap(pid))

    def close(self) -> None:
        """End the server, and kill the programs that still run."""
        self._channel.close()
        self._server.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _reap(self, pid: int) -> int:
        self._ask({"reap": pid})
        return os.waitstatus_to_exitcode(self._answer("status"))

    def _ask(self, request: dict[str, Any], *descriptors: int) -> None:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self._channel.sendmsg([json.dumps(request).encode()], passed if descriptors else [])

    def _answer(self, key: str) -> int:
        answer = self._channel.recv(_LONGEST)
        if not answer:
            raise RuntimeError("the fork server has ended; standard error says why")
        return int(json.loads(answer)[key])


def serve(descriptor: int, modules: list[str]) -> None:
    """Be the server behind the socket `descriptor` until its other end is closed."""
    channel = socket.socket(fileno=descriptor)
    for name in modules:
        importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.exit(f"a fork server must have one thread; importing {modules} made {threads}")
    gc.freeze()  # so that a child's collections do not copy what all share
    children: set[int] = set()
    _say(channel, ready=1)
    try:
        while _serve_one(channel, children):
            pass
    finally:
        for pid in children:  # not reaped yet, so the numbers are still theirs
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve_one(channel: socket.socket, children: set[int]) -> bool:
    """Do what one request asks; False once there will be none."""
    message, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 1)
    if not message:
        return False
    request = json.loads(message)
    if "reap" in request:
        pid = request["reap"]
        children.remove(pid)
        _say(channel, status=os.waitpid(pid, 0)[1])
        return True
    (output,) = descriptors
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in forked children alone
        _run(channel, output, request["start"], request["arguments"])
    os.close(output)
    children.add(pid)
    _say(channel, pid=pid)
    return True


def _run(
    channel: socket.socket, output: int, function: str, arguments: list[str]
) -> None:  # pragma: no cover - in forked children alone
    """The child: call the function and end, whatever comes."""
    status = 1
    try:
        channel.close()
        os.dup2(output, 1)
        os.close(output)
        random.seed()  # every child would draw the same numbers
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may return into the server's loop
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _say(channel: socket.socket, **what: int) -> None:
    with suppress(BrokenPipeError):
        channel.send(json.dumps(what).encode())
