"""The line editor of a chat: prompt_toolkit in a thread, the one writer of the terminal.

What is said meanwhile flows above the line that is being typed: whole rows for good, and the row
that is not whole yet as a part of the picture, so that it grows in its place. The editor has an
event loop of its own; Trio hands it text, and is handed what was entered.

The terminal's mode is set once and not around each output, as a paste could fall in between. It is
not asked for its cursor either: a late answer would be typed into the shell.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.application.run_in_terminal import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from wcwidth import wrap

from refold.chat.clusters import settle, some_are_joined
from refold.chat.feed import Piece
from refold.chat.keeper import kept
from refold.chat.key_bindings import key_bindings
from refold.chat.past_lines import past_lines
from refold.chat.person import MORE, PROMPT, Entered, Heard, write
from refold.chat.rows import Row, Rows, as_text
from refold.render import has_colour, visible

TICK = 0.5
"""Seconds between two looks at the clock, and at whether the terminal is still there."""

NARROW = 80
"""How many columns a terminal has that does not know its width."""


class Editor:
    """A `Person` with prompt_toolkit; `awaited` says what is waited for, from another thread."""

    def __init__(
        self,
        heard: Callable[[Heard], None],
        awaited: Callable[[], str | None],
        commands: Iterable[str],
    ) -> None:
        self.awaited, self.commands = awaited, sorted(commands)
        self._heard = heard
        self._rows = Rows()
        self._said: deque[Piece | Entered] = deque()
        self._running: Running | None = None
        self._left = False

    async def run(self) -> None:
        token = trio.lowlevel.current_trio_token()

        def hear(what: Heard) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._heard, what)

        async def edit() -> None:
            await trio.to_thread.run_sync(lambda: asyncio.run(self._edit(hear)))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(edit)
            try:
                await trio.sleep_forever()
            finally:
                self.leave()

    async def _edit(self, hear: Callable[[Heard], None]) -> None:
        self._running = running = Running(self, hear)
        try:
            if not self._left:
                await running.edit()
        finally:
            self._running = None

    def show(self, pieces: Sequence[Piece]) -> None:
        self._said.extend(pieces)
        if not self._soon(lambda running: running.write_soon()):
            columns = shutil.get_terminal_size((NARROW, 24)).columns - 1
            write(self.taken(max(2, columns), whole=True))

    def refresh(self) -> None:
        self._soon(lambda running: running.app.invalidate())

    def woken(self) -> None:
        self._soon(lambda running: running.take_terminal())

    def resized(self) -> None:
        self._soon(lambda running: running.resize())

    def leave(self) -> None:
        self._left = True
        self._soon(lambda running: running.leave())

    def _soon(self, action: Callable[[Running], None]) -> bool:
        """Have the editor's own thread do something; False once there is none."""
        running = self._running
        if running is None:
            return False
        try:
            running.loop.call_soon_threadsafe(action, running)
        except RuntimeError:  # its loop was closed this moment
            return False
        return True

    # What follows belongs to the editor's thread.

    def keep(self, entered: Entered) -> None:
        """Let a text that was entered stand above, in the order in which it came."""
        self._said.append(entered)

    def taken(self, columns: int, *, whole: bool = False) -> str:
        """What was said since, in rows that are whole; with `whole` also the last one."""
        text = ""
        while self._said:
            one = self._said.popleft()
            if isinstance(one, Piece) and one.kind != "aside":
                text += _lines(self._rows.add(visible(one.text), one.style, columns))
                continue
            text += _lines(self._rows.cut())
            text += _lines_of(one, columns)
        return text + (_lines(self._rows.cut()) if whole else "")

    def message(self) -> StyleAndTextTuples:
        """The row that is not whole yet, or what is waited for, and the prompt below it."""
        above: StyleAndTextTuples = [
            (_style(fragment.style), fragment.text) for fragment in self._rows.tail
        ]
        awaited = None if above else self.awaited()
        if awaited is not None:
            above = [(_style("dim"), f"({awaited})")]
        return [*above, ("", "\n"), ("", PROMPT)] if above else [("", PROMPT)]


