"""The invariants actor: may this request leave?

It trusts nothing live. It reads the stored bytes through a descriptor of its own, keeps its own
account of them, asks the store how far the disk is known to be, and clears a request whose digests
it reached by itself. It is never restarted: a mismatch or a crash stops the session.

Why an actor, and not an assertion in dispatch: an assertion would compare the live folds with
themselves. A stale cache, a message that was changed in memory, an event that was folded and never
written show only beside the stored bytes, read through another descriptor and folded by somebody
else. The pure functions (projection, encoding) are the same on both sides and are held by
reference data; no state is. A fold that the two shared would be faster, and worth nothing.

What each question is there for:

- the open step of the stored bytes has this boundary and exactly this one seal: the request is
  that step's, and there is no second one;
- no other bytes were cleared for the boundary: what goes out under a seal does not change;
- the seal is durable: after a power cut the log still knows of the request;
- the seal's digests are those of the offered body: what was written down is what would leave;
- the account's own digests are the same: the log makes this very content, and this content these
  very bytes.

`full` asks once more, of a fresh history over the whole file, and so also finds a fault of the
account and its running hashes (docs/design/actors.md, "The invariants actor").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import orjson
import trio

from refold.actors.kernel import Ask, Mailbox
from refold.actors.log.session_log import StepBoundary
from refold.actors.request.model import Clearance
from refold.runtime.audit import FOLLOWED, RequestAudit, Unexplained
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import Broken, RefoldError
from refold.runtime.events import RequestSealed
from refold.runtime.json_diff import Difference, compare_requests, first_difference
from refold.runtime.request import Request, rebuild_request
from refold.runtime.rules import broken_rules
from refold.runtime.rules.soundness import refusal_of
from refold.runtime.storage.framing import Record
from refold.runtime.storage.reader import LogReader
from refold.runtime.wire.known_formats import FORMATS, UNSEALED
from refold.runtime.wire.request_encoder import Encoded, encode_request


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


@attrs.frozen
class Report(Ask[Checker, Clearance]):
    """Fail with the violation that `problem` is, which somebody else found in what was offered."""

    offer: Clear
    problem: str


@attrs.define(eq=False)
class InvariantViolation(Broken):
    """A request that the stored log does not explain; nothing of an answer to it is kept.

    `difference` is the first path where the offered request leaves the rebuilt one. `report` is
    the file that holds both, or `unreported` says why there is none. `flaw` is what `refold check`
    would say of the log, which is good otherwise. `beside` tells of a request that was checked
    while it was sent (`audit`); any other was not sent.
    """

    session: str
    boundary: int
    problem: str
    difference: Difference | None = None
    report: str | None = None
    unreported: str | None = None
    flaw: str | None = None
    beside: bool = False

    def __str__(self) -> str:
        became = "may have been sent, and no answer to it is kept"
        became = became if self.beside else "was not sent"
        where = "" if self.difference is None else f"; first difference at {self.difference}"
        report = "" if self.report is None else f"; both are in {self.report}"
        if self.unreported is not None:
            report = f"; no report could be kept: {self.unreported}"
        advice = "the log is good, report this as a bug"
        if self.flaw is not None:
            advice = f"the log itself is at fault: {self.flaw}; see refold check {self.session}"
        return (
            f"the request of the step at seq {self.boundary} of session {self.session} {became}: "
            f"{self.problem}{where}{report}; {advice}"
        )


@attrs.frozen
class Evidence:
    """Where the actor has its knowledge from: the store, and nothing of the live session.

    `open_reader` opens the stored log anew, `durable_seq` asks how far the store knows it to be
    durable, `keep_report` is the store's `report` of this session.
    """

    session_id: str
    open_reader: Callable[[], LogReader]
    durable_seq: Callable[[], int]
    keep_report: Callable[[str, bytes], str | None]


async def invariants(
    mailbox: Mailbox[Clear | Report],
    evidence: Evidence,
    full: bool,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Answer `Clear` with a `Clearance` or fail it with `InvariantViolation`.

    A request that costs nothing new costs the same however long the session is; with `full` each
    is made anew from the whole file as well, so that a fault in what is kept from request to
    request, on either side, is seen too.
    """
    checker = _Checker(evidence, full)
    task_status.started()
    try:
        async for mail in mailbox:
            try:
                match mail.message:
                    case Clear() as offer:
                        mail.answer(await checker.clear(offer))
                    case Report(offer, problem):
                        mail.fail(checker.violation(offer, problem))
            except InvariantViolation as violation:
                mail.fail(violation)
    finally:
        checker.close()


SLICE = 1 << 20
"""How many bytes of a log are read at once; in between, other tasks have their turn."""


