"""What a session's file says of each of its requests: size, what was kept, tokens, verdict."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from refold.runtime.envelope import decode_line
from refold.runtime.events import AssistantMessage, RequestSealed, SessionOwner
from refold.runtime.storage import Record
from refold.runtime.stream.chunks import Usage
from refold.runtime.verify import verify_requests
from refold.runtime.wire.known_formats import FORMATS


@attrs.frozen
class RequestRow:
    """One request; sizes in bytes of the wire body. `life` counts the openings of the log."""

    turn: int
    step: int
    seq: int
    life: int
    wire_bytes: int
    kept_bytes: int
    closing_bytes: int
    problem: str
    usage: Usage | None = None

    @property
    def name(self) -> str:
        return f"{self.turn}.{self.step}"

    @property
    def total_tokens(self) -> int | None:
        """All that the model had read and written by the end; None where it did not say."""
        used = self.usage
        if used is None or used.input_tokens is None or used.output_tokens is None:
            return None
        return used.total_input + used.output_tokens

    def keeps_all_of(self, previous: RequestRow) -> bool:
        """Whether the whole previous body, up to its closing brackets, begins this one."""
        return self.kept_bytes == previous.wire_bytes - previous.closing_bytes

    def is_cached_after(self, previous: RequestRow) -> bool:
        """Whether the engine read nothing again: all of the previous tokens but the last."""
        total = previous.total_tokens
        cached = None if self.usage is None else self.usage.cache_read_tokens
        return total is not None and cached == total - 1


def account(records: Sequence[Record]) -> list[RequestRow]:
    """A row for each sealed request of a stored log, in order, each rebuilt and compared."""
    problems = {
        verdict.seq: _problem(verdict.problem, verdict.verified)
        for verdict in verify_requests(records)
    }
    rows: list[RequestRow] = []
    life = 0
    for event in (decode_line(record.encoded) for record in records):
        match event.data:
            case SessionOwner():
                life += 1
            case RequestSealed() as seal:
                rows.append(_row(seal, event.seq, life, problems[event.seq]))
            case AssistantMessage(usage=usage) if rows:
                rows[-1] = attrs.evolve(rows[-1], usage=usage)
    return rows


def _problem(found: str, verified: bool) -> str:
    return found or ("" if verified else "this version does not know its codec")


def _row(seal: RequestSealed, seq: int, life: int, problem: str) -> RequestRow:
    closing = FORMATS[seal.codec].closing if seal.codec in FORMATS else b""
    return RequestRow(
        seal.turn,
        seal.step,
        seq,
        life,
        wire_bytes=seal.wire_bytes,
        kept_bytes=seal.shared_prefix_bytes,
        closing_bytes=len(closing),
        problem=problem,
    )
