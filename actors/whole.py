"""Contexts that a Ctrl-C does not cut in two."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from trio.lowlevel import enable_ki_protection

from refold.actors.kernel.same_run import check_in_trio

T = TypeVar("T")


class Whole(AbstractAsyncContextManager[T], Generic[T]):
    """A context whose entering and leaving no Ctrl-C cuts in two, and which loses none.

    Python drops what is raised in a callback of a weak reference, and Trio keeps weak references
    to generators: one that dies in code that is not protected may take a KeyboardInterrupt along.
    """

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context

    @enable_ki_protection
    async def __aenter__(self) -> T:
        check_in_trio()
        return await self._context.__aenter__()

    @enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._context.__aexit__(kind, error, traceback)
        finally:
            del self._context
