"""What is wrong with a session: the findings of `refold check` and of `refold repair`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from refold.cli.shared.exit_codes import DAMAGE, DIFFERENT, FINE, exit_code
from refold.cli.shared.logs import Place
from refold.cli.shared.progress import watched
from refold.cli.shared.session_rows import Holder, find_holder
from refold.render import plural
from refold.runtime.closing import interrupted_turn_closers
from refold.runtime.envelope import Event, decode_line
from refold.runtime.errors import HistoryUnbalanced, HistoryUnreadable, RefoldError, RuleBroken
from refold.runtime.events import SessionRecovered
from refold.runtime.rules import broken_rules
from refold.runtime.rules.soundness import last_sound_end, refusal_of
from refold.runtime.storage import LogCorrupt, MaintainedStore, Scan, Torn
from refold.runtime.storage.beside import Sidecars
from refold.runtime.storage.durable_mark import DurableMark


@attrs.frozen
class Report:
    """What a check found of one session.

    `head` is what the head file vouches for, `head_damaged` whether there is one that cannot be
    trusted. `quarantine` gives, for each file of dropped bytes, the seq of the event that reports
    it; `unusable` tells why no session can go on with it; `fork_at` is the last `turn/end`
    before whatever is wrong with the history; `closers` counts the events that close an open turn;
    `holder` is who has the session open.
    With an `error` all but it speaks of what is readable before.
    """

    session: str
    events: int = 0
    foreign: bool = False
    torn: Torn | None = None
    head: DurableMark | None = None
    head_damaged: bool = False
    quarantine: tuple[tuple[str, int | None], ...] = ()
    broken: tuple[RuleBroken, ...] = ()
    unusable: HistoryUnbalanced | HistoryUnreadable | None = None
    fork_at: int | None = None
    closers: int = 0
    holder: Holder | None = None
    error: RefoldError | None = None

    @property
    def findings(self) -> list[str]:
        """What is wrong, a line each."""
        unusable = [] if self.unusable is None else [str(self.unusable)]
        return [*self._of_the_file(), *map(str, self.broken), *unusable]

    def _of_the_file(self) -> Iterator[str]:
        if self.error is not None:
            yield str(self.error)
        if self.torn is not None:
            yield _torn(self.torn)
        # Of a damaged log no opening comes next.
        opens = self.error is None
        if self.head_damaged:
            next_ = "; the next closing renews it" if opens else ""
            yield f"its head file is damaged and vouches for nothing{next_}"
        for name, seq in self.quarantine:
            if seq is None:
                next_ = "; the next opening does" if opens else ""
                yield f"{name} holds dropped bytes that no event reports{next_}"

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and is not wrong, a line each."""
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        for name, seq in self.quarantine:
            if seq is not None:
                yield f"{name} holds the dropped bytes that seq {seq} reports"
        if self.closers and self.error is None and self.unusable is None:
            yield f"a turn is open; {self._what_becomes_of_it()}"
        if self.foreign:
            yield "not written by refold: its lines have no checksums"
        elif self.events and self.error is None and not self.head_damaged:
            yield from self._coverage()

    def _what_becomes_of_it(self) -> str:
        if self.holder is not None:
            return f"it is running in {self.holder}"
        return f"the next opening closes it ({plural(self.closers, 'event')})"

    def _coverage(self) -> Iterator[str]:
        last = self.events - 1
        if self.head is None:
            yield "no head file: damage to the last batch would look like a torn tail"
        elif self.head.seq < last:
            yield f"its head file vouches for the events up to seq {self.head.seq} of {last}"

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return exit_code(self.error)
        return DIFFERENT if self.findings else FINE


def examine(place: Place) -> Report:
    """Everything that a check finds of one session; what stops it is kept in the report."""
    report = Report(place.session)
    try:
        report = _with_beside(report, place.store.beside(place.session))
        found = place.store.read(place.session)
    except LogCorrupt as damage:
        if damage.readable is not None:
            report = _read(report, place.store, damage.readable)
        return attrs.evolve(report, error=damage, torn=None)
    except RefoldError as refused:
        return attrs.evolve(report, error=refused)
    return _read(report, place.store, found)


def _with_beside(report: Report, beside: Sidecars) -> Report:
    quarantine = tuple((name, None) for name in beside.quarantine)
    return attrs.evolve(
        report, head=beside.mark, head_damaged=beside.mark_damaged, quarantine=quarantine
    )


def _read(report: Report, store: MaintainedStore, found: Scan) -> Report:
    report = attrs.evolve(
        report,
        events=len(found.records),
        foreign=found.foreign,
        torn=found.torn,
        holder=find_holder(store, found),
    )
    events: list[Event] = []
    try:
        events.extend(decode_line(record.encoded) for record in found.records)
        report = attrs.evolve(report, quarantine=tuple(_reported(report.quarantine, events)))
        return _judged(report, events, found.header.seed_length or 0)
    except DAMAGE as damage:
        return attrs.evolve(report, error=damage, fork_at=last_sound_end(events))


def _judged(report: Report, events: Sequence[Event], seed_length: int) -> Report:
    read = watched(events, lambda event: f"checking {report.session}, seq {event.seq}")
    unusable = refusal_of(events)
    return attrs.evolve(
        report,
        broken=tuple(broken_rules(read, seed_length)),
        closers=len(interrupted_turn_closers(events, seed_length)),
        unusable=unusable,
        fork_at=None if unusable is None else unusable.fork_at,
    )


def _reported(
    quarantine: Iterable[tuple[str, int | None]], events: Sequence[Event]
) -> Iterator[tuple[str, int | None]]:
    named = {
        name: event.seq
        for event in events
        if event.type == "session/recovered" and isinstance(event.data, SessionRecovered)
        for name in (event.data.quarantine or "").split(",")
    }
    return ((name, named.get(name)) for name, _ in quarantine)


def _torn(torn: Torn) -> str:
    if torn.missing_newline:
        return "its last line lost its newline; the next opening puts it back"
    return (
        f"its tail is torn at byte {torn.offset} ({torn.reason}): "
        f"{plural(torn.dropped_bytes, 'byte')} are no part of the log; the next opening cuts them"
    )
