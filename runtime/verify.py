"""Checking every request of a stored log against its seal, from the bytes alone.

The account is the one that guards live requests, so a verdict needs nothing but the stored lines
and the version of the wire format that each seal names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from refold.runtime.audit import RequestAudit, Unexplained
from refold.runtime.envelope import Event, decode_line
from refold.runtime.events import RequestSealed
from refold.runtime.storage.framing import Record
from refold.runtime.wire.known_formats import FORMATS


@attrs.frozen
class Verdict:
    """What became of one step's request; `problem` is empty unless its digests do not match.

    `sealed` requests are `verified`, `unverifiable` (a codec that this version does not know, which
    is no mismatch) or have a `problem`. The others are `unsealed`: a model answered, and no seal
    says what it was asked.
    """

    turn: int
    step: int
    seq: int
    sealed: bool
    verified: bool = False
    problem: str = ""

    @property
    def unverifiable(self) -> bool:
        return self.sealed and not self.verified and not self.problem


def verify_requests(records: Sequence[Record]) -> Iterator[Verdict]:
    """A verdict for each step of a log that asked a model, in order.

    Every request is rebuilt from the stored events and encoded anew; the cost grows with the log
    and not with its square.
    """
    audit = RequestAudit(lambda seq: decode_line(records[seq].encoded))
    for record in records:
        event = decode_line(record.encoded)
        audit.feed(event)
        verdict = _judge(audit, event)
        if verdict is not None:
            yield verdict


def _judge(audit: RequestAudit, event: Event) -> Verdict | None:
    step = audit.step
    if event.type == "request/sealed" and isinstance(event.data, RequestSealed):
        return _compare(audit, event.data, event.seq)
    if event.type == "assistant/message" and step is not None and not step.seals:
        return Verdict(step.turn, step.step, event.seq, sealed=False)
    return None


def _compare(audit: RequestAudit, seal: RequestSealed, seq: int) -> Verdict:
    verdict = Verdict(seal.turn, seal.step, seq, sealed=True)
    if seal.codec not in FORMATS:
        return verdict
    try:
        expected = audit.expected(seal.codec)
    except Unexplained as unexplained:
        return attrs.evolve(verdict, problem=str(unexplained))
    if expected.request != seal.request_digest:
        problem = f"the log makes request {expected.request}, the seal says {seal.request_digest}"
        return attrs.evolve(verdict, problem=problem)
    if expected.wire != seal.wire_digest:
        problem = f"the request makes body {expected.wire}, the seal says {seal.wire_digest}"
        return attrs.evolve(verdict, problem=problem)
    return attrs.evolve(verdict, verified=True)
