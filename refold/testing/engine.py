"""A real inference engine for tests: llama.cpp's HTTP server with a tiny model, in a second.

It speaks OpenAI chat completions and Anthropic messages, streams, calls tools, caches prefixes and
counts cached tokens. Needs the extra `engine`. Linux only (pidfd).
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import httpx2
import trio

from refold.testing.model import Template, write_model

_SERVER = Path(__file__).with_name("server.py")
_PATIENCE = 5.0  # seconds that a process gets to end before it is asked more firmly


class EngineUnavailable(RuntimeError):
    """The engine is not installed, did not start or did not start in time."""


@attrs.frozen
class Engine:
    """A running server. While it runs, `directory` has its `model.gguf` and `server.log`."""

    url: str
    """`http://127.0.0.1:PORT`, where `/v1/messages`, `/metrics` and `/slots` are."""
    pid: int
    directory: Path

    @property
    def base_url(self) -> str:
        """What an OpenAI client wants to know: `url` with `/v1`."""
        return self.url + "/v1"

    async def apply_template(self, body: Mapping[str, Any]) -> str:
        """The prompt, as text, that the server makes of the body of a chat completion.

        Raises httpx2.HTTPStatusError for a body that the server refuses. Cancellation is safe.
        """
        return str((await self._post("/apply-template", body))["prompt"])

    async def tokenize(self, text: str) -> list[int]:
        """The token ids of `text`: its UTF-8 bytes, and an id from 256 up for each special token.

        Cancellation is safe.
        """
        return list((await self._post("/tokenize", {"content": text}))["tokens"])

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        # The server sometimes closes a connection that it has promised to keep.
        one_request = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(limits=one_request, trust_env=False, timeout=60) as client:
            response = await client.post(self.url + path, json=body)
        return response.raise_for_status().json()


@asynccontextmanager
async def open_engine(
    *,
    template: Template = "tools",
    slots: int = 1,
    context: int = 32768,
    cache_ram_mib: int = 0,
    similarity: float | None = None,
    start_timeout: float = 60,
) -> AsyncIterator[Engine]:
    """Start the engine, and stop it when the block is left.

    With the template `tools` the model calls a tool after every user message that comes with tools
    and answers in text after every tool result; with `think` it reasons before every answer and
    knows no tools. Sampling is at temperature 0.7 with a fixed seed unless the request says
    otherwise; with `ignore_eos` a text runs to `max_tokens`.

    `slots` requests run at once and share `context` tokens equally. `cache_ram_mib` (MiB) keeps the
    prompts that were evicted from a slot. A request without `id_slot` goes to the slot whose prompt
    has at least the share `similarity` (0 to 1, llama.cpp's own default is 0.1) in common with it.
    For exact counts with several conversations leave the memory at 0 and send `id_slot`.

    Raises EngineUnavailable when the extra `engine` is not installed, when the server ends before
    it is ready, and when it is not ready after `start_timeout` seconds. Whatever ends the block,
    cancellation too, the server is gone afterwards; that part takes milliseconds, at worst 15
    seconds, and is shielded. The block must be left on the thread that entered it.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineUnavailable("xllamacpp is missing: run pip install 'refold[engine]'")
    options = {
        "--slots": slots,
        "--context": context,
        "--cache-ram-mib": cache_ram_mib,
        "--similarity": similarity,
    }
    with TemporaryDirectory(prefix="refold-engine-") as name:
        directory = Path(name)
        await trio.to_thread.run_sync(write_model, directory / "model.gguf", template)
        process = _spawn(directory, options)
        try:
            url = await _ready(process, directory, start_timeout)
            yield Engine(url=url, pid=process.pid, directory=directory)
        finally:
            await _stop(process)


def _spawn(directory: Path, options: Mapping[str, float | None]) -> subprocess.Popen[bytes]:
    # Not by trio: it starts children from worker threads, and a server dies with the thread that
    # started it.
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    with (directory / "server.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own file, run by our own interpreter
            [sys.executable, "-P", str(_SERVER), str(directory / "model.gguf"), *given],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us
        )


async def _ready(process: subprocess.Popen[bytes], directory: Path, patience: float) -> str:
    with trio.move_on_after(patience) as waiting:
        word, _, url = (await _output(process)).partition(" ")
        if word == "READY":
            return url.strip()
        await _exited(process)
    failure = f"was not ready in {patience} s" if waiting.cancelled_caught else _status(process)
    said = (directory / "server.log").read_bytes()[-2000:].decode(errors="replace").strip()
    raise EngineUnavailable(f"the engine {failure}; the end of its log: {said or '(empty)'}")


def _status(process: subprocess.Popen[bytes]) -> str:
    if process.returncode < 0:
        return f"was ended by {signal.Signals(-process.returncode).name} before it was ready"
    return f"ended with status {process.returncode} before it was ready"


async def _output(process: subprocess.Popen[bytes]) -> str:
    """All that the server prints: it closes its output when it is ready or when it ends."""
    assert process.stdout
    read = b""
    while True:
        await trio.lowlevel.wait_readable(process.stdout)
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return read.decode()
        read += chunk


async def _exited(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    handle = os.pidfd_open(process.pid)
    try:
        await trio.lowlevel.wait_readable(handle)
    finally:
        os.close(handle)
    process.poll()


async def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    assert process.stdout
    process.stdout.close()
    with trio.CancelScope(shield=True):
        for ask in (process.stdin.close, process.terminate, process.kill):
            ask()
            with trio.move_on_after(_PATIENCE):
                await _exited(process)
                break
