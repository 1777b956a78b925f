"""No power cut costs a SQLite store anything that it called durable.

The states are made from images of the files at each commit; see `images`. Every state is opened,
read and, one in ten, written to. How many of each kind were tried is printed;
A third of REFOLD_CRASH_SECONDS is spent on it, by default twenty seconds.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from refold.runtime.errors import RefoldError
from refold.runtime.storage import SqliteFile
from refold.runtime.storage.sqlite.database import Database
from refold.runtime.storage.sqlite.names import SqliteNames
from refold.runtime.storage.sqlite.row_log import SqliteLog
from refold.runtime.storage.sqlite.row_rounds import RowRounds
from tests.crash.images import Journal, Recorder, State, play, states
from tests.runtime.storage.databases import sql
from tests.runtime.storage.logs import event

pytestmark = pytest.mark.crash

SECONDS = float(os.environ.get("REFOLD_CRASH_SECONDS", "60")) / 3


@attrs.define
class Tally:
    """How many distinct states of each kind were tried, and what went wrong in which."""

    kinds: Counter[str] = attrs.field(factory=Counter)
    problems: list[tuple[str, str]] = attrs.field(factory=list)
    until_found: bool = False
    seen: set[bytes] = attrs.field(factory=set)

    @property
    def tried(self) -> int:
        return sum(self.kinds.values())

    @property
    def has_enough(self) -> bool:
        return self.until_found and bool(self.problems)

    def is_new(self, state: State) -> bool:
        digest = hashlib.blake2b(digest_size=16)
        digest.update(len(state.db).to_bytes(8, "big") + state.db + state.wal)
        digest.update(b"" if state.shm is None else b"shm")
        known = digest.digest() in self.seen
        self.seen.add(digest.digest())
        return not known


@contextmanager
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for the states; in memory where there is one, for nothing here needs a disk."""
    memory = Path("/dev/shm")
    folder = memory / f"refold-{os.getpid()}" if memory.is_dir() else tmp_path / "states"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def put(state: State, folder: Path) -> SqliteNames:
    """The files of a state, where a process of after the crash finds them."""
    layout = SqliteNames(folder / "s.db")
    layout.path.write_bytes(state.db)
    layout.wal.write_bytes(state.wal)
    shm = folder / "s.db-shm"
    shm.unlink(missing_ok=True)
    if state.shm is not None:
        shm.write_bytes(state.shm)
    shutil.rmtree(layout.beside_folder, ignore_errors=True)
    layout.beside_folder.mkdir()
    for name, content in state.moment.heads.items():
        (layout.beside_folder / name).write_bytes(content)
    return layout


def judge(state: State, folder: Path, *, thoroughly: bool) -> Iterator[str]:
    """What is wrong with a store that a power cut left so."""
    layout, journal = put(state, folder), state.moment.journal
    store = SqliteFile(layout.path)
    try:
        listed = set(store.list())
        for name in journal.written:
            safe = journal.acknowledged.get(name, 0)
            if name in listed:
                yield from judge_session(store, name, journal)
            elif safe and name not in journal.leaving:
                yield f"{name} is lost, of which {safe} events were safe"
        if thoroughly:
            yield from go_on(store, listed)
            store.close()
            if sql(layout.path, "PRAGMA integrity_check") != [("ok",)]:
                yield "SQLite finds the file damaged"
    except RefoldError as refused:
        yield f"refused: {refused!r}"
    finally:
        store.close()


def judge_session(store: SqliteFile, name: str, journal: Journal) -> Iterator[str]:
    safe, found = journal.acknowledged.get(name, 0), store.read(name)
    events = [record.encoded for record in found.records]
    if name in journal.gone:
        yield f"{name} is back, though its deletion was safe"
    if len(events) < safe:
        yield f"{name} has {len(events)} events, of which {safe} were safe"
    if events != journal.written[name][: len(events)] or len(events) not in journal.ends[name]:
        yield f"{name} holds other events than were written"
    if found.torn is not None:
        yield f"{name} has a torn tail"


def go_on(store: SqliteFile, listed: set[str]) -> Iterator[str]:
    for name in sorted(listed):
        log = store.open(name)
        if log.recovered is not None:
            yield f"{name} was repaired"
        count = log.next_seq
        log.append([event(count)])
        log.close()
        if len(store.read(name).records) != count + 1:
            yield f"{name} does not go on"


