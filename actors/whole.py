"""Contexts that a Ctrl-C does not cut in two."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

from trio.lowlevel import enable_ki_protection

T = TypeVar("T")


class Whole(AbstractAsyncContextManager[T], Generic[T]):
    """A context whose entering and leaving no Ctrl-C cuts in two."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context

    @enable_ki_protection
    async def __aenter__(self) -> T:
        return await self._context.__aenter__()

    @enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, traceback)
