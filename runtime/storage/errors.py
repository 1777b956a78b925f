"""How a store says no, in the classes of `refold.runtime.errors`.

Refusals leave everything as it was. What is `Broken` says how far the log still stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from refold.runtime.errors import Broken, Refused
from refold.runtime.times import utc

if TYPE_CHECKING:
    from refold.runtime.storage.scan import Scan


@attrs.define(eq=False)
class NotFound(Refused):
    """A session that the store does not hold.

    `found_bytes` counts what stands of a half-written header.
    """

    session: str
    path: str
    found_bytes: int = 0

    def __str__(self) -> str:
        if self.found_bytes:
            return (
                f"{self.path} ends inside its header line after {self.found_bytes} bytes, so "
                f"session {self.session!r} never held an event; create it anew"
            )
        return f"there is no session {self.session!r} at {self.path}; list the store to see its own"


@attrs.define(eq=False)
class AlreadyExists(Refused):
    """A new session whose id is taken."""

    session: str

    def __str__(self) -> str:
        return f"session {self.session!r} exists already; open it, or choose another id"


@attrs.define(eq=False)
class SessionBusy(Refused):
    """Another writer holds the session; `since` is epoch ms, from its `session/owner`.

    All three facts are None while the holder has not written its `session/owner` yet. `here` says
    that it is this very process.
    """

    session: str
    pid: int | None = None
    host: str | None = None
    since: int | None = None
    here: bool = False

    def __str__(self) -> str:
        holder = "a process that has not named itself yet"
        if self.pid is not None:
            which = "this very process," if self.here else "process"
            since = "" if self.since is None else f" (since {utc(self.since)})"
            holder = f"{which} {self.pid} on {self.host}{since}"
        return (
            f"session {self.session!r} is open for writing in {holder}; "
            "close it there, or read it without opening it"
        )


@attrs.define(eq=False)
class StoreRefused(Refused):
    """A file or file system that cannot hold a log safely."""

    path: str
    found: str
    advice: str = "where a log is not safe; keep sessions as plain files on a local disk"

    def __str__(self) -> str:
        return f"{self.path} is {self.found}, {self.advice}"


@attrs.define(eq=False)
class NoStoreFile(StoreRefused):
    """A file that this version of refold keeps no sessions in."""

    def __str__(self) -> str:
        return (
            f"{self.path} is {self.found}, and no store that this refold can use; name another "
            "file, or use the version that made it"
        )


@attrs.define(eq=False)
class ForeignLog(Refused):
    """A log without checksums, which is never written to."""

    session: str

    def __str__(self) -> str:
        return (
            f"session {self.session!r} was not written by refold and can only be read; "
            "import it first, under an id of its own"
        )


@attrs.define(eq=False)
class EmptyBatch(Refused):
    """A batch without events, which no range of seqs stands for."""

    session: str

    def __str__(self) -> str:
        return f"a batch for session {self.session!r} holds no event; append one at least"


@attrs.define(eq=False)
class SeqMismatch(Refused):
    """A batch that does not continue the log."""

    expected: int
    got: int

    def __str__(self) -> str:
        return (
            f"the batch holds seq {self.got} where the log goes on with {self.expected}; "
            "read the log's end and number the batch from there"
        )


@attrs.define(eq=False)
class TooLarge(Refused):
    """Events that are larger together than a store can take; sizes in bytes."""

    session: str
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.size} bytes for session {self.session!r} are more than the {self.limit} that "
            "its store takes at once; keep large data in files and their names in the log"
        )


@attrs.define(eq=False)
class NoForkPoint(Refused):
    """A fork anywhere but at a `turn/end`; `nearest` is the last one before it."""

    session: str
    seq: int | None
    nearest: int | None

    def __str__(self) -> str:
        nearest = f"the nearest before is {self.nearest}"
        hint = "no turn has ended before that" if self.nearest is None else nearest
        at = "its end" if self.seq is None else f"seq {self.seq}"
        return f"session {self.session!r} can be forked at a turn/end and not at {at}; {hint}"


@attrs.define(eq=False)
class LogClosed(Refused):
    """A log that this program has closed."""

    session: str

    def __str__(self) -> str:
        return f"the log of session {self.session!r} is closed; open it again"


COPY_ADVICE = (
    "restore the file from a copy, or copy what can be read of its sessions to a new store, each "
    "with `refold export ID --readable --to sqlite:///NEW`"
)
"""What to do about a file that can be read in parts and not be written to any more."""


@attrs.define(eq=False)
class LogCorrupt(Broken):
    """Damage that cannot be the tail of a crash: the log is refused.

    `offset` counts bytes and `line` lines from 1; `expected_seq` is None in the header. `readable`
    holds the verified batches before the damage.
    """

    path: str
    offset: int
    line: int
    expected_seq: int | None
    found: str
    readable: Scan | None = attrs.field(default=None, repr=False)
    advice: str = "restore the file from a copy, or let `refold repair` keep what stands before"

    def __str__(self) -> str:
        what = "a header" if self.expected_seq is None else f"seq {self.expected_seq}"
        return (
            f"{self.path} is damaged at byte {self.offset}, line {self.line}: expected {what}, "
            f"found {self.found}; {self.advice}"
        )


@attrs.define(eq=False)
class StoreFull(Broken):
    """No room for a batch; nothing of it was kept, and the log stays usable. See `PASSING`."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"there is no room for {self.path} ({self.reason}); make room, then do it again"


def _safe(seq: int) -> str:
    return "no event had been synced" if seq < 0 else f"the events up to seq {seq} are safe"


def _stands(seq: int) -> str:
    return "none had been acknowledged" if seq < 0 else f"the events up to seq {seq} stand"


@attrs.define(eq=False)
class LogFailed(Broken):
    """A write or sync whose outcome cannot be known; `durable_seq` and all before it stand."""

    path: str
    reason: str
    durable_seq: int

    def __str__(self) -> str:
        return (
            f"{self.path} failed ({self.reason}) and takes no more events; "
            f"{_safe(self.durable_seq)}: close the session and open it again; `resume` goes on "
            "from what stands"
        )


@attrs.define(eq=False)
class Fenced(Broken):
    """A log that another process took over; `current_term` is its owner's fencing number.

    Nothing more can be added here; what was acknowledged, up to `durable_seq`, stands.
    """

    session: str
    current_term: int
    durable_seq: int

    def __str__(self) -> str:
        return (
            f"session {self.session!r} was taken over by another process (term "
            f"{self.current_term}); nothing more is added here, and {_stands(self.durable_seq)}: "
            "go on with it there, or close it there and open it again"
        )


@attrs.define(eq=False)
class Unavailable(Broken):
    """The operating system does not let the store be read or opened."""

    path: str
    reason: str
    advice: str = "check its permissions and its disk"

    def __str__(self) -> str:
        return f"{self.path} cannot be used ({self.reason}); {self.advice}"


@attrs.define(eq=False)
class FileCorrupt(Unavailable):
    """A file of many sessions whose own structure is damaged, as its library says.

    Nothing is written to it any more: that could take more of it.
    """

    advice: str = COPY_ADVICE

    def __str__(self) -> str:
        return f"{self.path} is damaged ({self.reason}); {self.advice}"


@attrs.define(eq=False)
class StoreBusy(Unavailable):
    """Another process has been within a write for so long that nothing was written here."""

    advice: str = "let it go on or end it, then do it again"


PASSING = (StoreFull, StoreBusy)
"""What may be over at the next call: the log is as it was before, and whole.

Nothing of the refused batch is kept. A failed *sync* is none of them: nobody knows what it left.
"""
