"""What a tool is: a function with the schema that a model sees and the rules of its calls.

The schema comes from type hints (`refold.actors.tools.schema`), the description from the
first paragraph of the docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args, overload

import attrs

from refold.actors.context import context_parameters
from refold.actors.tools.schema import InvalidTool, schema_of
from refold.runtime.errors import Refused
from refold.runtime.request_header import ToolSchema

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
    contexts: tuple[str, ...] = attrs.field(
        default=attrs.Factory(lambda self: context_parameters(self.body), takes_self=True),
        init=False,
        repr=False,
        eq=False,
    )
    """The parameters of `body` that are given a `Context`."""

    @property
    def name(self) -> str:
        return self.schema.name

    @property
    def description(self) -> str:
        return self.schema.description

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(*args, **kwargs)


class ToolOptions(TypedDict, total=False):
    """What `@tool(...)` may say of a tool; what is left out is as `Tool` has it.

    `name` is the function's own unless given; `timeout` is in seconds, `math.inf` for none.
    """

    name: str | None
    effects: bool
    parallel: bool
    timeout: float
    isolation: Isolation
    max_output: int


@overload
def tool(fn: Callable[..., Any], /, **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(
    fn: None = None, /, **options: Unpack[ToolOptions]
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of an async or plain function with type hints, as `@tool` or `@tool(...)`.

    A plain function runs on the Trio thread and holds up everything else there until it returns,
    or with `isolation="thread"` in a thread of its own. The other options are those of `Tool`.
    Raises `InvalidTool`.
    """
    rules: dict[str, Any] = {key: value for key, value in options.items() if key != "name"}

    def define(fn: Callable[..., Any]) -> Tool:
        unknown = options.keys() - ToolOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(ToolOptions.__annotations__)
            raise InvalidTool(
                _qualified(fn), f"has the unknown option {min(unknown)!r}; there are {known}"
            )
        parameters, read = schema_of(fn)
        given = options.get("name")
        name = fn.__name__ if given is None else given
        made = Tool(ToolSchema(name, _first_paragraph(fn), parameters), fn, read, **rules)
        _check(made)
        return made

    return define if fn is None else define(fn)


def _check(made: Tool) -> None:
    """Raise `InvalidTool` for a name that providers refuse and for rules that cannot be kept.

    Whatever a caller gave is told by its text only where it is what was asked for.
    """
    known, problem = get_args(Isolation), None
    name: object = made.schema.name
    isolation: object = made.isolation
    timeout: Any = made.timeout
    limit: Any = made.max_output
    if type(name) is not str or not _NAME.fullmatch(name):
        problem = (
            f"would be the tool {_told(name, str)}, which providers refuse; "
            "pass a name of 1 to 64 of the characters A-Z a-z 0-9 _ and -"
        )
    elif type(timeout) not in (int, float) or not timeout > 0:  # so that NaN is caught too
        problem = (
            f"has the timeout {_told(timeout, int, float)}; give it a number of seconds above 0"
        )
    elif type(isolation) is not str or isolation not in known:
        problem = f"has the isolation {_told(isolation, str)}; choose one of {', '.join(known)}"
    elif isolation == "thread" and inspect.iscoroutinefunction(made.body):
        problem = "is async and cannot run in a thread; make it a plain function"
    elif type(limit) is not int or limit < 1:
        problem = f"has max_output {_told(limit, int)}; give it a number of characters above 0"
    for switch in ("effects", "parallel"):
        kind = type(getattr(made, switch))
        if kind is not bool:
            problem = problem or f"has {switch} of type {kind.__name__}; give it True or False"
    if problem is not None:
        raise InvalidTool(_qualified(made.body), problem)


def _told(value: object, *kinds: type) -> str:
    return repr(value) if type(value) in kinds else type(value).__name__


def _first_paragraph(fn: Callable[..., Any]) -> str:
    paragraph, _, _ = (inspect.getdoc(fn) or "").partition("\n\n")
    return " ".join(paragraph.split())


def _qualified(fn: Callable[..., Any]) -> str:
    return f"{fn.__module__}.{fn.__qualname__}"


def as_tool(value: Tool | Callable[..., Any]) -> Tool:
    """`value` itself where it is a tool, else the tool made of it; raises `InvalidTool`."""
    return value if isinstance(value, Tool) else tool()(value)  # None is no function either


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
