"""One owner at a time: terms, takeovers, and many who want the same."""

from __future__ import annotations

from functools import partial

import trio

from refold.actors.stores import Store
from refold.runtime.envelope import decode_line
from refold.runtime.errors import Broken
from refold.runtime.events import SessionOwner
from refold.runtime.storage import Fenced, LogClosed, NotFound, SessionBusy
from refold.testing.store_contract.cancelling import cancelled_at, every_step
from refold.testing.store_contract.stores import (
    Holder,
    Stores,
    begin,
    refused,
    require,
    same,
    stored,
    take,
    take_over,
    texts,
    todo,
)


def owners(store: Store, session_id: str) -> list[int]:
    """The terms that a log names, in order."""
    events = [decode_line(record.encoded).data for record in stored(store, session_id)]
    return [data.term for data in events if isinstance(data, SessionOwner)]


async def taking_a_grant_again_counts_terms(stores: Stores) -> None:
    async with stores.open(2) as (store, other):
        holder = await begin(store, "s")
        same(holder.grant.term, 1, "the first term")
        await holder.end()
        for term in range(2, 6):
            again = await take((store, other)[term % 2], "s")
            same(again.grant.term, term, "the term of the next owner")
            same(again.events, holder.events, "what the next owner finds")
            same(again.grant.header.id, "s", "the session's id")
            same(again.grant.recovered, None, "what an opening repaired of a sound log")
            again.claim()
            again.append(todo("a"), todo("b"))
            await again.end()
            holder = again
        same(owners(other, "s"), [1, 2, 3, 4, 5], "the terms in the log")


async def a_grant_that_was_given_back_takes_nothing(stores: Stores) -> None:
    async with stores.open() as (store,):
        holder = await begin(store, "s")
        await holder.end()
        await holder.grant.release()
        batch = [todo("late").at(1, 1).encoded]
        await refused(LogClosed, lambda: holder.grant.append(1, batch), "appending after a release")
        await refused(LogClosed, holder.grant.sync, "a sync after a release")
        again = await take(store, "s")
        again.append()
        await again.end()
        same(texts(stored(store, "s")), again.events, "the log")


async def a_takeover_fences(stores: Stores) -> None:
    """An owner that was taken over adds nothing behind the new owner's claim, for ever.

    Where nobody can take over, the second is refused and the first works on.
    """
    async with stores.open(2) as (store, other):
        old = await begin(store, "s")
        await old.grant.sync()
        old.append(todo("on its way"))
        new = await take_over(stores, other, "s")
        if new is None:
            old.append()
            await old.end()
            same(texts(stored(other, "s")), old.events, "the log of an owner who was left alone")
            return
        new.claim()
        await new.grant.sync()
        require(new.grant.term > old.grant.term, "a new owner's term is no higher")
        for _ in range(3):
            fenced = await refused(Fenced, lambda: _append_and_sync(old), "a fenced owner")
            same(fenced.current_term, new.grant.term, "the term that a fenced owner is told")
            new.append(todo("of the new owner"))
            await new.grant.sync()
        await old.grant.release()
        same(texts(stored(other, "s")), new.events, "the log after a takeover")
        await new.end()


async def _append_and_sync(holder: Holder) -> None:
    known = len(holder.events)
    try:
        holder.append()
        await holder.grant.sync()
    finally:
        del holder.events[known:]


async def one_of_many_wins(stores: Stores, many: int = 8) -> None:
    """Of many who want a session at once one gets it; its term is higher than all before."""
    async with stores.open(many) as made:
        await (await begin(made[0], "s")).end()
        for round_ in range(4):
            won: list[Holder] = []

            async def want(store: Store, won: list[Holder] = won) -> None:
                try:
                    won.append(await take(store, "s"))
                except SessionBusy:
                    return

            async with trio.open_nursery() as nursery:
                for store in made:
                    nursery.start_soon(want, store)
            claimed = [holder for holder in won if await _claims(holder)]
            same(len(claimed), 1, f"how many of {many} own the session in round {round_}")
            await claimed[0].grant.release()
            terms = owners(made[0], "s")
            same(terms, sorted({*terms}), "the terms in the log")
            same(len(terms), round_ + 2, "the owners in the log")


async def _claims(holder: Holder) -> bool:
    try:
        holder.claim()
        await holder.grant.sync()
    except Broken:
        await holder.grant.release()
        return False
    return True


async def a_cancelled_acquire_holds_nothing(stores: Stores) -> None:
    """Cancelled at any step, an acquire gives a grant, or it leaves the session to others."""
    async with stores.open(2) as (store, other):
        await (await begin(store, "s")).end()
        got: list[Holder] = []

        async def acquire() -> None:
            got.append(await take(store, "s"))

        for step in every_step():
            reached = await cancelled_at(step, acquire)
            for holder in got:
                await holder.end()
            got.clear()
            again = await take(other, "s")
            again.claim()
            await again.end()
            if not reached:
                return


async def a_held_session_is_not_deleted(stores: Stores) -> None:
    async with stores.open(2) as (store, other):
        holder = await begin(store, "s")
        await holder.grant.sync()
        for asked in (store, other):
            await refused(SessionBusy, partial(asked.delete, "s"), "a session in use")
        await holder.end()
        same(texts(stored(other, "s")), holder.events, "the log after refused deletions")
        await other.delete("s")
        same(await store.list(), [], "the sessions after a deletion")
        for ask in (store.acquire, store.delete, store.reader):
            await refused(NotFound, partial(ask, "s"), "a session that was deleted")
