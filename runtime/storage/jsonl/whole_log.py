"""Making a log from lines that are there already: a fork, an import, a repair by command.

It is written under another name, synced, and only then given its own: a crash leaves the log whole,
or what was there before.
"""

from __future__ import annotations

import os
from pathlib import Path

from refold.runtime.storage.beside import Beside
from refold.runtime.storage.errors import AlreadyExists
from refold.runtime.storage.files import copy_all, open_draft, remove, write_all, write_file
from refold.runtime.storage.framing import frame_header
from refold.runtime.storage.jsonl.names import FolderNames
from refold.runtime.storage.port import Port
from refold.runtime.storage.session_header import SessionHeader


def write_log(
    port: Port, names: FolderNames, lines: bytes | tuple[int, range], header: SessionHeader
) -> None:
    """Make the log of `header.id` from event lines, durable and whole.

    `lines` are bytes, or a descriptor and the place of theirs in it. Call it with the new
    session's lock held. Raises `AlreadyExists`, `OSError`; then nothing is left.
    """
    draft = names.fork(header.id)
    remove(port, draft)
    Beside(port, names.folder, header.id).drop_mark()
    target = port.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        _fill(port, target, lines, header)
        port.link(draft, names.log(header.id))
    except FileExistsError:
        raise AlreadyExists(header.id) from None
    finally:
        port.close(target)
        remove(port, draft)
    port.sync_directory(names.folder)


def replace_log(
    port: Port, names: FolderNames, before: bytes, lines: bytes, header: SessionHeader
) -> Path:
    """Put a log of event lines in the place of one whose bytes are `before`, which are kept.

    Call it with the session's lock held; returns where they are. A crash leaves the one log or
    the other, and the copy before the other.
    """
    kept = names.damaged(port, header.id)
    write_file(port, kept, before, sync=True)
    Beside(port, names.folder, header.id).drop_mark()
    draft, target = open_draft(port, names.copy(header.id))
    try:
        _fill(port, target, lines, header)
        port.rename(draft, names.log(header.id))
    finally:
        port.close(target)
        remove(port, draft)
    port.sync_directory(names.folder)
    return kept


def _fill(port: Port, target: int, lines: bytes | tuple[int, range], header: SessionHeader) -> None:
    first = frame_header(header)
    write_all(port, target, first, 0)
    if isinstance(lines, bytes):
        write_all(port, target, lines, len(first))
    else:
        copy_all(port, lines[0], target, lines[1], len(first))
    port.fdatasync(target)
