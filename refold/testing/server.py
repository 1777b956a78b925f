"""Serve a model on loopback with llama.cpp, in a process of its own: a crash in C++ ends only that.

    python -m refold.testing.server MODEL [OPTIONS]

Prints one line, `READY http://127.0.0.1:PORT`, and closes its standard output; whatever llama.cpp
writes goes to standard error. Ends when its standard input ends, on SIGTERM, and together with the
thread that started it.

Imports nothing of this project: run by its path, it starts without the packages around it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import signal
from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until told to end: status 0 at the end of input, 1 when the server cannot start."""
    arguments = _arguments()
    _die_with_parent()
    announcement = _take_stdout()
    server = _start(arguments)
    os.write(announcement, f"READY {server.listening_address}\n".encode())
    os.close(announcement)
    while os.read(STDIN, 4096):
        pass
    os._exit(0)  # the server's destructor would wait for the requests in flight


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m refold.testing.server")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--slots", type=int, default=1, help="requests served at once")
    parser.add_argument("--context", type=int, default=32768, help="tokens, divided by the slots")
    parser.add_argument("--cache-ram-mib", type=int, default=0, help="memory for evicted prompts")
    parser.add_argument("--similarity", type=float, help="common share that makes a slot preferred")
    return parser.parse_args()


def _die_with_parent() -> None:
    # The end of input says the same, unless a fork of the parent holds the other end of the pipe.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _take_stdout() -> int:
    announcement = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return announcement


def _start(arguments: argparse.Namespace) -> Any:
    llama = importlib.import_module("xllamacpp")  # optional, and without types
    return llama.Server(_parameters(llama.CommonParams(), arguments))


def _parameters(parameters: Any, arguments: argparse.Namespace) -> Any:
    parameters.model.path = arguments.model
    parameters.model_alias = {"tiny"}
    parameters.port = 0
    parameters.n_ctx = arguments.context
    parameters.n_parallel = arguments.slots
    parameters.cache_ram_mib = arguments.cache_ram_mib
    if arguments.similarity is not None:
        parameters.slot_prompt_similarity = arguments.similarity
    # More threads spin at their barriers, and a busy neighbour then slows them down thirtyfold.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    # The server looks for a closed connection when it is about to send, so a ping a second is what
    # frees the slot of a cancelled request.
    parameters.sse_ping_interval = 1
    parameters.sampling.seed = 1
    parameters.sampling.temp = 0.7
    parameters.use_jinja = parameters.offline = parameters.endpoint_metrics = True
    parameters.ui = False
    parameters.verbosity = 1
    return parameters


if __name__ == "__main__":
    main()
