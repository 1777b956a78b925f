"""Write docs/events.md from the classes of the event catalogue.

python docs/generate.py            write it
python docs/generate.py --check    fail when it is not what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # a checkout that is not installed
    sys.path.insert(0, str(ROOT))

from refold.runtime import events, rules  # noqa: E402 - the line above makes it importable
from refold.runtime.json import Json  # noqa: E402 - as above
from refold.runtime.messages import BLOCKS, Block  # noqa: E402 - as above
from refold.runtime.stream.chunks import CHUNKS, Chunk  # noqa: E402 - as above
from refold.runtime.typed_json import camel  # noqa: E402 - as above

TARGET = Path(__file__).with_name("events.md")

HEAD = """\
# Events

<!-- Written by docs/generate.py from the classes of runtime/events.py; change those. -->

A session's log is a file of JSON lines. The first line is the session's header, each other line
one event: `type`, `seq` (from 0, without gaps), `time` (epoch milliseconds; a label, never an
order) and `data`, whose shape depends on the type and is given below. Surface events, those that
become messages, have one or two more keys:

- `surfaceOp`: `"append"`, or `{"op": "replace", "start": A, "end": B}` for an event that takes the
  place of the surface events from the one at seq A to the one at seq B;
- `sourceEventSeqs`: the seqs that the event comes from, such as that of a result's `tool/call`.

The keys `crc`, `dur` and `left` frame the line in the file: its checksum, the highest seq that was
durable when it was written, and how many lines of its batch follow.

A field marked *optional* is left out when there is nothing to say; it is never `null`. A type that
this list does not have is kept as it is and reaches no model.

Versions of refold read each other's logs. An event that says where the log stands (turns, steps,
calls, seals, inbox, compaction, owner) may have more fields and other kinds than are given here:
it is read by its type and the fields that are needed, and kept as it is. Where a needed one is
missing, the log can be read, `refold check` names the place, and `resume` and `fork` refuse the
history with the last end of a turn before it. A surface event, a request header and the keys of a
line are read to the letter, since a model is shown what they say.
"""

RULES = """\
## The rules: what an event may be after those before it

The log writer refuses an event that breaks one of these, and nothing changes; of a log from
elsewhere, `refold check` reports each by its number.
"""

PLAIN: dict[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    NoneType: "null",
    Json: "any JSON",
}


def document() -> str:
    """The whole text of docs/events.md."""
    surface = "Surface events: each becomes one message of the requests after it"
    others = {name: cls for name, cls in events.CATALOGUE.items() if name not in events.SURFACE}
    parts = [HEAD, RULES, *_rules(), *_chapter(surface, events.SURFACE)]
    parts += _chapter("Log events: everything else that happened", others)
    parts += ["## Shapes inside events\n", *_union("Block", BLOCKS), *_union("Chunk", CHUNKS)]
    parts += [_section(cls.__name__, cls, 3) for cls in _inner_shapes()]
    return "\n".join(parts)


def _rules() -> Iterator[str]:
    """The rules and their reasons, as they stand above the code."""
    _, numbered, reasons, *_ = inspect.cleandoc(rules.__doc__ or "").split("\n\n")
    yield f"{numbered}\n"
    yield f"{reasons}\n"


def _chapter(title: str, table: dict[str, type]) -> Iterator[str]:
    yield f"## {title}\n"
    for name, cls in table.items():
        yield _section(f"`{name}`", cls, 3)


def _union(name: str, table: dict[str, type]) -> Iterator[str]:
    yield f"### {name}\n\nOne of these, told apart by its `type`.\n"
    for tag, cls in table.items():
        yield _section(f'`"type": "{tag}"`', cls, 4)


def _section(title: str, cls: type, level: int) -> str:
    lines = [f"{'#' * level} {title}", ""]
    if about := _about(cls):
        lines += [about, ""]
    attrs.resolve_types(cls)
    for field in attrs.fields(cls):
        optional = field.default is not attrs.NOTHING
        shape = _shape(_without_none(field.type) if optional else field.type)
        lines.append(f"- `{camel(field.name)}`: {shape}{', optional' if optional else ''}")
    return "\n".join([*lines, ""])


def _about(cls: type) -> str:
    """The class's own docstring, with its fields as the log spells them."""
    found = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
    return re.sub(r"`([a-z]+_[a-z_]+)`", lambda name: f"`{camel(name[1])}`", found)


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return Union[tuple(arg for arg in get_args(kind) if arg is not NoneType)]  # noqa: UP007 - made


def _shape(kind: Any) -> str:
    if kind == Block:
        return "[Block](#block)"
    if kind == Chunk:
        return "[Chunk](#chunk)"
    if attrs.has(kind) and kind is not Json:
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return f"list of {_shape(arguments[0])}"
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_shape, arguments))
    return PLAIN[kind]


def _inner_shapes() -> list[type]:
    """The attrs classes that stand in fields of events, blocks and chunks, by name."""
    outer: list[Any] = [*events.CATALOGUE.values(), *BLOCKS.values(), *CHUNKS.values()]
    seen: list[Any] = []
    waiting = list(outer)
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.append(kind)
            waiting += _parts(kind)
    inner = [kind for kind in seen if attrs.has(kind) and kind is not Json and kind not in outer]
    return sorted(inner, key=lambda cls: str(cls.__name__))


def _parts(kind: Any) -> list[Any]:
    if not attrs.has(kind):
        return [arg for arg in get_args(kind) if not isinstance(arg, str)]
    return [] if kind is Json else [field.type for field in attrs.fields(attrs.resolve_types(kind))]


def main(arguments: list[str]) -> int:
    written = document()
    if arguments == ["--check"]:
        if TARGET.exists() and TARGET.read_text("utf-8") == written:
            return 0
        sys.stderr.write("docs/events.md is stale; run python docs/generate.py\n")
        return 1
    TARGET.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
