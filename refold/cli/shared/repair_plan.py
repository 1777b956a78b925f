"""What a repair does to one log, and what no repair can."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from refold.cli.shared.exit_codes import DAMAGE, DAMAGED, DIFFERENT, CannotDo
from refold.cli.shared.findings import Report, examine
from refold.cli.shared.logs import Place, check_store
from refold.render import plural
from refold.runtime.storage import ForeignLog, LogCorrupt
from refold.runtime.storage.quarantine import lost_note
from refold.runtime.storage.salvage import Salvage, count_lost, salvage, salvage_headless


@attrs.frozen
class Plan:
    """What is wrong with a log and what would be done.

    `salvage` takes the place of a damaged log; without it, an opening and a closing mend what
    they can. `stored` are the bytes that the plan is for.
    """

    place: Place
    report: Report
    salvage: Salvage | None
    stored: bytes = attrs.field(repr=False)

    @property
    def steps(self) -> list[str]:
        """What would be done, a line each; none if there is nothing to do."""
        return [*(self._mending() if self.salvage is None else self._salvaging(self.salvage))]

    def _mending(self) -> Iterator[str]:
        torn = self.report.torn
        if torn is not None and torn.dropped_bytes:
            count = plural(torn.dropped_bytes, "byte")
            yield f"put the {count} of its tail aside; the next opening reports them"
        if torn is not None and torn.missing_newline:
            yield "put the newline of its last line back"
        if self.report.head_damaged:
            yield "write its head file anew"

    def _salvaging(self, kept: Salvage) -> Iterator[str]:
        yield f"keep a copy of the {plural(len(self.stored), 'byte')} that are stored"
        if kept.new_header:
            yield (
                f"write a new header with the id {kept.header.id} and the time it began: its name, "
                "its folder, and what it may be a fork of are lost"
            )
        yield f"keep {plural(kept.events, 'event')}{_up_to(kept)}"
        if kept.lost_seed:
            left = kept.header.seed_length or 0
            yield (
                f"say in its header that it was forked with {plural(left, 'event')}: "
                f"{kept.lost_seed} of those it began with are lost"
            )
        if kept.dropped:
            count = plural(len(kept.dropped), "byte")
            yield f"put the {count} behind them aside; the next opening reports them"
        if self.lost:
            were = f"{plural(self.lost, 'event')} that were in the log when it was last closed"
            yield f"note that {were} are lost; the next opening reports it"
        if not kept.dropped and not self.lost:
            yield "forget what the head file vouches for, which is not in the log"

    @property
    def lost(self) -> int:
        """How many events the log was known to hold of which no byte is left."""
        if self.salvage is None:
            return 0
        known = 0 if self.report.head is None else self.report.head.seq + 1
        return count_lost(self.salvage, known)

    @property
    def limits(self) -> list[str]:
        """What is wrong with what the events say, a line each, which no repair changes."""
        found = [*map(str, self.report.broken)]
        if self.report.unusable is not None:
            found.append(str(self.report.unusable))
        if isinstance(self.report.error, DAMAGE) and self.salvage is None:
            found.append(str(self.report.error))
        return found


def _up_to(kept: Salvage) -> str:
    return f", up to seq {kept.events - 1}" if kept.events else ": the first is damaged already"


def plan_repair(place: Place) -> Plan:
    """What to do about a log; raises what keeps it from being repaired.

    That is `CannotDo`, `FileCorrupt`, `ForeignLog`, and what `MaintainedStore.read` raises but for
    `LogCorrupt`.
    """
    check_store(place.store)
    report = examine(place)
    stored = place.store.raw(place.session)
    if isinstance(report.error, LogCorrupt):
        return Plan(place, report, _salvage(place, stored, report.error), stored)
    if report.error is not None and not isinstance(report.error, DAMAGE):
        raise report.error
    if report.foreign and report.torn is not None:
        raise ForeignLog(place.session)
    return Plan(place, report, None, stored)


def _beyond_repair(damage: LogCorrupt, why: str) -> CannotDo:
    advice = (
        f"it cannot be repaired: {why}; restore the file from a copy, or remove it with "
        "`refold delete`"
    )
    return CannotDo(str(attrs.evolve(damage, advice=advice)), DAMAGED)


def _salvage(place: Place, stored: bytes, damage: LogCorrupt) -> Salvage:
    if damage.readable is not None:
        return salvage(stored, damage.readable)
    if b"\n" not in stored:
        raise _beyond_repair(damage, "nothing is left of it but the beginning of its header")
    if damage.expected_seq is not None:
        raise _beyond_repair(damage, "its lines have no checksums that tell what can be trusted")
    kept = salvage_headless(stored, place.session)
    if kept is None:
        raise _beyond_repair(damage, "no event behind its header fits its checksum")
    return kept


def repair(plan: Plan) -> str | None:
    """Do what was planned; returns where a copy of the stored bytes is, if one was needed.

    Raises `CannotDo` for a log that changed since, `SessionBusy`, and what keeps the log from being
    written.
    """
    store, session = plan.place.store, plan.place.session
    now = plan_repair(plan.place)
    if (now.stored, now.steps) != (plan.stored, plan.steps):
        raise CannotDo(
            f"session {session!r} changed while its repair was being decided and was left as it "
            "is; look at it again with `refold repair`",
            DIFFERENT,
        )
    copy, kept = None, plan.salvage
    if kept is not None:
        note = lost_note(plan.lost) if plan.lost else b""
        copy = store.replace(kept.header, kept.lines, (len(kept.data), kept.dropped, note))
    store.open(session).close()  # cuts what is torn, and writes the head file
    return copy
