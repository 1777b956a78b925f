"""The engine is what the proofs of the cache rely on: these tests check the instrument itself."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from refold.testing import Engine, EngineUnavailable, engine, open_engine
from refold.testing.model import write_model

if os.environ.get("CI") != "true":  # there a missing wheel must not pass for a success
    pytest.importorskip("xllamacpp", reason="needs pip install 'refold[engine]'")

pytestmark = pytest.mark.engine

ROOT = Path(engine.__file__).parents[2]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "maxLength": 24}},
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
]


async def ask(running: Engine, body: Mapping[str, Any]) -> tuple[dict[str, Any], str, Any]:
    """The streamed answer to a chat completion: the message, the finish reason and the usage."""
    request = {"stream": True, "stream_options": {"include_usage": True}, "id_slot": 0, **body}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = "", None
    async with (
        httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0), timeout=60) as client,
        client.stream("POST", f"{running.base_url}/chat/completions", json=request) as response,
    ):
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                finish = choice["finish_reason"] or finish
                add_delta(message, calls, choice["delta"])
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message, finish, usage


def add_delta(
    message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]
) -> None:
    for name in ("content", "reasoning_content"):
        if delta.get(name):
            message[name] = message.get(name, "") + delta[name]
    for part in delta.get("tool_calls", []):
        function = part["function"]
        call = calls.setdefault(
            part["index"],
            {
                "id": part.get("id"),
                "type": "function",
                "function": {"name": function.get("name"), "arguments": ""},
            },
        )
        call["function"]["arguments"] += function.get("arguments", "")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_every_step_finds_all_tokens_of_the_step_before_but_the_last_in_the_cache() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful agent. " * 20}
    ]
    steps: list[tuple[str, int, int]] = []
    async with open_engine() as running:
        for prompt in range(3):
            messages.append({"role": "user", "content": f"Do step {prompt} of the plan."})
            for step in range(2):
                message, finish, usage = await ask(
                    running,
                    {
                        "tools": TOOLS,
                        "temperature": 0.7,
                        "seed": 2 * prompt + step,
                        "max_tokens": 200,
                        "messages": messages,
                    },
                )
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                steps.append((finish, cached, usage["total_tokens"]))
                messages.append(message)
                messages += [
                    {"role": "tool", "tool_call_id": call["id"], "content": "3 lines"}
                    for call in message.get("tool_calls", [])
                ]
    assert [finish for finish, _, _ in steps] == ["tool_calls", "stop"] * 3
    assert [cached for _, cached, _ in steps] == [0] + [total - 1 for _, _, total in steps[:-1]]


async def test_thoughts_come_apart_from_the_text_and_replaying_them_keeps_the_cache() -> None:
    messages: list[dict[str, Any]] = []
    total = 1
    async with open_engine(template="think") as running:
        for prompt in range(3):
            messages.append({"role": "user", "content": f"Consider case {prompt}."})
            message, finish, usage = await ask(
                running, {"messages": messages, "seed": prompt, "max_tokens": 300}
            )
            messages.append(message)
            assert finish == "stop"
            assert message["reasoning_content"].isupper()
            assert message["content"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == total - 1
            total = usage["total_tokens"]


async def test_the_token_ids_of_a_text_are_its_bytes() -> None:
    text = "naïve \N{SNOWMAN}\n\x00 ok"
    async with open_engine() as running:
        assert await running.tokenize(text) == list(text.encode())
        assert await running.tokenize("<|im_start|>") == [257]


async def test_the_rendered_prompt_of_a_step_continues_the_one_before() -> None:
    user = {"role": "user", "content": "Read it."}
    call = {"name": "read_file", "arguments": '{"path":"a"}'}
    history = [
        user,
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "1", "content": "text"},
    ]
    async with open_engine() as running:
        before = await running.apply_template({"messages": [user], "tools": TOOLS})
        after = await running.apply_template({"messages": history, "tools": TOOLS})
        silent = await running.apply_template({"messages": [user]})
    assert after.startswith(
        before + '<tool_call>{"name":"read_file","arguments":{"path":"a"}}</tool_call><|im_end|>\n'
    )
    assert before.endswith("<|im_start|>assistant\n<|act|>")
    assert after.endswith("<|im_start|>assistant\n")
    assert silent == "<|im_start|>user\nRead it.<|im_end|>\n<|im_start|>assistant\n"


async def test_slots_share_the_context() -> None:
    async with open_engine(slots=2, context=4096) as running, httpx2.AsyncClient() as client:
        slots = (await client.get(f"{running.url}/slots")).json()
    assert [slot["n_ctx"] for slot in slots] == [2048, 2048]


async def test_two_engines_serve_the_same_model_bytes() -> None:
    digests = set()
    for _ in range(2):
        async with open_engine() as running:
            model = running.directory / "model.gguf"
            digests.add(hashlib.sha256(model.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_model_does_not_depend_on_the_hash_seed_of_the_process(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from refold.testing.model import write_model\n"
        "write_model(pathlib.Path(sys.argv[1]), 'tools')\n"
    )
    write_model(tmp_path / "here", "tools")
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "there")],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
    )
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


async def test_the_server_and_its_files_are_gone_when_the_block_is_left() -> None:
    async with open_engine() as running:
        assert not is_gone(running.pid)
    assert is_gone(running.pid)
    assert not running.directory.exists()


async def test_the_server_is_gone_after_a_cancellation() -> None:
    pids = []
    with trio.CancelScope() as scope:
        async with open_engine() as running:
            pids.append(running.pid)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert is_gone(pids[0])


PARENT = """
import os, sys, trio
from refold.testing import open_engine