class _Checker:
    def __init__(self, evidence: Evidence, full: bool) -> None:
        self._evidence, self._full = evidence, full
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
            raise self.violation(offer, problem)
        self._cleared = self._clearance_for(offer)
        return self._cleared

    def _clearance_for(self, offer: Clear) -> Clearance:
        return Clearance(offer.boundary.seq, self._audit.provider, offer.encoded.wire_digest)

    async def _follow(self) -> None:
        if self._reader is None:
            self._reader = self._evidence.open_reader()
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
        step = self._audit.step
        if step is None or step.boundary != offer.boundary.seq:
            return "its boundary is not the open step of the stored log"
        if [seq for seq, _ in step.seals] != [offer.seal_seq]:
            return "the stored step does not hold exactly its one seal"
        seal = step.seals[0][1]
        # What the live side was told and what the store says are two accounts; both must cover it.
        if min(offer.durable_seq, self._evidence.durable_seq()) < offer.seal_seq:
            return f"its seal at seq {offer.seal_seq} is not durable yet"
        cleared = self._cleared
        again = cleared is not None and cleared.boundary == step.boundary
        if again and cleared != self._clearance_for(offer):
            return "other bytes were cleared for this boundary before"
        encoded = offer.encoded
        if (seal.request_digest, seal.wire_digest) != (encoded.request_digest, encoded.wire_digest):
            return "the offered body is not the one that the stored seal names"
        if seal.codec not in FORMATS:
            return f"its seal names the codec {seal.codec!r}, which nobody here can write"
        expected = self._audit.expected(seal.codec)
        if expected.request != encoded.request_digest:
            return "its content is not what the stored log says"
        if expected.wire != encoded.wire_digest:
            return "its wire bytes are not the encoding of its content"
        return self._fresh_problem(offer, seal) if self._full else None

    def _fresh_problem(self, offer: Clear, seal: RequestSealed) -> str | None:
        """What a session and an encoder that kept nothing say of it."""
        rebuilt = rebuild_request(self._all_events(), offer.boundary.seq)
        fresh = encode_request(rebuilt, FORMATS[seal.codec])
        if fresh.request_digest != offer.encoded.request_digest:
            return "a fresh session over the stored log makes another request"
        if fresh.body != offer.encoded.body:
            return "a fresh encoder over the stored log writes another body"
        return None

    def _all_events(self) -> Iterator[Event]:
        reader = self._evidence.open_reader()
        try:
            yield from (decode_line(record.encoded) for record in reader.read_new())
        finally:
            reader.close()

    def violation(self, offer: Clear, problem: str) -> InvariantViolation:
        """The violation with its report; a fault in making that one hides nothing."""
        boundary = offer.boundary.seq
        found = InvariantViolation(self._evidence.session_id, boundary, problem)
        try:
            found.flaw = self._flaw()
            found.difference, expected = self._compare(offer)
            content = {
                "problem": problem,
                "firstDifference": found.difference and attrs.asdict(found.difference),
                "expected": expected.decode(),
                "offered": offer.encoded.body.decode("utf-8", "replace"),
            }
            pretty = orjson.dumps(content, option=orjson.OPT_INDENT_2)
            name = f"violation-{boundary}.json"
            found.report = self._evidence.keep_report(name, pretty)
        except Exception as error:  # noqa: BLE001 - the violation is what has to be told
            found.unreported = f"{type(error).__name__}: {error}"
        return found

    def _flaw(self) -> str | None:
        """The first thing that is wrong with the stored log itself."""
        reader = self._evidence.open_reader()
        try:
            seed_length = reader.header.seed_length or 0
        finally:
            reader.close()
        try:
            for broken in broken_rules(self._all_events(), seed_length):
                return str(broken)
            refused = refusal_of(list(self._all_events()))
        except RefoldError as error:
            return str(error)
        return None if refused is None else str(refused)

    def _compare(self, offer: Clear) -> tuple[Difference | None, bytes]:
        """Where the offered request leaves the rebuilt one, and the rebuilt one's body."""
        try:
            rebuilt = rebuild_request(self._all_events(), offer.boundary.seq)
        except RefoldError as error:
            return Difference("", f"a request ({error})", "one that was built from memory"), b""
        step = self._audit.step
        codec = step.seals[0][1].codec if step is not None and step.seals else ""
        body = encode_request(rebuilt, FORMATS.get(codec, UNSEALED)).body
        return compare_requests(rebuilt, offer.request) or _compare_bodies(
            body, offer.encoded.body
        ), body


def _compare_bodies(expected: bytes, offered: bytes) -> Difference | None:
    try:
        return first_difference(orjson.loads(expected), orjson.loads(offered))
    except orjson.JSONDecodeError as error:
        return Difference("", "a JSON body", f"bytes that are no JSON ({error})")
