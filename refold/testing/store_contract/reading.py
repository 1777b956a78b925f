"""Readers: every event once, from everywhere, in pages of any size, beside a writer."""

from __future__ import annotations

from functools import partial

import trio

from refold.actors.stores import Store
from refold.runtime.storage import AlreadyExists, LogCorrupt, LogReader, NoForkPoint, NotFound
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


async def a_reader_started_anywhere_misses_nothing(stores: Stores) -> None:
    """Readers that start at every place follow a writer: no gap, nothing twice, whole batches."""
    batches = 25
    async with stores.open(2) as (store, other), trio.open_nursery() as nursery:
        holder = await begin(store, "s")
        await holder.grant.sync()
        over = trio.Event()
        for number in range(batches):
            reader = (store, other)[number % 2].reader("s")
            nursery.start_soon(_follow, reader, holder, over, 1 if number % 3 else None)
            holder.append(*[todo(f"{number} {place}") for place in range(1 + number % 4)])
            if number % 5 == 0:
                await holder.grant.sync()
            await trio.lowlevel.checkpoint()
        await holder.end()
        over.set()


async def _follow(reader: LogReader, holder: Holder, over: trio.Event, limit: int | None) -> None:
    seen: list[bytes] = []
    try:
        while True:
            last = over.is_set()
            found = reader.read_new(limit)
            require(not found or found[-1].left == 0, "a reader was given half a batch")
            seen += texts(found)
            same(seen, holder.events[: len(seen)], "what a reader that follows has seen")
            if last and not found:
                break
            await trio.lowlevel.checkpoint()
    finally:
        reader.close()
    same(len(seen), holder.next_seq, "how much a reader that follows has seen in the end")


async def pages_of_every_size_make_the_same_log(stores: Stores) -> None:
    async with stores.open() as (store,):
        holder = await begin(store, "s")
        for size in (1, 2, 3, 1):
            holder.append(*[todo(f"{size} {place}") for place in range(size)])
        await holder.end()
        whole = stored(store, "s")
        length = whole[-1].offset + whole[-1].length
        for limit in range(1, length + 20):
            reader, seen = store.reader("s"), list[bytes]()
            while page := reader.read_new(limit):
                seen += texts(page)
            same(seen, holder.events, f"a log read in pages of {limit} bytes")
            same(texts([reader.reread(whole[3])]), holder.events[3:4], "a record read again")
            reader.close()


async def a_hole_is_corruption(stores: Stores) -> None:
    """Where a stored event was lost, reading and opening say so and skip nothing."""
    if stores.lose is None:
        return
    for lost in (0, 2, 4):
        name = f"s{lost}"
        async with stores.open() as (store,):
            holder = await begin(store, name)
            for _ in range(6):
                holder.append()
                await holder.grant.sync()
            await holder.end()
        stores.lose(name, lost)
        async with stores.open() as (store,):
            corrupt = await refused(LogCorrupt, partial(stored, store, name), "a hole")
            same(corrupt.expected_seq, lost, "the seq that is missing")
            await refused(LogCorrupt, partial(store.acquire, name), "opening with a hole")


async def sessions_are_listed_while_they_come_and_go(stores: Stores) -> None:
    async with stores.open(2) as (store, other):
        for name in ("b", "a", "c"):
            await (await begin(store, name)).end()
            require(name in await other.list(), "a new session is not listed")
        same(await other.list(), ["a", "b", "c"], "the sessions, sorted")
        for ask in (store.acquire, store.delete, store.reader):
            await refused(NotFound, partial(ask, "nobody"), "a session that is not there")
        await other.delete("b")
        same(await store.list(), ["a", "c"], "the sessions after a deletion")
        holder = await begin(store, "b")
        await holder.end()
        same(texts(stored(other, "b")), holder.events, "a session whose id was used before")


async def a_fork_is_its_parent_up_to_a_turn_s_end(stores: Stores) -> None:
    async with stores.open(2) as (store, other):
        parent = await begin(store, "parent")
        parent.append(turn_end(1))
        parent.append(todo("between"))
        parent.append(turn_end(2))
        parent.append(todo("after"))
        await parent.grant.sync()
        for wrong, nearest in ((0, None), (2, 1), (4, 3), (99, 3)):
            refusal = await refused(
                NoForkPoint,
                partial(store.fork, "parent", wrong, header("odd")),
                f"a fork at seq {wrong}",
            )
            same(refusal.nearest, nearest, "the nearest fork point before")
        await store.fork("parent", 1, header("first"))
        await other.fork("parent", None, header("second"))
        await refused(AlreadyExists, lambda: store.fork("parent", 1, header("first")), "a taken id")
        same(texts(stored(other, "first")), parent.events[:2], "a fork at the first turn's end")
        same(texts(stored(other, "second")), parent.events[:4], "a fork at the last turn's end")
        await _goes_on(store, "first")
        await parent.end()
        same(texts(stored(other, "parent")), parent.events, "the parent of two forks")
        await refused(NotFound, lambda: store.fork("nobody", None, header("x")), "no parent")


async def _goes_on(store: Store, session_id: str) -> None:
    fork = await take(store, session_id)
    same(fork.grant.term, 1, "the first term of a fork")
    fork.claim()
    await fork.end()
    same(texts(stored(store, session_id)), fork.events, "a fork that goes on")
