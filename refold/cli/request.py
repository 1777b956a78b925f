"""`refold request`: the exact request of a step, rebuilt from the log."""

from __future__ import annotations

import shlex
import sys

import attrs
import click

from refold.cli.shared.exit_codes import DIFFERENT, say
from refold.cli.shared.logs import ReadLog, read_log
from refold.cli.shared.options import json_option, store_option
from refold.render import is_terminal, to_json, to_pretty_json, visible_json
from refold.runtime.divergence import StepRequest, rebuild_step
from refold.runtime.json_diff import request_as_json
from refold.runtime.storage import MaintainedStore
from refold.runtime.wire.known_formats import FORMATS
from refold.runtime.wire.providers import Provider, UnknownProvider, find_provider


@click.command("request")
@click.argument("session")
@click.argument("step")
@click.option(
    "--wire", "form", flag_value="wire", help="Print the body that was sent, byte by byte."
)
@click.option("--curl", "form", flag_value="curl", help="Print a curl command that sends it again.")
@json_option
@store_option
def command(
    session: str, step: str, form: str | None, as_json: bool, store: MaintainedStore
) -> None:
    """The exact request of a step, rebuilt from the log.

    By default its canonical form, indented. Whether its digests match the seal in the log is said
    on standard error; exit code 1 if they do not. No key is ever printed.

    \b
    Examples:
      refold request last 1.1
      refold request last 1.1 --wire | sha256sum
      refold request last 1.1 --curl
    """
    log = read_log(store, session)
    rebuilt = rebuild_step(log.events, log.find_step(step))
    check = check_seal(rebuilt)
    if as_json:
        click.echo(to_json(_as_json(log, rebuilt, check)))
    elif form is None:
        click.echo(to_pretty_json(rebuilt.request.canonical_bytes()))
    else:
        _write_exact(rebuilt.encode().body if form == "wire" else curl_command(rebuilt))
    say(f"step {rebuilt.step.name}: {check.text}")
    log.complete()
    if check.matches is False:
        raise SystemExit(DIFFERENT)


@attrs.frozen
class SealCheck:
    """Whether a rebuilt request is the sealed one; None where that cannot be said."""

    matches: bool | None
    text: str


def check_seal(rebuilt: StepRequest) -> SealCheck:
    """Compare the digests of a rebuilt request with those of its seal."""
    seal = rebuilt.step.seal
    if seal is None:
        return SealCheck(None, "the log has no seal to compare this request with")
    request_digest = rebuilt.request.digest()
    if request_digest != seal.request_digest:
        text = f"does NOT match its seal: request {request_digest}, sealed {seal.request_digest}"
        return SealCheck(False, text)
    if seal.codec not in FORMATS:
        text = f"request {request_digest} matches its seal; codec {seal.codec} is not known here"
        return SealCheck(None, text)
    encoded = rebuilt.encode()
    if encoded.wire_digest != seal.wire_digest:
        text = f"does NOT match its seal: body {encoded.wire_digest}, sealed {seal.wire_digest}"
        return SealCheck(False, text)
    digests = f"request {request_digest[:12]}, body {encoded.wire_digest[:12]}"
    return SealCheck(True, f"matches its seal ({digests}, {len(encoded.body)} bytes)")


def _as_json(log: ReadLog, rebuilt: StepRequest, check: SealCheck) -> dict[str, object]:
    return {
        "session": log.session,
        "turn": rebuilt.step.turn,
        "step": rebuilt.step.step,
        "boundary": rebuilt.step.boundary,
        "codec": rebuilt.codec,
        "requestDigest": rebuilt.request.digest(),
        "wireDigest": rebuilt.encode().wire_digest if rebuilt.codec in FORMATS else None,
        "matchesSeal": check.matches,
        "request": request_as_json(rebuilt.request),
    }


def _write_exact(data: bytes) -> None:
    """The bytes and nothing else; a terminal is shown what it would obey or hide as escapes."""
    if is_terminal(sys.stdout):
        shown = visible_json(data)
        click.echo(shown)
        if shown.encode() != data:
            say("some characters are shown as JSON escapes here; redirect for the exact bytes")
        return
    click.echo(data, nl=False)


def curl_command(rebuilt: StepRequest) -> bytes:
    """A command that sends the same body; the key stays in the variable that holds it.

    The body stands in a here-document, which has no limit of length; it is one line, and curl
    drops the newline behind it.
    """
    provider = _provider(rebuilt.request.header.config.provider)
    format_ = rebuilt.format
    headers = format_.headers(None)
    lines = [
        f'curl -sS --no-buffer "{_base_url(provider)}{format_.path}"',
        *(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()),
    ]
    key = "API_KEY" if provider is None else provider.key_env
    if key is not None:  # in double quotes, so that the shell puts in what the variable holds
        with_key = format_.headers(f"${key}").items()
        lines += [f'-H "{name}: {value}"' for name, value in with_key if name not in headers]
    head = " \\\n  ".join([*lines, "--data @- <<'END_OF_BODY'"])
    return head.encode() + b"\n" + rebuilt.encode().body + b"\nEND_OF_BODY\n"


def _provider(name: str) -> Provider | None:
    """A log holds a provider's name and not its address, which may have been another one."""
    try:
        found = find_provider(name)
    except UnknownProvider:
        say(f"the log does not say where {name!r} lives: set BASE_URL and API_KEY")
        return None
    say(f"{found.base_url} is the built-in address of {name!r}: change it if yours is another")
    return found


def _base_url(provider: Provider | None) -> str:
    return "$BASE_URL" if provider is None else provider.base_url.rstrip("/")
