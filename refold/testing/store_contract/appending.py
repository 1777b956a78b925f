"""Batches: whole, in their place, there or not there."""

from __future__ import annotations

from functools import partial

import trio

from refold.actors.stores import Progress, Store
from refold.runtime.storage import AlreadyExists, EmptyBatch, NotFound, SeqMismatch, SessionBusy
from refold.testing.store_contract.cancelling import cancelled_at, every_step
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
)


async def batches_are_whole_and_contiguous(stores: Stores) -> None:
    """What was appended is read back byte by byte, numbered without gaps, batch by batch."""
    async with stores.open(2) as (store, other):
        holder = await begin(store, "s")
        for size in (1, 3, 2, 40):
            holder.append(*[todo(f"{size} {place}") for place in range(size)])
            same(await holder.grant.sync(), holder.next_seq - 1, "the seq that a sync returns")
        for reading in (store, other):
            records = stored(reading, "s")
            same(texts(records), holder.events, "the events of the log")
            same([r.seq for r in records], list(range(holder.next_seq)), "their seqs")
            left = [0, 0, 2, 1, 0, 1, 0, *range(39, -1, -1)]
            same([record.left for record in records], left, "how the batches were kept together")
        await holder.end()
        again = await take(other, "s")
        same(again.events, holder.events, "the events that a grant hands over")
        await again.end()


async def an_empty_batch_is_refused(stores: Stores) -> None:
    async with stores.open() as (store,):
        holder = await begin(store, "s")
        await refused(EmptyBatch, lambda: holder.grant.append(holder.next_seq, []), "no events")
        holder.append()
        await holder.end()
        same(texts(stored(store, "s")), holder.events, "the log after an empty batch")


async def a_batch_for_another_place_is_refused(stores: Stores) -> None:
    """A seq that is not the log's next is refused, and the grant works on."""
    async with stores.open() as (store,):
        holder = await begin(store, "s")
        await holder.grant.sync()
        batch = [todo("elsewhere").at(holder.next_seq, 1).encoded]
        for wrong in (0, holder.next_seq - 1, holder.next_seq + 1, 10**6):
            refusal = await refused(
                SeqMismatch, partial(holder.grant.append, wrong, batch), f"seq {wrong}"
            )
            same((refusal.expected, refusal.got), (holder.next_seq, wrong), "what it says")
        holder.append()
        await holder.end()
        same(texts(stored(store, "s")), holder.events, "the log after refused batches")


async def a_new_session_leaves_no_trace(stores: Stores) -> None:
    async with stores.open(2) as (store, other):
        grant = await store.create(header("s"))
        same(await other.list(), [], "the sessions before a first append")
        await refused(NotFound, lambda: other.reader("s"), "reading before a first append")
        await grant.release()
        await grant.release()
        same(await store.list(), [], "the sessions after nothing was appended")
        holder = await begin(other, "s")
        await holder.end()
        same(await store.list(), ["s"], "the sessions after an append")


async def an_id_is_taken_once(stores: Stores) -> None:
    taken = (AlreadyExists, SessionBusy)
    async with stores.open(2) as (store, other):
        holder = await begin(store, "s")
        await holder.grant.sync()
        for asked in (store, other):
            await refused(taken, partial(asked.create, header("s")), "an id in use")
        await holder.end()
        await refused(AlreadyExists, lambda: other.create(header("s")), "an id that is taken")
        same(texts(stored(other, "s")), holder.events, "the log after refused creations")


async def progress_only_grows(stores: Stores) -> None:
    """A watcher sees the written and the durable seq grow, the second never ahead, to the end.

    Who asks the grant instead is told the same.
    """
    async with stores.open() as (store,):
        holder = await begin(store, "s")
        seen: list[Progress] = []
        holder.grant.watch(seen.append)
        for _ in range(5):
            holder.append(todo("a"), todo("b"))
            await holder.grant.sync()
        require(seen, "a watcher is never called")
        written = [progress.written_seq for progress in seen]
        durable = [progress.durable_seq for progress in seen]
        same((written, durable), (sorted(written), sorted(durable)), "progress")
        ahead = [progress for progress in seen if progress.durable_seq > progress.written_seq]
        same(ahead, [], "progress that is durable before it is written")
        same((written[-1], durable[-1]), (10, 10), "the last progress")
        same(holder.grant.durable_seq, 10, "the seq that a grant says is durable")
        await holder.end()


async def sessions_side_by_side_keep_apart(stores: Stores) -> None:
    """Sixteen sessions append at once, and each log holds its own."""

    async def live(store: Store, name: str) -> None:
        holders[name] = holder = await begin(store, name)
        for turn in range(10):
            holder.append(todo(f"{name} {turn}"), todo(name))
            if turn % 3 == 0:
                await holder.grant.sync()
        await holder.end()

    holders: dict[str, Holder] = {}
    async with stores.open(2) as (store, other):
        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(live, store, f"s{number:02}")
        same(await other.list(), sorted(holders), "the sessions")
        for name, holder in holders.items():
            same(texts(stored(other, name)), holder.events, f"the log of {name}")


async def a_cancelled_sync_leaves_no_doubt(stores: Stores) -> None:
    """Cancelled at any step, an append is there or not, and the grant goes on or has failed."""
    async with stores.open(2) as (store, other):
        holder = await begin(store, "s")
        await holder.grant.sync()

        async def append_and_sync() -> None:
            holder.append(todo("a"), todo("b"))
            await holder.grant.sync()

        for step in every_step():
            if not await cancelled_at(step, append_and_sync):
                break
            holder.append(todo("after"))
            await holder.grant.sync()
            same(texts(stored(other, "s")), holder.events, f"the log, cancelled at step {step}")
        await holder.end()
        same(texts(stored(other, "s")), holder.events, "the log in the end")
