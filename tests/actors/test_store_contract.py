"""The stores of one machine hold the contract, and its checks find stores that do not."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.actors.stores import EmbeddedStore, Grant, Store, open_store
from refold.runtime.storage import MemoryFolder, MemoryPort, Record
from refold.runtime.storage.sqlite.row_log import SqliteLog
from refold.testing.store_contract import CHECKS, ContractBroken, Stores, check_history

KINDS = ("memory", "files", "sqlite")


def of_memory() -> Stores:
    folder = MemoryFolder()
    port = folder._port
    assert isinstance(port, MemoryPort)

    def lose(session_id: str, seq: int) -> None:
        file = port._files[Path(folder.address) / f"{session_id}.jsonl"]
        file.data[:] = without(bytes(file.data), seq)

    return Stores(lambda: EmbeddedStore(folder, None, threaded=False), lose=lose)


def of_files(folder: Path) -> Stores:
    def seize(session_id: str) -> None:
        (folder / ".lock").unlink()

    def lose(session_id: str, seq: int) -> None:
        path = folder / f"{session_id}.jsonl"
        path.write_bytes(without(path.read_bytes(), seq))

    return Stores(lambda: open_store(folder), seize, lose)


def of_sqlite(path: Path) -> Stores:
    def seize(session_id: str) -> None:
        path.with_name(path.name + ".lock").unlink()

    def lose(session_id: str, seq: int) -> None:
        number = "SELECT number FROM sessions WHERE id = ?"
        with sqlite3.connect(path) as db:
            db.execute(
                f"DELETE FROM lines WHERE seq = ? AND session = ({number})", (seq, session_id)
            )
        db.close()

    return Stores(lambda: open_store(f"sqlite:///{path}"), seize, lose)


def without(data: bytes, seq: int) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: seq + 1] + lines[seq + 2 :])


def stores_of(kind: str, folder: Path) -> Stores:
    match kind:
        case "memory":
            return of_memory()
        case "files":
            return of_files(folder)
        case _:
            return of_sqlite(folder / "sessions.db")


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_holds_the_contract(kind: str, name: str, tmp_path: Path) -> None:
    with trio.fail_after(60):
        await CHECKS[name](stores_of(kind, tmp_path))


NUMBERS = itertools.count()


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chance=st.randoms(use_true_random=False))
def test_any_history_is_that_of_the_model(kind: str, tmp_path: Path, chance: random.Random) -> None:
    place = tmp_path / str(next(NUMBERS))
    place.mkdir()
    trio.run(check_history, stores_of(kind, place), chance)


class Wrapped:
    """A grant that does something else than it should."""

    def __init__(self, inner: Grant) -> None:
        self._inner = inner
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Splitting(Wrapped):
    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        if not batch:
            self._inner.append(expected_seq, batch)
        for place, event in enumerate(batch):
            self._inner.append(expected_seq + place, [event])


class Renumbering(Wrapped):
    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        del expected_seq
        seq = self._count or len([*self._inner.events(())])
        again = [_renumbered(event, seq + place) for place, event in enumerate(batch)]
        self._inner.append(seq, again)
        self._count = seq + len(batch)


def _renumbered(event: bytes, seq: int) -> bytes:
    before, _, rest = event.partition(b'"seq":')
    return b'%b"seq":%d%b' % (before, seq, rest[rest.index(b",") :])


class Dropping(Wrapped):
    """Says yes to every batch and keeps only every second."""

    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        self._count += 1
        if self._count % 2:
            seq = self._sent = getattr(self, "_sent", len([*self._inner.events(())]))
            self._inner.append(seq, [_renumbered(e, seq + n) for n, e in enumerate(batch)])
            self._sent += len(batch)


class Repeating(Wrapped):
    """Writes a batch again where its sync was cut short."""

    async def sync(self) -> int:
        try:
            await trio.lowlevel.checkpoint()
            return await self._inner.sync()
        except trio.Cancelled:
            raise RuntimeError("the outcome is not known") from None


class TakingEmpty(Wrapped):
    def append(self, expected_seq: int, batch: Sequence[bytes]) -> None:
        if batch:
            self._inner.append(expected_seq, batch)


class SameTerm(Wrapped):
    term = 1


class Keeping(Wrapped):
    """Never gives the log back."""

    async def release(self) -> None:
        await self._inner.sync()


class Optimist(Wrapped):
    """Tells of more than is written."""

    async def sync(self) -> int:
        return await self._inner.sync() + 1


class Foreign:
    """A store around another; the class of its grants is given."""

    def __init__(self, inner: Store, grants: Callable[[Grant], Any] = lambda grant: grant) -> None:
        self._inner, self._grants = inner, grants

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(self, header: Any) -> Grant:
        made: Grant = self._grants(await self._inner.create(header))
        return made

    async def acquire(self, session_id: str) -> Grant:
        made: Grant = self._grants(await self._inner.acquire(session_id))
        return made


class Forgetful(Foreign):
    """Lists nothing but the first."""

    async def list(self) -> list[str]:
        return (await self._inner.list())[:1]


class Blind(Foreign):
    """Its readers pass over a batch."""

    def reader(self, session_id: str) -> Any:
        reader = self._inner.reader(session_id)
        read = reader.read_new

        def skip(max_bytes: int | None = None) -> list[Record]:
            return [record for record in read(max_bytes) if record.seq != 3]

        reader.read_new = skip  # type: ignore[method-assign]  # on purpose
        return reader


class Overeager(Foreign):
    """Forks the whole log, whatever was asked for."""

    async def fork(self, source: str, at: int | None, header: Any) -> None:
        del at
        await self._inner.fork(source, None, header)


class Leaking(Foreign):
    """A cancelled acquire leaves the session locked."""

    async def acquire(self, session_id: str) -> Grant:
        grant = await self._inner.acquire(session_id)
        await trio.lowlevel.checkpoint()
        return grant


class Ruthless(Foreign):
    """Deletes what is in use."""

    async def delete(self, session_id: str) -> None:
        del session_id


BROKEN: dict[str, Callable[[Store], Any]] = {
    "splits batches": lambda store: Foreign(store, Splitting),
    "renumbers": lambda store: Foreign(store, Renumbering),
    "drops batches": lambda store: Foreign(store, Dropping),
    "syncs with a doubt": lambda store: Foreign(store, Repeating),
    "takes empty batches": lambda store: Foreign(store, TakingEmpty),
    "has one term": lambda store: Foreign(store, SameTerm),
    "keeps its locks": lambda store: Foreign(store, Keeping),
    "promises too much": lambda store: Foreign(store, Optimist),
    "lists too little": Forgetful,
    "skips when reading": Blind,
    "forks too much": Overeager,
    "loses grants": Leaking,
    "deletes without asking": Ruthless,
}

FINDS = {
    "splits batches": "batches_are_whole_and_contiguous",
    "renumbers": "a_batch_for_another_place_is_refused",
    "drops batches": "batches_are_whole_and_contiguous",
    "syncs with a doubt": "a_cancelled_sync_leaves_no_doubt",
    "takes empty batches": "an_empty_batch_is_refused",
    "has one term": "taking_a_grant_again_counts_terms",
    "keeps its locks": "taking_a_grant_again_counts_terms",
    "promises too much": "batches_are_whole_and_contiguous",
    "lists too little": "sessions_are_listed_while_they_come_and_go",
    "skips when reading": "a_reader_started_anywhere_misses_nothing",
    "forks too much": "a_fork_is_its_parent_up_to_a_turn_s_end",
    "loses grants": "a_cancelled_acquire_holds_nothing",
    "deletes without asking": "a_held_session_is_not_deleted",
}


async def passes(stores: Stores, name: str) -> bool:
    """Whether a store passes a check; a broken one may fail in any way."""
    try:
        with trio.fail_after(30):
            await CHECKS[name](stores)
    except (Exception, BaseExceptionGroup):  # noqa: BLE001 - see above
        return False
    return True


@pytest.mark.parametrize("name", sorted({*FINDS.values()}))
async def test_a_store_around_another_that_breaks_nothing_passes(name: str, tmp_path: Path) -> None:
    inner = of_files(tmp_path)
    whole = Stores(lambda: cast("Store", Foreign(inner.make(), Wrapped)), inner.seize, inner.lose)
    await CHECKS[name](whole)


@pytest.mark.parametrize("fault", BROKEN)
async def test_the_checks_find_a_store_that(fault: str, tmp_path: Path) -> None:
    inner = of_files(tmp_path)
    broken = Stores(lambda: BROKEN[fault](inner.make()), inner.seize, inner.lose)
    assert not await passes(broken, FINDS[fault])


@pytest.fixture
def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteLog, "_check_holder", lambda _log, _db: None)


async def test_the_checks_find_a_store_that_skips_fencing(unfenced: None, tmp_path: Path) -> None:
    assert not await passes(of_sqlite(tmp_path / "a.db"), "a_takeover_fences")
    assert await passes(of_sqlite(tmp_path / "b.db"), "taking_a_grant_again_counts_terms")


async def test_a_broken_store_is_told_what_it_did(tmp_path: Path) -> None:
    inner = of_files(tmp_path)
    broken = Stores(lambda: cast("Store", Foreign(inner.make(), TakingEmpty)))
    with pytest.raises(ContractBroken, match="no events: not refused"):
        await CHECKS["an_empty_batch_is_refused"](broken)


async def test_a_store_where_nobody_can_take_over_passes_and_is_left_alone(tmp_path: Path) -> None:
    assert await passes(Stores(of_files(tmp_path).make), "a_takeover_fences")
