"""Every way in which refold says no.

One root, `RefoldError`. A refusal is its own class with the facts as attributes; its text is one
sentence that names them and says what to do. A refusal never changes state.
"""

from __future__ import annotations

import attrs


class RefoldError(Exception):
    """The root of every error that refold raises on purpose."""

    def __init_subclass__(cls) -> None:
        """Each says `refold.errors` as its module: there users find it, and tracebacks name it."""
        super().__init_subclass__()
        if cls.__module__.startswith(("refold.runtime.", "refold.actors.", "refold.config")):
            cls.__module__ = "refold.errors"


class Refused(RefoldError):
    """The caller asked for something that a rule forbids; nothing changed."""


class Broken(RefoldError):
    """The world failed (disk, network, another process); what was acknowledged still stands."""


@attrs.define(eq=False)
class NotLosslessJson(Refused):
    """A value that would not come back from JSON as it went in.

    `path` is a JSON path such as `$.content[0].text`; `found` names the offending value.
    """

    path: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.path} is {self.found}, which JSON cannot carry without loss; "
            "convert it to text, a 64-bit number, a list or a dict with text keys first"
        )


@attrs.define(eq=False)
class InvalidArgument(Refused, TypeError):
    """An argument that a call cannot take; it is looked at before anything is done."""

    argument: str
    problem: str

    def __str__(self) -> str:
        return f"{self.argument} {self.problem}"


@attrs.define(eq=False)
class InvalidEvent(Refused):
    """An event whose envelope or data does not have the shape of its type."""

    type: str
    problem: str
    seq: int | None = None

    def __str__(self) -> str:
        at = "" if self.seq is None else f" at seq {self.seq}"
        return f"event {self.type!r}{at} {self.problem}; see docs/events.md for its shape"


@attrs.define(eq=False)
class LegacyEvent(Refused):
    """Header vocabulary that the log format gave up before version 0 was fixed."""

    type: str
    found: str
    seq: int | None = None

    def __str__(self) -> str:
        at = "" if self.seq is None else f" at seq {self.seq}"
        return (
            f"{self.found}{at} is a request header encoding that refold never reads; "
            "only full `request/header` snapshots with reason initial, resume or change are valid"
        )


@attrs.define(eq=False)
class SurfaceRefused(Refused):
    """An event that would put the surface into a state that the log cannot explain."""

    seq: int
    problem: str

    def __str__(self) -> str:
        return f"event at seq {self.seq} {self.problem}"


@attrs.define(eq=False)
class SeqGap(Refused):
    """A stored event whose seq is not the next one."""

    expected: int
    got: int

    def __str__(self) -> str:
        return f"expected seq {self.expected} and got {self.got}; a log counts from 0 without gaps"


@attrs.define(eq=False)
class RuleBroken(Refused):
    """An event that a relational rule does not allow here; see `refold.runtime.rules`."""

    rule: int
    seq: int
    problem: str

    def __str__(self) -> str:
        return f"event at seq {self.seq} breaks rule {self.rule}: {self.problem}"


@attrs.define(eq=False)
class ReentrantAppend(Refused):
    """An append from inside an observer of the same session."""

    session: str

    def __str__(self) -> str:
        return (
            f"session {self.session} is publishing an event to its observers; an observer must "
            "not append: queue what it wants to add, or append from a task of its own"
        )


@attrs.define(eq=False)
class UnsupportedVersion(Refused):
    """A log of another format version."""

    found: object
    supported: int = 0

    @property
    def is_newer(self) -> bool:
        """Whether it is one that a later refold writes."""
        return type(self.found) is int and self.found > self.supported

    def __str__(self) -> str:
        if self.is_newer:
            return (
                f"the log has format version {self.found} and was written by a newer refold; "
                f"this one reads version {self.supported}: upgrade refold"
            )
        return (
            f"the log has format version {self.found!r}; this refold reads version "
            f"{self.supported} and there is no upgrade path from yours"
        )


@attrs.define(eq=False)
class InvalidSessionId(Refused):
    """An id that could be a path or a control sequence."""

    found: str

    def __str__(self) -> str:
        return (
            f"{self.found!r} is not a session id; ids are 1 to 64 of the characters "
            "A-Z a-z 0-9 _ @ . : and -, and begin with neither . nor -"
        )


