"""What a tool is: a function with the schema that a model sees and the rules of its calls.

Design 3.5. The schema comes from type hints (`actors.tools.schema`), the description from the
first paragraph of the docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args, overload

import attrs

from actors.tools.schema import InvalidTool, schema_of
from runtime.errors import Refused
from runtime.header import ToolSchema

Isolation: TypeAlias = Literal["task", "thread"]
"""Where a tool's body runs: on the Trio thread, or in a thread of its own."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider accepts as the name of a function."""


@attrs.define(eq=False)
class DuplicateTool(Refused):
    """Two tools of one agent have the same name; `first` and `second` are their functions."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        return (
            f"{self.first} and {self.second} are both offered as the tool {self.name!r}; leave one "
            "out, or give it another name with @tool(name=...)"
        )


@attrs.frozen
class Tool:
    """A function that a model may call; called itself, it is that function.

    `schema` is what the model sees; `read` turns the model's argument text into keyword arguments
    and raises `BadArguments`. `effects` means that a call must be durable in the log before
    the body starts, `parallel` that calls may overlap, `timeout` is in seconds. `isolation` says
    where the body runs, and `max_output` is how many characters of a text the model is shown.
    """

    schema: ToolSchema
    body: Callable[..., Any]
    read: Callable[[str], dict[str, Any]] = attrs.field(repr=False, eq=False)
    isolation: Isolation = "task"
    effects: bool = True
    parallel: bool = False
    timeout: float = 60.0
    max_output: int = 50_000

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def description(self) -> str:
        return self.schema.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(*args, **kwargs)


@overload
def tool(
    fn: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    effects: bool = True,
    parallel: bool = False,
    timeout: float = 60.0,
    isolation: Isolation = "task",
    max_output: int = 50_000,
) -> Tool: ...
@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    effects: bool = True,
    parallel: bool = False,
    timeout: float = 60.0,
    isolation: Isolation = "task",
    max_output: int = 50_000,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    effects: bool = True,
    parallel: bool = False,
    timeout: float = 60.0,
    isolation: Isolation = "task",
    max_output: int = 50_000,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of an async or plain function with type hints, as `@tool` or `@tool(...)`.

    A plain function runs on the Trio thread and holds up everything else there until it returns,
    or with `isolation="thread"` in a thread of its own. `name` is the function's own unless given;
    `timeout` is in seconds, `math.inf` for none. Raises `InvalidTool`.
    """

    def define(fn: Callable[..., Any]) -> Tool:
        parameters, read = schema_of(fn)
        named = fn.__name__ if name is None else name
        _check(fn, named, timeout)
        _check_place(fn, isolation, max_output)
        _check_switches(fn, effects=effects, parallel=parallel)
        schema = ToolSchema(named, _first_paragraph(fn), parameters)
        return Tool(schema, fn, read, isolation, effects, parallel, timeout, max_output)

    return define if fn is None else define(fn)


def _check(fn: Callable[..., Any], name: object, timeout: object) -> None:
    if type(name) is not str or not _NAME.fullmatch(name):
        shown = repr(name) if type(name) is str else type(name).__name__
        raise InvalidTool(
            _qualified(fn),
            f"would be the tool {shown}, which providers refuse; "
            "pass a name of 1 to 64 of the characters A-Z a-z 0-9 _ and -",
        )
    if type(timeout) not in (int, float) or not timeout > 0:  # type: ignore[operator]  # a number
        shown = str(timeout) if type(timeout) in (int, float) else type(timeout).__name__
        raise InvalidTool(
            _qualified(fn), f"has the timeout {shown}; give it a number of seconds above 0"
        )


def _check_place(fn: Callable[..., Any], isolation: object, max_output: object) -> None:
    known = get_args(Isolation)
    if type(isolation) is not str or isolation not in known:
        shown = repr(isolation) if type(isolation) is str else type(isolation).__name__
        raise InvalidTool(
            _qualified(fn), f"has the isolation {shown}; choose one of {', '.join(known)}"
        )
    if isolation == "thread" and inspect.iscoroutinefunction(fn):
        raise InvalidTool(
            _qualified(fn), "is async and cannot run in a thread; make it a plain function"
        )
    if type(max_output) is not int or max_output < 1:
        shown = str(max_output) if type(max_output) is int else type(max_output).__name__
        raise InvalidTool(
            _qualified(fn), f"has max_output {shown}; give it a number of characters above 0"
        )


def _check_switches(fn: Callable[..., Any], **switches: object) -> None:
    for name, value in switches.items():
        if type(value) is not bool:
            kind = type(value).__name__
            raise InvalidTool(_qualified(fn), f"has {name} of type {kind}; give it True or False")


def _first_paragraph(fn: Callable[..., Any]) -> str:
    paragraph, _, _ = (inspect.getdoc(fn) or "").partition("\n\n")
    return " ".join(paragraph.split())


def _qualified(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


def as_tool(value: Tool | Callable[..., Any]) -> Tool:
    """`value` itself where it is a tool, else the tool made of it; raises `InvalidTool`."""
    return value if isinstance(value, Tool) else tool(value)


def collect(tools: Sequence[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    """The tools of one agent in their canonical order, by name, as requests carry them.

    Raises `DuplicateTool`, `InvalidTool`.
    """
    found: dict[str, Tool] = {}
    for made in map(as_tool, tools):
        if made.name in found:
            bodies = (_qualified(found[made.name].body), _qualified(made.body))
            raise DuplicateTool(made.name, *bodies)
        found[made.name] = made
    return tuple(found[name] for name in sorted(found))
