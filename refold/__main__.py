"""`python -m refold` is the command `refold`."""

from __future__ import annotations

from refold.cli import main

if __name__ == "__main__":
    main(prog_name="refold")
