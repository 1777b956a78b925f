"""The invariants actor: may this request leave? (design 3.3)

It trusts nothing live. It reads the stored bytes through a descriptor of its own, keeps its own
account of them, and clears a request whose digests it reached by itself. It is never restarted: a
mismatch or a crash stops the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import attrs
import orjson
import trio

from actors.kernel import Ask, Mailbox
from actors.session_log import StepBoundary
from runtime.audit import FOLLOWED, RequestAudit, Unexplained
from runtime.difference import Difference, compare_requests, first_difference
from runtime.envelope import Event, decode_line
from runtime.errors import Broken, RefoldError
from runtime.events import RequestSealed
from runtime.llm.body import Encoded, RequestEncoder
from runtime.llm.wires import WIRES
from runtime.request import Request, rebuild_request
from runtime.storage.framing import Record
from runtime.storage.reader import LogReader

Mode: TypeAlias = Literal["full", "enforce"]


@attrs.frozen
class Clearance:
    """The permission to send one body, by its digest, for one boundary."""

    boundary: int
    wire_digest: str


class Checker:
    """Stands for the invariants actor in the types of what it is sent."""


@attrs.frozen
class Clear(Ask[Checker, Clearance]):
    """The question: the open step, what is offered for it, and how far the disk is known to be."""

    boundary: StepBoundary
    request: Request = attrs.field(repr=False)
    encoded: Encoded
    seal_seq: int
    durable_seq: int


@attrs.define(eq=False)
class InvariantViolation(Broken):
    """A request that the stored log does not explain; nothing was sent.

    `difference` is the first path where the offered request leaves the rebuilt one.
    """

    session: str
    boundary: int
    problem: str
    difference: Difference | None
    report: str | None = None

    def __str__(self) -> str:
        where = "" if self.difference is None else f"; first difference at {self.difference}"
        report = "" if self.report is None else f"; both are in {self.report}"
        return (
            f"the request of the step at seq {self.boundary} of session {self.session} was not "
            f"sent: {self.problem}{where}{report}; the log is good, report this as a bug"
        )


async def invariants(
    mailbox: Mailbox[Clear],
    session_id: str,
    open_reader: Callable[[], LogReader],
    keep_report: Callable[[str, bytes], str | None],
    mode: Mode,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Answer `Clear` with a `Clearance` or fail it with `InvariantViolation`.

    `open_reader` opens the stored log anew. A request that costs nothing new costs the same
    however long the session is; `full` rebuilds each from the whole file as well.
    """
    checker = _Checker(session_id, open_reader, keep_report, mode)
    task_status.started()
    try:
        async for mail in mailbox:
            try:
                mail.answer(await checker.clear(mail.message))
            except InvariantViolation as violation:
                mail.fail(violation)
    finally:
        checker.close()


SLICE = 1 << 20
"""How many bytes of a log are read at once; in between, other tasks have their turn."""


