"""What a tool's call comes to: the blocks that a model is shown of a value or an error.

Whatever a body returned or raised becomes an `Outcome` that a log can hold. A text that is longer
than its tool allows loses its middle here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import attrs
import orjson

from refold.runtime import typed_json
from refold.runtime.events import ToolError
from refold.runtime.json import clean_text
from refold.runtime.messages import BLOCKS, Block, Message, TextBlock

MAX_ERROR = 2000
"""The most characters of an error's message that a model is shown."""


@attrs.frozen
class Outcome:
    """What a `tool/result` will say; `context` is shown to the model after all results."""

    content: tuple[Block, ...]
    is_error: bool
    error: ToolError | None
    context: tuple[Block, ...] = ()


def bounded(outcome: Outcome, limit: int) -> Outcome:
    """Cut each text block to `limit` characters: its head, a notice, its tail."""
    content = tuple(
        TextBlock(_cut(block.text, limit)) if isinstance(block, TextBlock) else block
        for block in outcome.content
    )
    return attrs.evolve(outcome, content=content)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    notice = f"\n[... {len(text) - limit} of {len(text)} characters left out; ask for less ...]\n"
    return text[:head] + notice + text[len(text) - tail :]


def failure(name: str, code: str, message: str) -> Outcome:
    if len(message) > MAX_ERROR:
        message = message[: MAX_ERROR - 1] + "…"
    text = clean_text(f"Error: {message}")
    return Outcome((TextBlock(text),), is_error=True, error=ToolError(clean_text(name), code))


def described(error: BaseException) -> tuple[str, str]:
    """The class and the text of an error; a group is its leaves."""
    leaves = list(_leaves(error))
    name = type(leaves[0] if len(leaves) == 1 else error).__name__
    return name, "; ".join(map(_describe_leaf, leaves))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _describe_leaf(error: BaseException) -> str:
    name, message = type(error).__name__, message_of(error)
    return f"{name}: {message}" if message else name


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` is code of the body too
        return "(its message cannot be read)"


def shown(value: object) -> Outcome:
    """The outcome of a body that returned `value`."""
    try:
        return Outcome(_content(value), is_error=False, error=None)
    except Exception as error:  # noqa: BLE001 - a value's own methods may raise anything
        _, reason = described(error)
        return failure(
            "InvalidToolOutput",
            "INVALID_TOOL_OUTPUT",
            f"the tool ran, but what it returned ({type(value).__name__}) cannot be shown; it must "
            "return text, None, a number, a bool, an attrs instance, a list or dict of these, or "
            f"message blocks, and decode bytes itself [{reason}]",
        )


_BLOCKS = tuple(BLOCKS.values())


def _content(value: Any) -> tuple[Block, ...]:
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        return (TextBlock(""),)
    if isinstance(value, str):
        return (_text(value),)
    parts: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) and value else (value,)
    if all(isinstance(part, _BLOCKS) for part in parts):
        return _checked(tuple(map(_cleaned, parts)))
    return (_text(json.dumps(value, default=_plain, **_COMPACT)),)


_COMPACT: dict[str, Any] = {
    "ensure_ascii": False,
    "allow_nan": False,
    "separators": (",", ":"),
}


def _text(value: str) -> TextBlock:
    return TextBlock(clean_text(str.__str__(value)))  # a subclass of str is no JSON text


def _cleaned(block: Block) -> Block:
    if isinstance(block, TextBlock) and isinstance(block.text, str):
        return _text(block.text)
    return block


def _checked(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """`blocks`, read back from JSON: a log that took a malformed one could not be read again."""
    encoded = typed_json.canonical(Message("user", blocks))
    return typed_json.structure(orjson.loads(encoded), Message).content


def _plain(value: Any) -> object:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
