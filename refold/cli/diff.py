"""`refold diff`: where two requests part, and the event that caused it."""

from __future__ import annotations

from typing import Any

import attrs
import click

from refold.cli.shared.exit_codes import DIFFERENT
from refold.cli.shared.logs import ReadLog, read_log
from refold.cli.shared.options import json_option, store_option
from refold.render import percent, shortened, styled, to_json, visible_line
from refold.runtime.divergence import (
    Comparison,
    Divergence,
    StepRequest,
    compare_steps,
    rebuild_step,
)
from refold.runtime.envelope import Event, Replace
from refold.runtime.storage import MaintainedStore

BEFORE, AFTER = 24, 56
"""How many bytes of each body are shown around the first that differs."""


@attrs.frozen
class Side:
    """One of the two requests, with the log that it stands in."""

    log: ReadLog
    rebuilt: StepRequest


@click.command("diff")
@click.argument("session")
@click.argument("a")
@click.argument("b")
@json_option
@store_option
@click.pass_context
def command(
    ctx: click.Context, session: str, a: str, b: str, as_json: bool, store: MaintainedStore
) -> None:
    """Where two requests part, and the event that caused it.

    A and B are steps of SESSION; OTHER:STEP names a step of another session, such as a fork. All
    figures are those of the bodies that were sent: how much of A begins B (what a prefix cache can
    reuse), the first byte that differs, and the header fields that differ. Exit code 1 if the
    requests diverge, 0 if one continues the other.

    \b
    Examples:
      refold diff last 1.1 1.2
      refold diff last 1.2 2.1 --json
    """
    logs: dict[str, ReadLog] = {}
    one, other = (_side(store, session, name, logs) for name in (a, b))
    found = compare_steps(one.rebuilt, other.rebuilt)
    if as_json:
        click.echo(to_json(_as_json(one, other, found)))
    else:
        click.echo("\n".join(_lines(one, other, found)))
    for log in logs.values():
        log.complete()
    ctx.exit(DIFFERENT if found.divergence is not None else 0)


def _side(store: MaintainedStore, session: str, name: str, logs: dict[str, ReadLog]) -> Side:
    other, _, step = name.rpartition(":")
    named = other or session
    if named not in logs:
        logs[named] = read_log(store, named)
    log = logs[named]
    return Side(log, rebuild_step(log.events, log.find_step(step)))


def _lines(one: Side, other: Side, found: Comparison) -> list[str]:
    both = one.log.session != other.log.session
    lines = [_title("A", one, found.bodies[0], both), _title("B", other, found.bodies[1], both)]
    lines.append(f"kept prefix       {found.kept_bytes} bytes, {_share(found)}")
    lines.append(f"header drift      {'' if found.header_drift else 'none'}".rstrip())
    for drift in found.header_drift:
        old, new = shortened(drift.expected, 120), shortened(drift.got, 120)
        lines.append(f"  {visible_line(drift.path)}  {old} -> {new}")
    if found.divergence is None:
        return [*lines, styled(_SENTENCES[found.relation], "green")]
    return [*lines, *_divergence_lines(other, found.bodies, found.divergence)]


def _share(found: Comparison) -> str:
    """How much of A was kept; what closes A's brackets was never counted."""
    closing = found.closing_bytes
    without = f" without its {closing} closing bytes" if closing else ""
    return f"{percent(found.kept_share)} of A{without}"


_SENTENCES = {
    "same": "A and B are the same bytes: nothing diverges",
    "continues": "B continues A: nothing diverges",
    "precedes": "A continues B: nothing diverges",
}


def _title(letter: str, side: Side, body: bytes, named: bool) -> str:
    where = f"{side.log.session} " if named else ""
    step = side.rebuilt.step
    sealed = "" if step.seal else ", never sealed"
    return f"{letter}  {where}step {step.name} (seq {step.boundary}), {len(body)} bytes{sealed}"


def _divergence_lines(
    other: Side, bodies: tuple[bytes, bytes], divergence: Divergence
) -> list[str]:
    place = f"byte {divergence.offset}, {visible_line(divergence.path)}"
    return [
        styled(f"first divergence  {place}", "yellow"),
        *(
            f"  {name}  {_excerpt(body, divergence.offset)}"
            for name, body in zip("AB", bodies, strict=True)
        ),
        f"caused by         {_cause_text(divergence, other.log.session)}",
    ]


def _excerpt(body: bytes, offset: int) -> str:
    start, end = max(0, offset - BEFORE), offset + AFTER
    text = visible_line(body[start:end].decode("utf-8", "ignore"))
    return f"{'...' if start else ''}{text}{'...' if end < len(body) else ''}"


def _cause_text(divergence: Divergence, session: str) -> str:
    text = describe_cause(divergence.cause, session)
    if divergence.codecs is None:
        return text
    old, new = map(visible_line, divergence.codecs)
    return f"codec: {old} -> {new}, with {text}"


def describe_cause(cause: Event, session: str) -> str:
    """The event in words: its seq and type, and what a replacement replaced."""
    text = f"seq {cause.seq} {cause.type} of {session}"
    op = cause.surface_op
    if isinstance(op, Replace):
        return visible_line(f"{text}, which replaced seqs {op.start} to {op.end}")
    if cause.type == "request/header":
        return visible_line(f"{text} ({cause.data.reason})")
    return visible_line(text)


def _as_json(one: Side, other: Side, found: Comparison) -> dict[str, Any]:
    return {
        "a": _side_json(one, found.bodies[0]),
        "b": _side_json(other, found.bodies[1]),
        "relation": found.relation,
        "keptBytes": found.kept_bytes,
        "keptShare": found.kept_share,
        "divergence": _divergence_json(found.divergence),
        "headerDrift": [
            {"path": drift.path, "old": drift.expected, "new": drift.got}
            for drift in found.header_drift
        ],
    }


def _side_json(side: Side, body: bytes) -> dict[str, Any]:
    step = side.rebuilt.step
    return {
        "session": side.log.session,
        "turn": step.turn,
        "step": step.step,
        "boundary": step.boundary,
        "bytes": len(body),
        "sealed": step.seal is not None,
    }


def _divergence_json(divergence: Divergence | None) -> dict[str, Any] | None:
    if divergence is None:
        return None
    cause = divergence.cause
    described: dict[str, Any] = {"seq": cause.seq, "type": cause.type}
    if divergence.codecs is not None:
        described |= {"kind": "codec", "codecs": list(divergence.codecs)}
    return {"offset": divergence.offset, "path": divergence.path, "cause": described}