class _Checker:
    def __init__(
        self,
        session_id: str,
        open_reader: Callable[[], LogReader],
        keep_report: Callable[[str, bytes], str | None],
        mode: Mode,
    ) -> None:
        self._session_id, self._open_reader = session_id, open_reader
        self._keep_report, self._mode = keep_report, mode
        self._reader: LogReader | None = None
        self._places: dict[int, Record] = {}
        self._audit = RequestAudit(self._reread)
        self._cleared: Clearance | None = None

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    async def clear(self, offer: Clear) -> Clearance:
        """Check one request; raises `InvariantViolation`."""
        try:
            await self._follow()
            problem = self._problem(offer)
        except (Unexplained, RefoldError) as error:
            problem = str(error)
        if problem is not None:
            raise self._violation(offer, problem)
        self._cleared = Clearance(offer.boundary.seq, offer.encoded.wire_digest)
        return self._cleared

    async def _follow(self) -> None:
        if self._reader is None:
            self._reader = self._open_reader()
        while records := self._reader.read_batches(SLICE):
            for record in records.since_step(FOLLOWED):
                event = decode_line(record.encoded)
                if event.surface_op is not None:
                    self._places[event.seq] = attrs.evolve(record, encoded=b"")
                self._audit.feed(event)
            if self._reader.has_more:
                await trio.lowlevel.checkpoint()

    def _reread(self, seq: int) -> Event:
        assert self._reader is not None
        return decode_line(self._reader.reread(self._places[seq]).encoded)

    def _problem(self, offer: Clear) -> str | None:
        step, encoded = self._audit.step, offer.encoded
        if step is None or step.boundary != offer.boundary.seq:
            return "its boundary is not the open step of the stored log"
        if [seq for seq, _ in step.seals] != [offer.seal_seq]:
            return "the stored step does not hold exactly its one seal"
        seal = step.seals[0][1]
        if offer.durable_seq < offer.seal_seq:
            return f"its seal at seq {offer.seal_seq} is not durable yet"
        if self._cleared_other_bytes(step.boundary, encoded.wire_digest):
            return "other bytes were cleared for this boundary before"
        return self._digest_problem(offer, seal)

    def _cleared_other_bytes(self, boundary: int, wire_digest: str) -> bool:
        cleared = self._cleared
        same = cleared is not None and cleared.boundary == boundary
        return same and cleared != Clearance(boundary, wire_digest)

    def _digest_problem(self, offer: Clear, seal: RequestSealed) -> str | None:
        encoded = offer.encoded
        if (seal.request_digest, seal.wire_digest) != (encoded.request_digest, encoded.wire_digest):
            return "the offered body is not the one that the stored seal names"
        expected = self._audit.expected(seal.codec)
        if expected.request != encoded.request_digest:
            return "its content is not what the stored log says"
        if expected.wire != encoded.wire_digest:
            return "its wire bytes are not the encoding of its content"
        return self._full_problem(offer) if self._mode == "full" else None

    def _full_problem(self, offer: Clear) -> str | None:
        rebuilt = rebuild_request(self._all_events(), offer.boundary.seq)
        if rebuilt.digest() != offer.encoded.request_digest:
            return "a fresh session over the stored log makes another request"
        return None

    def _all_events(self) -> Iterator[Event]:
        reader = self._open_reader()
        try:
            yield from (decode_line(record.encoded) for record in reader.read_new())
        finally:
            reader.close()

    def _violation(self, offer: Clear, problem: str) -> InvariantViolation:
        boundary = offer.boundary.seq
        try:
            rebuilt = rebuild_request(self._all_events(), boundary)
        except RefoldError as error:
            none = Difference("", f"a request ({error})", "one that was built from memory")
            return self._report(offer, problem, none, b"")
        body = _encode(rebuilt, self._wire_name()).body
        difference = compare_requests(rebuilt, offer.request) or _compare_bodies(
            body, offer.encoded.body
        )
        return self._report(offer, problem, difference, body)

    def _wire_name(self) -> str:
        step = self._audit.step
        return step.seals[0][1].codec if step is not None and step.seals else "chat/1"

    def _report(
        self, offer: Clear, problem: str, difference: Difference | None, expected: bytes
    ) -> InvariantViolation:
        content = {
            "problem": problem,
            "firstDifference": None if difference is None else attrs.asdict(difference),
            "expected": expected.decode("utf-8", "replace"),
            "offered": offer.encoded.body.decode("utf-8", "replace"),
        }
        boundary = offer.boundary.seq
        path = self._keep_report(
            f"violation-{boundary}.json", orjson.dumps(content, option=orjson.OPT_INDENT_2)
        )
        return InvariantViolation(self._session_id, boundary, problem, difference, path)


def _encode(request: Request, wire_name: str) -> Encoded:
    derived = request.messages[len(request.header.message_prefix) :]
    return RequestEncoder(WIRES[wire_name]).encode(request.header, derived, 0)


def _compare_bodies(expected: bytes, offered: bytes) -> Difference | None:
    try:
        return first_difference(orjson.loads(expected), orjson.loads(offered))
    except orjson.JSONDecodeError as error:
        return Difference("", "a JSON body", f"bytes that are no JSON ({error})")
