"""Under which addresses stores are found."""

from __future__ import annotations

from pathlib import Path

SCHEME = "sqlite:///"
"""What the address of a SQLite file begins with; the file's path follows."""


MEMORY = "memory:"
"""The address of a store in memory, which ends with its program."""


def is_address(text: str) -> bool:
    """Whether `text` is a folder's path or the address of a SQLite file."""
    if text.startswith(SCHEME):
        return len(text) > len(SCHEME)
    return "://" not in text and not text.startswith("sqlite:")


def within(folder: Path, address: str) -> str:
    """An address whose path, if it is relative, is taken from `folder`; `~` is the user's home.

    `memory:` has no path and stays as it is. Raises `RuntimeError` for a home that is not known.
    """
    if address == MEMORY:
        return address
    scheme = SCHEME if address.startswith(SCHEME) else ""
    return f"{scheme}{folder / Path(address.removeprefix(scheme)).expanduser()}"
