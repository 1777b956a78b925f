"""What must hold of every state that a crash leaves, once it is opened for writing again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from refold.faults import FOLDER, CrashState, Image, Journal, RecordingDisk, check_promises
from refold.runtime.closing import INTERRUPTED, closers, is_real
from refold.runtime.envelope import Draft, Event, decode_line, draft
from refold.runtime.errors import RefoldError
from refold.runtime.events import SessionOwner, SessionRecovered
from refold.runtime.rules import broken_rules
from refold.runtime.standing import standing_of
from refold.runtime.storage import JsonlFolder, JsonlLog, NotFound, scan

BOOKKEEPING = frozenset({"session/owner", "session/recovered", "session/released"})


@attrs.frozen
class Opened:
    """One session after an opening: its bytes then, its report, and what the opening wrote."""

    content: bytes = attrs.field(repr=False)
    recovered: SessionRecovered | None
    batch: tuple[Event, ...] = ()


class Checker:
    """Opens the crash states of one recording and tells what is wrong with them."""

    def __init__(self, disk: RecordingDisk) -> None:
        files = {path: get(disk, path) for path in logs_on(disk)}
        self.sessions = [path.stem for path in files]
        self._written = {path.stem: data for path, data in files.items()}
        self._ends = {path.stem: batch_ends(data) for path, data in files.items()}
        self._promises: dict[object, str | None] = {}
        self._promises_after: dict[object, str | None] = {}
        self._closers: dict[bytes, tuple[list[Draft], int]] = {}
        self._first: dict[str, Opened] = {}

    def problem(self, state: CrashState) -> str | None:
        """What is wrong once the state was opened for writing; None if nothing is."""
        disk = state.disk()
        try:
            opened = self._open_all(disk, write=False)
        except RefoldError as error:
            return f"a good file is refused: {error}"
        for session in self.sessions:
            after = opened.get(session)
            found = (
                self._unwritten(session, after)
                or self._broken_promise(state, disk, session, after)
                or unreported(state.image, session, after)
            )
            if found is not None:
                return found
        return None

    def _unwritten(self, session: str, opened: Opened | None) -> str | None:
        if opened is None:
            return None
        if not self._written[session].startswith(opened.content):
            return f"{session} holds what was never written"
        if len(opened.content) not in self._ends[session]:
            return f"{session} holds a part of a batch"
        return None

    def recover(self, disk: RecordingDisk) -> None:
        """Open every session and append what an opening does: owner, report, closers."""
        self._promises_after.clear()
        self._first = self._open_all(disk, write=True)

    def recover_again(self, disk: RecordingDisk) -> None:
        """As `recover`, after another one that was killed on this disk before it wrote a batch."""
        self._open_all(disk, write=True)

    def recovery_problem(self, state: CrashState) -> str | None:
        """What is wrong after a crash during the last `recover`; None if nothing is."""
        disk = state.disk()
        try:
            opened = self._open_all(disk, write=True)
        except RefoldError as error:
            return f"a good file is refused: {error}"
        if set(opened) - set(self._first):
            return "a session came from nowhere"
        for session, first in self._first.items():
            found = _second_opening(first, opened.get(session))
            found = found or self._broken_promise(state, disk, session, opened.get(session))
            if found is not None:
                return f"{session}: {found}"
        return None

    def _open_all(self, disk: RecordingDisk, *, write: bool) -> dict[str, Opened]:
        folder, opened = JsonlFolder(FOLDER, disk), dict[str, Opened]()
        for session in self.sessions:
            try:
                log = folder.open(session)
            except NotFound:
                continue
            content = get(disk, log_of(session))
            batch = self._take_over(log, content) if write else ()
            for event in batch:
                disk.acknowledge(session, event.seq, event.encoded)
            opened[session] = Opened(content, log.recovered, batch)
            log.close()
        return opened

    def _take_over(self, log: JsonlLog, content: bytes) -> tuple[Event, ...]:
        ends, time = self._closers_of(log, content)
        reports = [] if log.recovered is None else [draft(log.recovered)]
        made = [draft(SessionOwner(2)), *reports, *ends]
        batch = tuple(one.at(seq, time) for seq, one in enumerate(made, log.next_seq))
        log.append([event.encoded for event in batch])
        log.sync()
        return batch

    def _closers_of(self, log: JsonlLog, content: bytes) -> tuple[list[Draft], int]:
        if content not in self._closers:
            records = scan(content, log.header.id, path="opened").records
            events = [decode_line(record.encoded) for record in records]
            made = closers(standing_of(events, log.header.seed_length or 0), INTERRUPTED)
            time = next((event.time for event in reversed(events) if is_real(event)), 0)
            ends = [one.at(seq, time) for seq, one in enumerate(made, log.next_seq)]
            assert broken_rules([*events, *ends]) == []
            self._closers[content] = made, time
        return self._closers[content]

    def _broken_promise(
        self, state: CrashState, disk: RecordingDisk, session: str, opened: Opened | None
    ) -> str | None:
        # What is there depends on the bytes, what was acknowledged on the marks: few of each.
        known = self._promises_after if opened is not None and opened.batch else self._promises
        key = (session, opened and opened.content, opened and opened.batch, len(state.marks))
        if key not in known:
            known[key] = self._ask(state, disk, session)
        return known[key]

    def _ask(self, state: CrashState, disk: RecordingDisk, session: str) -> str | None:
        said = Journal.of(state.marks).said.get(session)
        journal = Journal({} if said is None else {session: said})
        return "; ".join(map(str, check_promises(JsonlFolder(FOLDER, disk), journal))) or None


def _second_opening(first: Opened, second: Opened | None) -> str | None:
    """How an opening after a crash differs from the one that the crash interrupted."""
    if second is None:
        return "the session is gone"
    if second.content == first.content:
        if lasting(second.batch) != lasting(first.batch):
            return "the closers are other events"
        if dropped(second) < dropped(first):
            return f"{dropped(first)} bytes were cut, and {dropped(second)} are reported"
        return None
    if not second.content.startswith(first.content):
        return "the first opening's log is no beginning of the second's"
    if lasting(second.batch):
        return "closers were written twice"
    return None


def lasting(events: Iterable[Event]) -> list[tuple[str, int, object]]:
    """What closers are, their place in the log aside."""
    kept = [event for event in events if event.type not in BOOKKEEPING]
    return [(event.type, event.time, event.data) for event in kept]


def dropped(opened: Opened) -> int:
    return 0 if opened.recovered is None else opened.recovered.dropped_bytes


def unreported(image: Image, session: str, opened: Opened | None) -> str | None:
    """Bytes that an opening cut and did not report."""
    before = image.files().get(log_of(session))
    if opened is None or before is None:
        return None
    kept = len(opened.content) - (not before.startswith(opened.content))  # a newline put back
    if len(before) - kept > dropped(opened):
        return f"{session} lost {len(before) - kept} bytes and reports {dropped(opened)}"
    return None


def batch_ends(data: bytes) -> set[int]:
    """Where the header's line and the batches of a whole log end."""
    ends, end = set[int](), 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        if b'"left":' not in line[: line.find(b'"type"')]:
            ends.add(end)
    return ends


def logs_on(disk: RecordingDisk) -> Sequence[Path]:
    names = sorted(disk.listdir(FOLDER))
    return [FOLDER / name for name in names if name.endswith(".jsonl")]


def log_of(session: str) -> Path:
    return FOLDER / f"{session}.jsonl"


def get(disk: RecordingDisk, path: Path) -> bytes:
    fd = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(fd, disk.fstat(fd).size, 0)
    finally:
        disk.close(fd)
