"""What the checks share: stores over the same sessions, grants that count, and events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import attrs

from refold.actors.stores import Grant, Store
from refold.runtime.envelope import Draft, draft
from refold.runtime.errors import RefoldError
from refold.runtime.events import EndReason, Owner, SessionOwner, Todo, TodoWrite, TurnEnd
from refold.runtime.storage import Record, SessionBusy, SessionHeader, this_process

E = TypeVar("E", bound=RefoldError)


class ContractBroken(AssertionError):
    """A store that does not do what every store must."""


@attrs.frozen
class Stores:
    """A store under test, as several programs have it.

    `make` gives another object over the same sessions, as another process would have; each is
    closed. `seize` frees a session from a holder that goes on unawares, as replacing a lock file
    does; without it, a store may refuse a second owner for ever. `lose` removes one stored event.
    """

    make: Callable[[], Store]
    seize: Callable[[str], object] | None = None
    lose: Callable[[str, int], object] | None = None

    @asynccontextmanager
    async def open(self, count: int = 1) -> AsyncIterator[list[Store]]:
        """So many store objects."""
        async with AsyncExitStack() as stack:
            made = [self.make() for _ in range(count)]
            for store in made:
                stack.push_async_callback(store.close)
            yield made


@attrs.define(eq=False)
class Holder:
    """A grant, and where its log goes on; `events` are those that it knows to stand there."""

    grant: Grant
    events: list[bytes] = attrs.field(factory=list)

    @property
    def next_seq(self) -> int:
        return len(self.events)

    def append(self, *drafts: Draft) -> list[bytes]:
        """One batch, by default of one event."""
        made = drafts or (todo("one"),)
        batch = [one.at(self.next_seq + place, 1).encoded for place, one in enumerate(made)]
        self.grant.append(self.next_seq, batch)
        self.events += batch
        return batch

    def claim(self) -> None:
        """Say in the log who owns it, as every owner's first batch does."""
        self.append(draft(SessionOwner(self.grant.term, OWNER)))

    async def end(self) -> None:
        await self.grant.sync()
        await self.grant.release()


OWNER: Owner = this_process()

_TYPES = ("session/owner", "todo/write", "turn/end")
"""All that these checks write."""


def todo(text: str) -> Draft:
    return draft(TodoWrite((Todo(text, "pending"),)))


def turn_end(turn: int) -> Draft:
    return draft(TurnEnd(turn, EndReason("completed")))


def header(session_id: str) -> SessionHeader:
    return SessionHeader(session_id, 1, durability="power")


async def begin(store: Store, session_id: str) -> Holder:
    """A new session whose log names its owner."""
    holder = Holder(await store.create(header(session_id)))
    holder.claim()
    return holder


async def take(store: Store, session_id: str) -> Holder:
    """An existing session, with what its log holds; not claimed yet."""
    grant = await store.acquire(session_id)
    return Holder(grant, [event.encoded for event in grant.events(_TYPES)])


async def take_over(stores: Stores, store: Store, session_id: str) -> Holder | None:
    """A session that another holds; None where the store says no and nobody can force it."""
    try:
        return await take(store, session_id)
    except SessionBusy:
        if stores.seize is None:
            return None
    stores.seize(session_id)
    return await take(store, session_id)


def stored(store: Store, session_id: str) -> list[Record]:
    """Every record of a session, read anew."""
    reader = store.reader(session_id)
    try:
        return reader.read_new()
    finally:
        reader.close()


def texts(records: Sequence[Record]) -> list[bytes]:
    return [record.encoded for record in records]


def require(held: object, what: str) -> None:
    """Raise `ContractBroken` unless it held."""
    if not held:
        raise ContractBroken(what)


def same(found: Any, expected: Any, what: str) -> None:
    """Raise `ContractBroken` unless the two are equal."""
    if found != expected:
        raise ContractBroken(f"{what}: expected {expected!r}, found {found!r}")


async def refused(kinds: type[E] | tuple[type[E], ...], work: Callable[[], object], what: str) -> E:
    """What the work is refused with, which must be one of these; it may be async."""
    try:
        done = work()
        if isinstance(done, Awaitable):
            await done
    except kinds as refusal:
        return refusal
    except RefoldError as other:
        raise ContractBroken(f"{what}: refused with {other!r}") from other
    raise ContractBroken(f"{what}: not refused")
