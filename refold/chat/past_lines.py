"""The lines that were typed in earlier chats, for the keys that bring them back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

NAME = "chat-history"


class PastLines(FileHistory):
    """A file that only its owner can read; where it cannot be written, this run alone remembers."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):  # a full disk is no reason to lose the line itself
            super().store_string(string)


def past_lines() -> History:
    """The history in `refold` under `XDG_STATE_HOME` or `~/.local/state`, which may be made.

    Where there is no such folder and none can be made, what is typed is forgotten with this run.
    """
    # The XDG rules: a relative folder there is to be ignored.
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        folder = (base if base.is_absolute() else Path("~/.local/state").expanduser()) / "refold"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / NAME
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return InMemoryHistory()
    return PastLines(path)
