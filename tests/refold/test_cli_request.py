"""`refold request`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import orjson
import pytest

import refold
from refold.actors.request.script import Say
from refold.cli.request import curl_command
from refold.runtime.divergence import StepRequest, rebuild_step
from refold.runtime.envelope import Event
from refold.runtime.step_names import find_step
from tests.refold.cli_stores import CliStore
from tests.refold.test_render import hidden


def rebuilt(store: CliStore, session: str, step: str, provider: str) -> StepRequest:
    """A step's request as if it had gone to `provider`."""
    events = store.events(session)
    found = rebuild_step(events, find_step(events, step))
    config = attrs.evolve(found.request.header.config, provider=provider)
    header = attrs.evolve(found.request.header, config=config)
    return attrs.evolve(found, request=attrs.evolve(found.request, header=header))


def seals(store: CliStore, session: str) -> list[Event]:
    return [event for event in store.events(session) if event.type == "request/sealed"]


def test_the_request_is_its_canonical_form_indented(made_store: CliStore) -> None:
    ran = made_store.run("request", "tour", "1.2")
    request = orjson.loads(ran.out)
    compact = orjson.dumps(request)
    assert ran.code == 0
    assert ran.out.startswith('{\n  "config": {')
    assert hashlib.sha256(compact).hexdigest() == seals(made_store, "tour")[1].data.request_digest


def test_wire_is_the_body_and_nothing_else(made_store: CliStore) -> None:
    for session in ("tour", "hostile"):
        for seal in seals(made_store, session):
            ran = made_store.run("request", session, str(seal.seq), "--wire")
            assert hashlib.sha256(ran.raw).hexdigest() == seal.data.wire_digest
            assert len(ran.raw) == seal.data.wire_bytes


def test_a_matching_seal_is_told_on_standard_error(made_store: CliStore) -> None:
    ran = made_store.run("request", "tour", "1.1", "--wire")
    assert ran.err.startswith("refold: step 1.1: matches its seal (request ")
    assert ran.err.count("\n") == 1


def broken_digest(name: str) -> Callable[[Event], bytes]:
    def change(event: Event) -> bytes:
        if event.type != "request/sealed":
            return event.encoded
        digest: bytes = getattr(event.data, name).encode()
        return event.encoded.replace(digest, digest[::-1])

    return change


@pytest.mark.parametrize(("name", "word"), [("request_digest", "request"), ("wire_digest", "body")])
@pytest.mark.parametrize("form", [[], ["--wire"], ["--curl"], ["--json"]])
def test_a_seal_that_does_not_match_is_a_failed_check(
    own_store: CliStore, name: str, word: str, form: list[str]
) -> None:
    own_store.rewrite("tour", "forged", broken_digest(name))
    ran = own_store.run("request", "forged", "1.1", *form)
    assert ran.code == 1
    assert f"does NOT match its seal: {word} " in ran.err
    assert ran.out


def test_a_step_without_a_seal_is_rebuilt_and_said_to_have_none(own_store: CliStore) -> None:
    own_store.rewrite(
        "tour", "unsealed", lambda event: event.encoded.replace(b"request/sealed", b"x/sealed")
    )
    ran = own_store.run("request", "unsealed", "1.2", "--wire")
    assert ran.code == 0
    assert ran.out == own_store.run("request", "tour", "1.2", "--wire").out
    assert "no seal to compare" in ran.err


def test_an_unknown_codec_is_said_and_its_bytes_are_not_guessed(own_store: CliStore) -> None:
    own_store.rewrite(
        "tour", "later", lambda event: event.encoded.replace(b'"chat/2"', b'"chat/9"')
    )
    ran = own_store.run("request", "later", "1.1")
    assert ran.code == 0
    assert "codec chat/9 is not known here" in ran.err
    assert (
        orjson.loads(own_store.run("request", "later", "1.1", "--json").out)["wireDigest"] is None
    )
    ran = own_store.run("request", "later", "1.1", "--wire")
    assert ran.code == 1
    assert "was sent with codec 'chat/9'" in ran.err
    assert ran.out == ""


def test_json_holds_the_request_and_the_check(made_store: CliStore) -> None:
    found = orjson.loads(made_store.run("request", "tour", "2.1", "--json").out)
    seal = seals(made_store, "tour")[2].data
    assert (found["session"], found["turn"], found["step"]) == ("tour", 2, 1)
    assert found["matchesSeal"] is True
    assert found["requestDigest"] == seal.request_digest
    assert found["wireDigest"] == seal.wire_digest
    assert found["codec"] == "chat/2"
    assert found["request"] == orjson.loads(made_store.run("request", "tour", "2.1").out)


