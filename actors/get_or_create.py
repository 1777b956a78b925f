"""What makes an opening repeatable: a session is made, or found as an earlier call left it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs

from refold.actors.stores import Grant, Store
from refold.actors.turn.options import AgentOptions, Given
from refold.runtime.errors import Refused
from refold.runtime.storage.errors import AlreadyExists, NotFound
from refold.runtime.storage.session_header import SessionHeader

Acquire: TypeAlias = Callable[[str], Awaitable[Grant]]
"""How a stored session is taken."""


@attrs.define(eq=False)
class OptionsDiffer(Refused):
    """An agent that is open here and was opened with other options than it is now asked for."""

    session: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the agent on session {self.session!r} was opened with another "
            f"{' and another '.join(self.options)}; close it first, or leave that out"
        )


@attrs.define(eq=False)
class NotThatFork(Refused):
    """A fork's id that is taken by a session which is not that fork."""

    session: str
    parent: str
    at: int | None

    def __str__(self) -> str:
        place = "" if self.at is None else f" at seq {self.at}"
        return (
            f"session {self.session!r} exists and is no fork of {self.parent!r}{place}; choose "
            "another id for the fork"
        )


def check_same_options(session: str, opened: Given, said: AgentOptions, given: Given) -> None:
    """Raise `OptionsDiffer` where something that is said now is not what an agent was opened with.

    Tools are compared as the model sees them. Seams are code that nobody can compare, and `state`
    goes with them: those of the opening stay.
    """
    differing = [
        name
        for name in said
        if name not in ("seams", "state") and _shown(opened, name) != _shown(given, name)
    ]
    if differing:
        raise OptionsDiffer(session, tuple(differing))


def _shown(given: Given, name: str) -> object:
    if name == "tools":
        return tuple(tool.schema for tool in given.tools or ())
    return getattr(given, name)


async def get_or_create(store: Store, header: SessionHeader, acquire: Acquire) -> Grant:
    """Take the session of that id; where there is none, a new one."""
    try:
        return await acquire(header.id)
    except NotFound:
        try:
            return await store.create(header)
        except AlreadyExists:  # somebody else was faster
            return await acquire(header.id)


@attrs.define
class Forking:
    """Taking the fork of `parent` at `at` that `header` describes, made now or by an earlier call.

    `repeatable` says whether an earlier one may have made it; `made` becomes true where this did.
    """

    store: Store
    parent: str
    at: int | None
    header: SessionHeader
    acquire: Acquire
    repeatable: bool
    made: bool = False

    async def take(self) -> Grant:
        try:
            await self.store.fork(self.parent, self.at, self.header)
            self.made = True
        except AlreadyExists:
            if not self.repeatable:
                raise
        grant = await self.acquire(self.header.id)
        if not self.made and not self._is_of(grant.header):
            await grant.release()
            raise NotThatFork(self.header.id, self.parent, self.at)
        return grant

    async def undo(self) -> None:
        if self.made:  # nobody has learned of it
            await self.store.delete(self.header.id)

    def _is_of(self, found: SessionHeader) -> bool:
        placed = self.at is None or found.seed_length == self.at + 1
        return found.parent_session == self.parent and placed