@attrs.define(eq=False)
class IdMismatch(Refused):
    """A log whose header names another session than the one that was opened."""

    expected: str
    got: str

    def __str__(self) -> str:
        return (
            f"the header says that this is session {self.got!r}, but {self.expected!r} was opened; "
            "rename the file back, or import it under an id of its own"
        )


@attrs.define(eq=False)
class InvalidHeader(Refused):
    """A first line that is not a session header."""

    problem: str

    def __str__(self) -> str:
        return f"the first line is not a session header: {self.problem}"


@attrs.define(eq=False)
class NoSuchStep(Refused):
    """A boundary or step that the log does not have."""

    wanted: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; the log has {self.nearest}" if self.nearest else "; the log has no step yet"
        return f"there is no step {self.wanted} in this log{hint}"


@attrs.define(eq=False)
class NoSuchPosition(Refused):
    """A seq to read a log from that it does not reach; `next_seq` is that of its next event."""

    wanted: object
    next_seq: int

    def __str__(self) -> str:
        told = type(self.wanted) in (int, float, str, bool)  # what else it is may raise when shown
        wanted = repr(self.wanted) if told else type(self.wanted).__name__
        return (
            f"this log cannot be read from {wanted} on: its next event will be seq "
            f"{self.next_seq}, so give a whole number from 0 to {self.next_seq}; where you had "
            "read further, the log lost its end since, and is to be read anew"
        )


def check_position(wanted: object, next_seq: int) -> None:
    """Raise `NoSuchPosition` unless a log that goes on with `next_seq` can be read from there."""
    if type(wanted) is not int or not 0 <= wanted <= next_seq:
        raise NoSuchPosition(wanted, next_seq)


@attrs.define(eq=False)
class NoRequestHeader(Refused):
    """A request cannot be rebuilt because no header stands before it."""

    boundary: int
    messages: tuple[object, ...] = attrs.field(default=(), repr=False)

    def __str__(self) -> str:
        return (
            f"no request/header stands before the request of the step at seq {self.boundary}, "
            "so the request was never sent and cannot be rebuilt"
        )


@attrs.define(eq=False)
class HistoryUnbalanced(Refused):
    """A history in which calls and results do not belong together; no provider takes one.

    `seqs` are those of messages that hold a call without its result, `orphans` of results that
    answer no call of the message before them, `doubled` of messages that use a call id twice.
    `fork_at` is the last `turn/end` without any of these, None where there is none.
    """

    seqs: tuple[int, ...]
    fork_at: int | None = None
    orphans: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()

    def __str__(self) -> str:
        found = {
            "the assistant messages at seq {} hold tool calls that were never answered": self.seqs,
            "the tool results at seq {} answer no open call of the message before": self.orphans,
            "the assistant messages at seq {} use a call id twice": self.doubled,
        }
        told = [text.format(_listed(seqs)) for text, seqs in found.items() if seqs]
        return f"{', '.join(told)}; such a history is never sent: {_fork_advice(self.fork_at)}"


@attrs.define(eq=False)
class HistoryUnreadable(Refused):
    """A log whose events do not say where it stands; another version or program wrote them.

    `places` gives seq, type and lacking field of each. `fork_at` is the last `turn/end` before
    them, None where there is none.
    """

    places: tuple[tuple[int, str, str], ...]
    fork_at: int | None = None

    def __str__(self) -> str:
        seq, type_, field = self.places[0]
        others = tuple(place[0] for place in self.places[1:])
        more = f" (as do the events at seq {_listed(others)})" if others else ""
        return (
            f"the {type_} at seq {seq} lacks a readable {field!r}{more}, so that nobody knows "
            "where the session stands: upgrade refold if a newer one wrote it, or "
            f"{_fork_advice(self.fork_at)}"
        )


def _listed(seqs: tuple[int, ...]) -> str:
    return ", ".join(map(str, seqs))


def _fork_advice(fork_at: int | None) -> str:
    if fork_at is None:
        return "start a new session, since no turn ended before them"
    return f"fork the session at seq {fork_at}, the last turn/end without any"
