"""What a terminal shows: the few sequences that a line editor draws with, on cells."""

from __future__ import annotations

import re

from wcwidth import wcwidth

_PART = re.compile(r"\x1b\[(?P<given>[?0-9;]*)(?P<what>[@-~])|\x1b.|(?P<char>.)", re.DOTALL)


class Screen:
    """A window of `columns` whose rows scroll into a record without end.

    `joins` says whether emoji with joiners take the cells of one, as some terminals have it.
    """

    def __init__(self, columns: int, *, joins: bool = False) -> None:
        self.columns, self.joins = columns, joins
        self.modes: set[str] = {"?7", "?25"}
        self._rows: list[list[str]] = [[]]
        self._y = self._x = 0
        self._held = ""

    def feed(self, output: str) -> None:
        output = self._held + output
        cut = re.search(r"\x1b(\[[?0-9;]*)?$", output)
        self._held = cut[0] if cut else ""
        for part in _PART.finditer(output.removesuffix(self._held) if cut else output):
            if part["what"]:
                self._control(part["given"], part["what"])
            elif part["char"]:
                self._char(part["char"])

    @property
    def lines(self) -> list[str]:
        """The rows with something in them."""
        return [shown for row in self._rows if (shown := "".join(row).rstrip())]

    @property
    def before_cursor(self) -> str:
        """What stands in the cursor's row, as far as the cursor."""
        return "".join(self._rows[self._y][: self._x])

    def _control(self, given: str, what: str) -> None:
        count = int(given) if given.isdecimal() and int(given) else 1
        match what:
            case "A":
                self._y = max(0, self._y - count)
            case "B":
                self._go_down(count)
            case "C":
                self._x = min(self.columns - 1, self._x + count)
            case "D":
                self._x = max(0, min(self._x, self.columns - 1) - count)
            case "J":
                del self._rows[self._y][self._x :], self._rows[self._y + 1 :]
            case "K":
                del self._rows[self._y][self._x :]
            case "h":
                self.modes.add(given)
            case "l":
                self.modes.discard(given)
            case "m":
                pass
            case _:
                raise AssertionError(f"the screen does not know ESC [ {given} {what}")

    def _go_down(self, count: int = 1) -> None:
        self._y += count
        while len(self._rows) <= self._y:
            self._rows.append([])

    def _char(self, char: str) -> None:
        row = self._rows[self._y]
        if char == "\r":
            self._x = 0
        elif char == "\n":
            self._go_down()
        elif char == "\b":
            self._x = max(0, min(self._x, self.columns - 1) - 1)
        elif char >= " " and (wcwidth(char) == 0 or self._continues(row)):
            at = self._x - 1
            while at > 0 and row[at] == "":
                at -= 1
            row[at] += char
        elif char >= " ":
            self._put(char, wcwidth(char))

    def _continues(self, row: list[str]) -> bool:
        return self.joins and "".join(row[: self._x]).endswith("\u200d")

    def _put(self, char: str, cells: int) -> None:
        if self._x + cells > self.columns:
            if "?7" in self.modes:
                self._x = 0
                self._go_down()
            else:
                self._x = self.columns - cells
        row = self._rows[self._y]
        row += [" "] * (self._x - len(row))
        row[self._x : self._x + cells] = [char, *[""] * (cells - 1)]
        self._x += cells
