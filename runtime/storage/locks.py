"""Who may write a session: one lock file a store, one byte of it a session.

The locks belong to the open file description, so they end with the process and with nothing
else; the file is never unlinked. Where such locks are missing, each session has a lock file of
its own, taken with `flock`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from refold.runtime.storage.files import exists, make_folder
from refold.runtime.storage.port import OS, Port


class LockPlaces(Protocol):
    """Where a store keeps its lock files, and what they guard."""

    @property
    def folder(self) -> Path: ...
    @property
    def lock(self) -> Path: ...
    def session_lock(self, session_id: str) -> Path: ...
    def is_used(self, port: Port, session_id: str | None) -> bool:
        """Whether there is anything to guard: that session's log, or (None) any."""
        ...


class StoreLock:
    """The locks that this process holds in one store; safe to use from several threads."""

    def __init__(self, places: LockPlaces, port: Port) -> None:
        self._places = places
        self._port = port
        self._held: dict[str, int | None] = {}  # to the descriptor of a lock file of its own
        self._fd: int | None = None
        self._guard = threading.Lock()
        self._replaced = False
        self._settled: set[str] = set()
        if port is OS:
            _STORES.add(self)

    def may_be_shared(self, session_id: str) -> bool:
        """Whether the lock file had been replaced, so that someone may hold the session on it.

        The answer is no again once `settle` was called for the session.
        """
        return self._replaced and session_id not in self._settled

    def settle(self, session_id: str) -> None:
        """Note that the session's log has moved away from whoever may still write the old one."""
        self._settled.add(session_id)

    def acquire(self, session_id: str) -> bool:
        """Take the session's lock without waiting; False while anyone holds it.

        Raises `OSError` where the lock file cannot be opened.
        """
        with self._guard:
            if session_id in self._held:
                return False
            if self._port.has_range_locks:
                return self._lock_byte(session_id)
            return self._lock_file(session_id)

    def release(self, session_id: str) -> None:
        """Give the session's lock back; nothing to do in a forked child, which holds none."""
        with self._guard:
            if session_id not in self._held:
                return
            own = self._held.pop(session_id)
            if own is not None:
                self._port.close(own)
                return
            assert self._fd is not None
            self._port.unlock(self._fd, offset_of(session_id))
            if not self._held:
                self._port.close(self._fd)
                self._fd = None

    def is_held(self, session_id: str) -> bool | None:
        """Whether anybody holds the session's lock, which is asked and not taken.

        None where that cannot be said: without range locks only who takes a lock knows.
        """
        with self._guard:
            if session_id in self._held:
                return True
            return self._is_locked(session_id) if self._port.has_range_locks else None

    def is_held_by_another(self, session_id: str) -> bool:
        """Whether somebody else holds a session of ours, on a lock file put in the place of ours.

        False where that cannot be said.
        """
        with self._guard:
            if self._fd is None or not self._port.has_range_locks:
                return False
            if self._is_current(self._fd, self._places.lock):
                return self._port.is_locked(self._fd, offset_of(session_id))
            return self._is_locked(session_id) is True

    def let_go(self) -> None:
        """Close every descriptor, in a forked child: it must not keep its parent's locks alive."""
        self._guard = threading.Lock()  # the parent's may have been held at the fork
        for fd in (self._fd, *self._held.values()):
            if fd is not None:
                self._port.close(fd)
        self._fd, self._held = None, {}

    def _is_locked(self, session_id: str) -> bool | None:
        """Whether anybody holds the session on the lock file that is there; None: nobody knows."""
        try:
            fd = self._port.open(self._places.lock, os.O_RDONLY)
        except FileNotFoundError:  # made by whoever locks first
            return False
        except OSError:
            return None
        try:
            return self._port.is_locked(fd, offset_of(session_id))
        finally:
            self._port.close(fd)

    def _lock_byte(self, session_id: str) -> bool:
        if self._fd is None or not self._is_current(self._fd, self._places.lock):
            self._open_store()
        assert self._fd is not None
        if not self._port.lock(self._fd, offset_of(session_id)):
            return False
        self._held[session_id] = None
        return True

    def _open_store(self) -> None:
        """Open the lock file, anew where it was replaced, and take along what is held."""
        if self._fd is not None:
            self._mark_replaced()
        before, self._fd = self._fd, self._open(self._places.lock, None)
        if before is not None:
            self._port.close(before)
        for held in self._held:
            self._port.lock(self._fd, offset_of(held))

    def _lock_file(self, session_id: str) -> bool:
        path = self._places.session_lock(session_id)
        fd = self._open(path, session_id)
        if not self._port.flock(fd) or not self._is_current(fd, path):
            self._port.close(fd)
            return False
        self._held[session_id] = fd
        return True

    def _is_current(self, fd: int, path: Path) -> bool:
        """Whether `path` still leads to the file that is open."""
        try:
            return self._port.lstat(path).identity == self._port.fstat(fd).identity
        except FileNotFoundError:
            return False

    def _open(self, path: Path, guarded: str | None) -> int:
        if not exists(self._port, path):
            make_folder(self._port, self._places.folder)
            if self._places.is_used(self._port, guarded):
                self._mark_replaced()
        return self._port.open(path, os.O_RDWR | os.O_CREAT)

    def _mark_replaced(self) -> None:
        self._replaced = True
        self._settled.clear()


def offset_of(session_id: str) -> int:
    """The byte that stands for a session: 62 bits of a hash of its id."""
    digest = hashlib.sha256(session_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


_STORES: WeakSet[StoreLock] = WeakSet()


def _let_go_in_child() -> None:  # pragma: no cover - runs in forked children alone
    for store in list(_STORES):
        store.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
