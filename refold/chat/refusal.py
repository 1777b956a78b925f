"""The exit code of a chat that could not begin."""

from __future__ import annotations

from refold.cli.shared.exit_codes import CANNOT_OPEN, DIFFERENT, exit_code
from refold.runtime.errors import RefoldError


def opening_code(error: RefoldError) -> int:
    """Its own code where an error has one, such as that of a damaged log; else cannot open."""
    code = exit_code(error)
    return CANNOT_OPEN if code == DIFFERENT else code
