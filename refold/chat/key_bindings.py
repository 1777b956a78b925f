"""Which key does what in a chat, beside what the line editor knows by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys

from refold.chat import clusters

if TYPE_CHECKING:
    from refold.chat.editor import Running


def key_bindings(running: Running) -> KeyBindings:
    """The keys while a text is typed; while one is searched for, the editor's own."""
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)
    for keys, action in _EDITING.items():
        bindings.add(*keys.split(), filter=typing)(_on_buffer(action))
    bindings.add("c-c", filter=typing)(lambda _event: running.interrupt())
    bindings.add("c-z", filter=typing)(lambda _event: running.suspend())
    bindings.add(Keys.BracketedPaste, filter=typing)(lambda event: running.paste(event.data))
    empty = Condition(lambda: not running.buffer.text)
    bindings.add("c-d", filter=typing & empty)(lambda _event: running.end_of_input())
    return bindings


def _on_buffer(action: Callable[[Buffer], object]) -> Callable[[KeyPressEvent], None]:
    def press(event: KeyPressEvent) -> None:
        action(event.current_buffer)

    return press


def _enter(buffer: Buffer) -> None:
    """Enter a text; a backslash at its end becomes a line end instead."""
    document = buffer.document
    if document.text_before_cursor.endswith("\\") and not document.text_after_cursor:
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


def _move(buffer: Buffer, by: int) -> None:
    buffer.cursor_position += by


_EDITING: Mapping[str, Callable[[Buffer], object]] = {
    "enter": _enter,
    "escape enter": lambda buffer: buffer.insert_text("\n"),
    "backspace": lambda buffer: buffer.delete_before_cursor(clusters.before(buffer)),
    "delete": lambda buffer: buffer.delete(clusters.after(buffer)),
    "c-d": lambda buffer: buffer.delete(clusters.after(buffer)),
    "left": lambda buffer: _move(buffer, -clusters.before(buffer)),
    "c-b": lambda buffer: _move(buffer, -clusters.before(buffer)),
    "right": lambda buffer: _move(buffer, clusters.after(buffer)),
    "c-f": lambda buffer: _move(buffer, clusters.after(buffer)),
}
