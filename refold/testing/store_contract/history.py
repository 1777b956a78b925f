"""Random histories of several programs on a few sessions, against a model in a dict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import attrs

from refold.actors.stores import Store
from refold.runtime.envelope import Draft
from refold.runtime.storage import AlreadyExists, NoForkPoint, NotFound, SeqMismatch, SessionBusy
from refold.testing.store_contract.stores import (
    Holder,
    Stores,
    begin,
    header,
    refused,
    require,
    same,
    stored,
    take,
    texts,
    todo,
    turn_end,
)

SESSIONS = ("a", "b", "c", "d")


@attrs.define(eq=False)
class Log:
    """What a session must hold: `safe` events were synced, and who has it open."""

    events: list[bytes] = attrs.field(factory=list)
    safe: int = 0
    terms: int = 0
    forks: list[int] = attrs.field(factory=list)  # how much each turn/end leaves of it
    holder: Holder | None = None


async def check_histories(stores: Stores) -> None:
    """Ten random histories, always the same ones."""
    for seed in range(10):
        await check_history(stores, Random(seed), f"h{seed}")  # noqa: S311 - not for secrets


async def check_history(
    stores: Stores, chance: Random, prefix: str = "h", *, steps: int = 40
) -> None:
    """A random history of so many steps on sessions whose ids start with `prefix`."""
    async with stores.open(3) as made:
        model = _Model(made, chance, prefix)
        for _ in range(steps):
            await model.step()
        await model.finish()


class _Model:
    def __init__(self, stores: list[Store], chance: Random, prefix: str) -> None:
        self._stores, self._chance, self._prefix = stores, chance, prefix
        self._logs: dict[str, Log] = {}
        self._steps: list[Callable[[str, Log | None, Store], Awaitable[None]]] = [
            self._create,
            self._acquire,
            self._append,
            self._append,
            self._append,
            self._misplace,
            self._sync,
            self._release,
            self._read,
            self._list,
            self._delete,
            self._fork,
        ]

    async def step(self) -> None:
        name = f"{self._prefix}-{self._chance.choice(SESSIONS)}"
        work, store = self._chance.choice(self._steps), self._chance.choice(self._stores)
        await work(name, self._logs.get(name), store)

    async def finish(self) -> None:
        for name, log in self._logs.items():
            if log.holder is not None:
                await log.holder.end()
                log.holder, log.safe = None, len(log.events)
            await self._read(name, log, self._stores[0])

    async def _create(self, name: str, log: Log | None, store: Store) -> None:
        if log is None:
            holder = await begin(store, name)
            await holder.grant.sync()
            self._logs[name] = Log(holder.events, 1, 1, holder=holder)
        else:
            kinds = AlreadyExists if log.holder is None else (AlreadyExists, SessionBusy)
            await refused(kinds, lambda: store.create(header(name)), "an id that is taken")

    async def _acquire(self, name: str, log: Log | None, store: Store) -> None:
        if log is None:
            await refused(NotFound, lambda: store.acquire(name), "a session that is not there")
        elif log.holder is not None:
            await refused(SessionBusy, lambda: store.acquire(name), "a session in use")
        else:
            log.holder = holder = await take(store, name)
            same(holder.events, log.events, "what a new owner finds")
            log.events, log.terms = holder.events, log.terms + 1
            same(holder.grant.term, log.terms, "the new owner's term")
            holder.claim()

    async def _append(self, name: str, log: Log | None, store: Store) -> None:
        del name, store
        if log is not None and log.holder is not None:
            batch: list[Draft] = [todo(f"{self._chance.random()}")] * self._chance.randint(1, 4)
            if self._chance.random() < 0.3:
                batch.append(turn_end(len(log.forks) + 1))
                log.forks.append(len(log.events) + len(batch))
            log.holder.append(*batch)

    async def _misplace(self, name: str, log: Log | None, store: Store) -> None:
        del name, store
        if log is not None and log.holder is not None:
            grant = log.holder.grant
            wrong = len(log.events) + self._chance.choice((-1, 1, 7))
            batch = [todo("x").at(wrong, 1).encoded]
            await refused(SeqMismatch, lambda: grant.append(wrong, batch), "another place")

    async def _sync(self, name: str, log: Log | None, store: Store) -> None:
        del name, store
        if log is not None and log.holder is not None:
            same(await log.holder.grant.sync(), len(log.events) - 1, "what a sync returns")
            log.safe = len(log.events)

    async def _release(self, name: str, log: Log | None, store: Store) -> None:
        del name, store
        if log is not None and log.holder is not None:
            await log.holder.grant.release()
            log.holder, log.safe = None, len(log.events)

    async def _read(self, name: str, log: Log | None, store: Store) -> None:
        if log is None:
            await refused(NotFound, lambda: store.reader(name), "a session that is not there")
            return
        found = texts(stored(store, name))
        same(found, log.events[: len(found)], "what is read of a log")
        require(len(found) >= log.safe, "less is read of a log than was durable")

    async def _list(self, name: str, log: Log | None, store: Store) -> None:
        del name, log
        own = [found for found in await store.list() if found.startswith(f"{self._prefix}-")]
        same(own, sorted(self._logs), "the sessions")

    async def _delete(self, name: str, log: Log | None, store: Store) -> None:
        if log is None:
            await refused(NotFound, lambda: store.delete(name), "a session that is not there")
        elif log.holder is not None:
            await refused(SessionBusy, lambda: store.delete(name), "a session in use")
        elif self._chance.random() < 0.3:
            await store.delete(name)
            del self._logs[name]

    async def _fork(self, name: str, log: Log | None, store: Store) -> None:
        names = [f"{self._prefix}-{found}" for found in SESSIONS]
        free = [found for found in names if found not in self._logs]
        if log is None or not free:
            return
        await self._sync(name, log, store)
        twin = self._chance.choice(free)
        fork = header(twin)
        if not log.forks:
            await refused(NoForkPoint, lambda: store.fork(name, None, fork), "no turn has ended")
            return
        place = self._chance.randrange(len(log.forks))
        at = log.forks[place]
        await store.fork(name, at - 1, fork)
        self._logs[twin] = Log(log.events[:at], at, forks=log.forks[: place + 1])