class Running:
    """One run of the editor, in its own thread and event loop."""

    def __init__(self, editor: Editor, hear: Callable[[Heard], None]) -> None:
        self._editor, self._hear = editor, hear
        self.loop = asyncio.get_running_loop()
        self._written = asyncio.Event()
        self._free = asyncio.Lock()
        self._fd = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._fd)
        self._mode: list[Any] | None = None
        self._pasted = False
        self._output = _Output(sys.stdout, self._gone)
        session: PromptSession[str] = PromptSession(
            editor.message,
            multiline=True,
            prompt_continuation=MORE,
            completer=_Commands(editor.commands, lambda: self._pasted),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=past_lines(),
            key_bindings=key_bindings(self),
            erase_when_done=True,
            output=self._output,
        )
        self.app, self.buffer = session.app, session.default_buffer
        self.buffer.accept_handler = self._accept
        self.buffer.on_text_changed += self._changed
        self.buffer.on_cursor_position_changed += settle
        self.app.before_render += self._redraw_joined

    async def edit(self) -> None:
        """Take keys until `leave`, or until the terminal is gone."""
        self.loop.set_exception_handler(self._failed)
        with suppress(EOFError):  # there is nothing to read any more
            await self.app.run_async(self._begin, set_exception_handler=False, handle_sigint=False)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        elif self._can_exit:
            self.app.exit(exception=error)

    def _begin(self) -> None:
        for work in (self._write(), self._watch(), self._hold()):
            self.app.create_background_task(work)

    async def _hold(self) -> None:
        """Have pastes marked, and the terminal put right whatever happens, until the end."""
        self._mode = termios.tcgetattr(self._fd)  # the application has set it by now
        self._output.paste(True)
        try:
            with kept(self._fd, self._before):
                await asyncio.Event().wait()
        finally:
            self._output.paste(False)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            try:
                termios.tcgetattr(self._fd)
            except termios.error:
                self._gone()
            if self._editor.message()[:-1]:
                self.app.invalidate()

    def _gone(self) -> None:
        self._hear("gone")
        self.leave()

    def leave(self) -> None:
        """End the editor by its own exit call; safe to call again."""
        if self._can_exit:
            self.app.exit()

    @property
    def _can_exit(self) -> bool:
        future = self.app.future
        return future is not None and not future.done()

    def write_soon(self) -> None:
        self._written.set()

    async def _write(self) -> None:
        """Write what is said above the line, as it comes."""
        while True:
            await self._written.wait()
            async with self._free:
                self._written.clear()
                text = self._editor.taken(self._columns())
                if text:
                    self.app.renderer.erase()
                    self._output.write_raw(text)
                    self._output.flush()
                self.app.invalidate()
            await asyncio.sleep(0.01)  # what comes within it is written together

    def _columns(self) -> int:
        return max(2, self._output.get_size().columns - 1)

    def resize(self) -> None:
        self.app.renderer.erase()
        self.app.invalidate()

    def take_terminal(self) -> None:
        """Have the editor's mode again, whatever it was meanwhile."""
        if self._mode is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, self._mode)
            self._output.paste(True)
            self.app.renderer.reset()
            self.app.invalidate()

    # What keys do.

    def interrupt(self) -> None:
        """Clear the line here and now, before what is typed next; or have it interrupted."""
        if self.buffer.text and self._editor.awaited() is None:
            self.buffer.reset()
        else:
            self._hear("interrupt")

    def end_of_input(self) -> None:
        self._hear("leave")

    def paste(self, text: str) -> None:
        """Put a text in as it is. One that a command does not stand before is never a command."""
        before = self.buffer.document.text_before_cursor
        if not (before.startswith("/") and any(map(str.isspace, before))):
            self._pasted = True
        self.buffer.insert_text(text.replace("\r\n", "\n").replace("\r", "\n"))

    def suspend(self) -> None:
        """Give the terminal back and stop, until the shell lets this process go on."""
        self.app.create_background_task(self._suspend())

    async def _suspend(self) -> None:
        async with self._free, in_terminal():
            self._output.paste(False)
            os.kill(0, signal.SIGTSTP)
            await asyncio.sleep(0.2)  # the stop may come a moment later, or not at all
            self._output.paste(True)

    def _accept(self, buffer: Buffer) -> bool:
        text = buffer.text
        if text.strip():
            entered = Entered(text, text.startswith("/") and not self._pasted)
            self._editor.keep(entered)
            self.write_soon()
            self._hear(entered)
            if text.startswith("/") and not entered.command:
                buffer.text = f" {text}"  # so that it is text also out of the history
        return False

    def _changed(self, buffer: Buffer) -> None:
        self._pasted = self._pasted and bool(buffer.text)

    def _redraw_joined(self, _app: object) -> None:
        """Draw all of it anew where a terminal may have put the cursor elsewhere than was counted.

        Its way back to the left edge is right in any case, and so is what is drawn from there on.
        """
        if some_are_joined(self.buffer.text) or some_are_joined(self._above()):
            self.app.renderer.erase()

    def _above(self) -> str:
        return "".join(fragment[1] for fragment in self._editor.message())


class _Commands(Completer):
    """Completes the name of a command where one is being typed."""

    def __init__(self, names: Sequence[str], pasted: Callable[[], bool]) -> None:
        self._names, self._pasted = names, pasted

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - the library's signature
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and not self._pasted():
            for name in self._names:
                if name.startswith(text[1:]):
                    yield Completion(f"/{name} ", start_position=-len(text), display=f"/{name}")


class _Output(Vt100_Output):
    """The terminal; bracketed paste is switched by `paste` alone, and a lost terminal is told."""

    def __init__(self, stdout: Any, gone: Callable[[], None]) -> None:
        size = Vt100_Output.from_pty(stdout).get_size
        super().__init__(stdout, size, os.environ.get("TERM"), enable_bell=False, enable_cpr=False)
        self._gone = gone

    def enable_bracketed_paste(self) -> None:
        """The renderer does it with each picture."""

    def disable_bracketed_paste(self) -> None:
        """The renderer does it with each picture."""

    def paste(self, on: bool) -> None:
        """Have the terminal mark what is pasted, or not."""
        self.write_raw("\x1b[?2004h" if on else "\x1b[?2004l")
        self.flush()

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._gone()


def _lines(rows: Iterable[Row]) -> str:
    return "".join(f"{as_text(row)}\n" for row in rows)


def _lines_of(one: Piece | Entered, columns: int) -> str:
    """What was said aside, and how a text that was entered stands in the record."""
    if isinstance(one, Entered):
        shown = visible(one.text).replace("\n", f"\n{MORE}")
        return f"{PROMPT}{shown}\n"
    rows = (row for line in one.text.split("\n")[:-1] for row in wrap(line, columns) or [""])
    return "".join(f"{row}\n" for row in rows)


def _style(colour: str | None) -> str:
    return "" if colour is None or not has_colour() else colour
