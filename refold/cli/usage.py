"""`refold usage`: tokens, cache hits and kept prefixes, a row a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from refold.cli.shared.logs import read_log
from refold.cli.shared.options import json_option, store_option
from refold.render import bar, duration, number, percent, plural, table, to_json, visible_line
from refold.runtime import typed_json
from refold.runtime.storage import MaintainedStore
from refold.runtime.usage import Break, StepUsage, explain, usage_by_step

TITLES = ("step", "in", "cached", "out", "kept", "cached/in", "breaks")
_LEFT = frozenset({0, 5, 6})


@click.command("usage")
@click.argument("session")
@json_option
@store_option
def command(session: str, as_json: bool, store: MaintainedStore) -> None:
    """Tokens, cache hits and kept prefixes, a row a step.

    `in` counts every token that the model read, `cached` those of them that came from the
    provider's cache. `kept` is how much of the previous request's body begins this one: 100.0 %
    where it only grew. `breaks` names what happened between the two: a new loop instance, a header
    change with its fields, a replacement, another codec. Of several the one is told first that
    `refold diff` names as the cause. A cache that missed though the prefix was kept is told with
    the time since the request before. What nobody reported is `-`, never 0.

    \b
    Examples:
      refold usage last
      refold usage last --json
    """
    log = read_log(store, session)
    rows = explain(log.events, usage_by_step(log.events))
    if as_json:
        steps = [_as_json(row) for row in rows]
        click.echo(to_json({"session": log.session, "steps": steps, "total": _totals(rows)}))
    else:
        click.echo(table(TITLES, [*map(_cells, rows), _total_cells(rows)], left=_LEFT))
    log.complete()


def _cells(row: StepUsage) -> tuple[str, ...]:
    return (
        f"{row.turn}.{row.step}",
        number(row.tokens_in),
        number(row.tokens_cached),
        number(row.tokens_out),
        percent(row.kept),
        bar(row.cached_share),
        "; ".join(_notes(row)),
    )


def _notes(row: StepUsage) -> list[str]:
    is_named = row.cause is None or any(found.seq == row.cause for found in row.breaks)
    notes = [] if is_named else [f"what changed stands at seq {row.cause}"]
    for found in sorted(row.breaks, key=lambda found: row.cause not in (None, found.seq)):
        besides = "" if row.cause in (None, found.seq) else "besides: "
        notes.append(besides + describe_break(found))
    if row.missed:
        after = "" if row.gap_ms is None else f", {duration(row.gap_ms)} after the request before"
        notes.append(f"the provider's cache missed, though the whole prefix was kept{after}")
    if row.retries:
        notes.append(f"{plural(row.retries, 'failed attempt')} not counted")
    if row.kept is not None and row.kept < 1 and not row.breaks and row.cause is None:
        notes.append("the log does not explain the break")
    return notes


def describe_break(found: Break) -> str:
    """What may have ended the common prefix, and at which seq."""
    if found.replaced is not None:
        replaced = f"{found.replaced.start} to {found.replaced.end}"
        return f"replacement of seqs {replaced} (seq {found.seq})"
    if found.kind == "header":
        fields = ", ".join(field.path for field in found.fields)
        return f"header change: {fields} (seq {found.seq})"
    if found.codecs is not None:
        old, new = map(visible_line, found.codecs)
        return f"codec: {old} -> {new} (seq {found.seq})"
    return f"new loop instance (seq {found.seq})"


def _total_cells(rows: Sequence[StepUsage]) -> tuple[str, ...]:
    totals = _totals(rows)
    tokens_in, cached = totals["in"], totals["cached"]
    silent = sum(row.usage is None for row in rows)
    share = cached / tokens_in if tokens_in and cached is not None else None
    note = f"without {plural(silent, 'step')} that reported nothing" if silent else ""
    counts = (number(tokens_in), number(cached), number(totals["out"]))
    return ("total", *counts, "", bar(share), note)


def _totals(rows: Sequence[StepUsage]) -> dict[str, int | None]:
    return {
        "in": _sum([row.tokens_in for row in rows]),
        "cached": _sum([row.tokens_cached for row in rows]),
        "out": _sum([row.tokens_out for row in rows]),
    }


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _as_json(row: StepUsage) -> dict[str, Any]:
    return {
        "turn": row.turn,
        "step": row.step,
        "boundary": row.seq,
        "in": row.tokens_in,
        "cached": row.tokens_cached,
        "out": row.tokens_out,
        "usage": None if row.usage is None else typed_json.unstructure(row.usage),
        "wireBytes": row.wire_bytes,
        "kept": row.kept,
        "retries": row.retries,
        "gapMs": row.gap_ms,
        "cause": row.cause,
        "missed": row.missed,
        "breaks": [_break_json(found) for found in row.breaks],
    }


def _break_json(found: Break) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": found.kind, "seq": found.seq}
    if found.fields:
        described["fields"] = [
            {"path": field.path, "old": field.expected, "new": field.got} for field in found.fields
        ]
    if found.replaced is not None:
        described["replaced"] = [found.replaced.start, found.replaced.end]
    if found.codecs is not None:
        described["codecs"] = list(found.codecs)
    return described