def test_a_request_that_never_got_a_header_cannot_be_rebuilt(own_store: CliStore) -> None:
    own_store.rewrite(
        "tour", "bare", lambda event: event.encoded.replace(b"request/header", b"x/header")
    )
    ran = own_store.run("request", "bare", "1.1")
    assert ran.code == 1
    assert ran.err.startswith("refold: no request/header stands before")


def run_curl(
    command: bytes, tmp_path: Path, environment: dict[str, str]
) -> tuple[list[str], bytes]:
    """The arguments and the body that curl is given, by a stand-in for it."""
    program = (
        f"#!{sys.executable}\nimport sys, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / 'arguments').write_text('\\n'.join(sys.argv[1:]))\n"
        "(here / 'body').write_bytes(sys.stdin.buffer.read())\n"
    )
    stand_in = tmp_path / "curl"
    stand_in.write_text(program, "utf-8")
    stand_in.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh"], input=command, env={"PATH": path, **environment}, check=True)
    arguments = (tmp_path / "arguments").read_text("utf-8").split("\n")
    return arguments, (tmp_path / "body").read_bytes()


def test_curl_sends_the_same_body_with_the_key_of_the_environment(
    made_store: CliStore, tmp_path: Path
) -> None:
    request = rebuilt(made_store, "hostile", "1.3", "deepseek")
    command = curl_command(request)
    assert b"s3cret" not in command
    arguments, body = run_curl(command, tmp_path, {"DEEPSEEK_API_KEY": "s3cret"})
    # curl's --data leaves newlines out, and a body has none of its own
    assert body == request.encode().body + b"\n"
    assert "https://api.deepseek.com/chat/completions" in arguments
    assert "authorization: Bearer s3cret" in arguments
    assert "content-type: application/json" in arguments
    assert arguments[-2:] == ["--data", "@-"]


def test_curl_to_a_provider_without_a_key_names_none(made_store: CliStore) -> None:
    command = curl_command(rebuilt(made_store, "tour", "1.1", "local"))
    assert b"http://127.0.0.1:8080/v1/chat/completions" in command
    assert b"authorization" not in command


def test_curl_leaves_an_unknown_provider_to_variables(made_store: CliStore, tmp_path: Path) -> None:
    ran = made_store.run("request", "tour", "1.1", "--curl")
    assert "set BASE_URL and API_KEY" in ran.err
    variables = {"BASE_URL": "http://127.0.0.1:9", "API_KEY": "mine"}
    arguments, _ = run_curl(ran.raw, tmp_path, variables)
    assert "http://127.0.0.1:9/chat/completions" in arguments
    assert "authorization: Bearer mine" in arguments


def test_a_key_in_the_environment_is_never_printed(
    made_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "DEEPSEEK_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "s3cret")
    for form in ([], ["--wire"], ["--curl"], ["--json"]):
        ran = made_store.run("request", "tour", "1.1", *form)
        assert "s3cret" not in ran.out + ran.err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_hostile_text_is_shown_escaped(made_store: CliStore, form: list[str]) -> None:
    ran = made_store.run("request", "hostile", "1.3", *form)
    assert hidden(ran.out + ran.err) == []
    assert orjson.loads(ran.out)


@pytest.mark.parametrize("form", ["--wire", "--curl"])
def test_a_terminal_is_shown_escapes_in_place_of_the_exact_bytes(
    made_store: CliStore, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.cli.request.is_terminal", lambda _stream: True)
    ran = made_store.run("request", "hostile", "1.3", form)
    assert hidden(ran.out) == []
    assert "redirect for the exact bytes" in ran.err
    plain = made_store.run("request", "tour", "1.1", form)
    assert "redirect" not in plain.err


async def test_no_record_of_a_provider_means_no_address(tmp_path: Path) -> None:
    script = refold.Script([Say("hi")], name="$(reboot)'")
    async with refold.open(tmp_path, providers=[script]) as runtime:
        agent = await runtime.start_agent(session_id="odd", model="$(reboot)'/x")
        await agent.ask("hello")
    events = CliStore(tmp_path).events("odd")
    command = curl_command(rebuild_step(events, find_step(events, "1.1")))
    head, _, _ = command.partition(b"<<'END_OF_BODY'")
    assert b"reboot" not in head