def explore(
    tmp_path: Path, seed: int, tally: Tally, *, many: int, until: float, rounds: int = 50
) -> None:
    """Record one scripted life and try states of each of its moments."""
    chance = random.Random(seed)
    (tmp_path / str(seed)).mkdir()
    recorder = Recorder(tmp_path / str(seed) / "s.db")
    with recorder.recording():
        play(recorder, chance, rounds)
    moments = recorder.moments
    chance.shuffle(moments)
    with place(tmp_path) as folder:
        for moment in moments:
            for state in states(moment, chance, many):
                if tally.is_new(state):
                    tally.kinds[state.kind] += 1
                    thoroughly = tally.tried % 10 == 0
                    problems = judge(state, folder, thoroughly=thoroughly)
                    tally.problems += [(state.kind, problem) for problem in problems]
            if time.monotonic() > until or tally.has_enough:
                break


def tell(tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{tally.tried} states of a SQLite store:")  # noqa: T201 - the test's other result
        for kind, tried in sorted(tally.kinds.items()):
            print(f"  {tried:7} {kind}")  # noqa: T201 - as above


KINDS = 2 * (2 + 1 + 6)


def test_no_power_cut_loses_what_was_durable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally, seed, until = Tally(), 0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        explore(tmp_path, seed, tally, many=3, until=until)
        seed += 1
    tell(tally, capsys)
    assert tally.problems == []
    assert len(tally.kinds) == KINDS
    assert tally.tried > 300


@pytest.mark.slow
def test_no_power_cut_loses_what_was_durable_in_many_thousand_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    for seed in range(1000, 1003):
        explore(tmp_path, seed, tally, many=20, until=float("inf"), rounds=60)
    tell(tally, capsys)
    assert tally.problems == []
    assert tally.tried >= 10_000


def found_by(tmp_path: Path) -> Tally:
    """The problems that a few lives show, until there are some."""
    tally = Tally(until_found=True)
    for seed in range(3):
        if not tally.problems:
            explore(tmp_path, seed, tally, many=2, until=time.monotonic() + 20)
    return tally


def never_full(_database: Database, db: Any, durable: bool) -> None:
    del durable
    db.execute("PRAGMA synchronous = NORMAL")


def _without_counting(
    rounds: RowRounds, works: Any, *, durable: bool, write: Any = RowRounds.commit
) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        transaction = rounds.database.transaction

        @contextmanager
        def uncounted(*, durable: bool) -> Iterator[Any]:
            with transaction(durable=durable) as db:
                yield Uncounting(db)

        patch.setattr(rounds.database, "transaction", uncounted)
        return write(rounds, works, durable=durable)


class Uncounting:
    """A connection that leaves the counter of syncs alone."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if "syncs" in statement:
            return self._inner.execute("SELECT 1")
        return self._inner.execute(statement, *values)


def _durable_at_once(log: SqliteLog, settle: Any = SqliteLog.settle) -> None:
    settle(log)
    log._state.durable = log._state.written


def _open_without_sync(
    store: SqliteFile, session_id: str, open_: Any = SqliteFile.open
) -> SqliteLog:
    with pytest.MonkeyPatch.context() as patch:
        transaction = store._database.transaction

        def lazy(*, durable: bool) -> Any:
            del durable
            return transaction(durable=False)

        patch.setattr(store._database, "transaction", lazy)
        log: SqliteLog = open_(store, session_id)
        return log


PLANTED = {
    "an opening syncs nothing": (SqliteFile, "open", _open_without_sync),
    "synchronous is never FULL": (Database, "_set_synchronous", never_full),
    "a sync commits nothing": (RowRounds, "commit", _without_counting),
    "what is committed counts as durable": (SqliteLog, "settle", _durable_at_once),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(*PLANTED[bug])
    tally = found_by(tmp_path)
    assert tally.problems
    with capsys.disabled():
        kind, problem = tally.problems[0]
        print(f"\n{bug}: {kind}: {problem}")  # noqa: T201 - which state found it
    assert "were safe" in problem or "was durable" in problem
