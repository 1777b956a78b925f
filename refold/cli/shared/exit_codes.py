"""What a command says when it cannot go on, and the exit code for it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import click

from refold.config import ConfigUnreadable
from refold.render import visible_line
from refold.runtime.config import InvalidConfig
from refold.runtime.errors import (
    IdMismatch,
    InvalidEvent,
    InvalidHeader,
    InvalidSessionId,
    LegacyEvent,
    NoSuchPosition,
    NoSuchStep,
    NotLosslessJson,
    RefoldError,
    Refused,
    SeqGap,
    SurfaceRefused,
    UnsupportedVersion,
)
from refold.runtime.storage import (
    AlreadyExists,
    Fenced,
    FileCorrupt,
    ForeignLog,
    LogCorrupt,
    NoForkPoint,
    NoStoreFile,
    NoSuchStore,
    NotFound,
    SessionBusy,
    StoreRefused,
    Unavailable,
)

FINE = 0
DIFFERENT = 1
USAGE = 2
CANNOT_OPEN = 3
DAMAGED = 4


@attrs.define(eq=False)
class CannotDo(Refused):
    """What a command cannot do: one sentence that says what to do about it, and the exit code."""

    sentence: str
    exit_code: int = CANNOT_OPEN

    def __str__(self) -> str:
        return self.sentence


DAMAGE = (LogCorrupt, InvalidEvent, NotLosslessJson, SurfaceRefused, SeqGap)
"""What reading a log raises where it stops making sense."""

_CODES: Mapping[type[RefoldError], int] = {
    **dict.fromkeys((InvalidSessionId, NoSuchStep, NoForkPoint, InvalidConfig), USAGE),
    **dict.fromkeys((NoSuchStore, NoSuchPosition), USAGE),
    **dict.fromkeys((Fenced, NoStoreFile), CANNOT_OPEN),
    **dict.fromkeys((ConfigUnreadable, AlreadyExists), CANNOT_OPEN),
    **dict.fromkeys((NotFound, SessionBusy, StoreRefused, Unavailable, ForeignLog), CANNOT_OPEN),
    **dict.fromkeys((IdMismatch, InvalidHeader, LegacyEvent, UnsupportedVersion), CANNOT_OPEN),
    **dict.fromkeys((*DAMAGE, FileCorrupt), DAMAGED),
}


def exit_code(error: RefoldError) -> int:
    """The exit code for an error; its own, if it has one."""
    own: object = getattr(error, "exit_code", None)
    return own if isinstance(own, int) else _CODES.get(type(error), DIFFERENT)


def say(text: str) -> None:
    """One line on standard error, whatever `text` holds."""
    click.echo(f"refold: {visible_line(text)}", err=True)