async def main():
    async with open_engine() as engine:
        if sys.argv[1] == "forks" and os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        print(engine.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.parametrize("family", ["alone", "forks"])
def test_the_server_does_not_outlive_a_killed_parent(family: str, tmp_path: Path) -> None:
    # A fork holds the server's standard input open, so its end alone would not do.
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, family],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout
        server = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert select.select([server], [], [], 10)[0]
        finally:
            os.close(server)


@pytest.mark.parametrize(("way", "status"), [("end of input", 0), ("SIGTERM", -signal.SIGTERM)])
def test_the_server_as_a_command_says_ready_and_ends_when_told(
    way: str, status: int, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, "tools")
    with subprocess.Popen(
        [sys.executable, "-m", "refold.testing.server", str(model), "--context", "2048"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout
        assert server.stdin
        try:
            assert server.stdout.readline().startswith(b"READY http://127.0.0.1:")
            if way == "SIGTERM":
                server.terminate()
            else:
                server.stdin.close()
            assert server.wait(timeout=10) == status
        finally:
            server.kill()


async def test_a_missing_wheel_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'refold\[engine\]'"):
        async with open_engine():
            pass


def replace_server(monkeypatch: pytest.MonkeyPatch, path: Path, program: str) -> None:
    path.write_text(program)
    monkeypatch.setattr(engine, "_SERVER", path)


@pytest.mark.parametrize(
    ("end", "told"),
    [("sys.exit(3)", "ended with status 3"), ("os.kill(os.getpid(), 4)", "was ended by SIGILL")],
)
async def test_a_server_that_ends_early_is_reported_with_its_last_words(
    end: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = f"import os, sys\nprint('no such file', file=sys.stderr, flush=True)\n{end}\n"
    replace_server(monkeypatch, tmp_path / "server.py", program)
    with pytest.raises(EngineUnavailable, match=f"{told} before it was ready.*no such file"):
        async with open_engine():
            pass


async def test_a_server_that_is_not_ready_in_time_is_stopped_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = []
    spawn = engine._spawn

    def remember(*arguments: Any) -> subprocess.Popen[bytes]:
        started.append(spawn(*arguments))
        return started[0]

    monkeypatch.setattr(engine, "_spawn", remember)
    replace_server(monkeypatch, tmp_path / "server.py", "import sys\nsys.stdin.read()\n")
    with pytest.raises(EngineUnavailable, match=r"was not ready in 0.2 s"):
        async with open_engine(start_timeout=0.2):
            pass
    assert started[0].returncode == 0


async def test_a_server_that_does_not_listen_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'READY http://127.0.0.1:1\\n')\n"
        "os.close(1)\n"
        "while True: signal.pause()\n"
    )
    replace_server(monkeypatch, tmp_path / "server.py", program)
    monkeypatch.setattr(engine, "_PATIENCE", 0.1)
    async with open_engine() as running:
        assert running.url == "http://127.0.0.1:1"
    assert is_gone(running.pid)
