"""From a function to a JSON schema and back: what a model may pass to a tool."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import orjson

from refold.actors.context import is_context
from refold.actors.tools.argument_shapes import BadArguments
from refold.actors.tools.results import SHOWN, unshowable
from refold.actors.tools.type_hints import Field, InvalidTool, Place, hints_of, object_of
from refold.runtime.json import Json

__all__ = ["BadArguments", "InvalidTool", "schema_of"]


def schema_of(fn: Callable[..., Any]) -> tuple[Json, Callable[[str], dict[str, Any]]]:
    """The JSON schema of a function's parameters, and the reader of a model's argument text.

    The reader turns the raw text (empty counts as `{}`) into keyword arguments and raises
    `BadArguments`. Raises `InvalidTool` where the signature cannot be put into a schema.
    """
    shape = object_of(_parameters(fn), lambda values, _path: values, Place(_name_of(fn)))

    def read(text: str) -> dict[str, Any]:
        values: dict[str, Any] = shape.read(_parse(text), "$")
        return values

    return Json.of(shape.schema), read


def _parse(text: str) -> object:
    try:
        return orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        raise BadArguments(f"$ is not valid JSON ({error})") from None


def _parameters(fn: Callable[..., Any]) -> Iterator[Field]:
    at = Place(_name_of(fn))
    problem = _problem(fn)
    if problem is not None:
        raise at.refusal(problem)
    hints, docs = hints_of(fn, at), _parameter_docs(inspect.getdoc(fn) or "")
    never = unshowable(hints.get("return", Any))
    if never is not None:
        raise at.refusal(f"returns {never}, which no model can be shown; return {SHOWN}")
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise at.field(name).refusal(
                "cannot be passed by name, as a model passes everything; "
                "declare each argument as a plain parameter"
            )
        if is_context(hints.get(name)):
            continue
        required = parameter.default is parameter.empty
        yield Field(name, hints.get(name, parameter.empty), required, docs.get(name))


def _problem(fn: Any) -> str | None:
    """Why no tool can be made of `fn`, whatever its hints say."""
    match fn:
        case type():
            return "is a class and is no function; write a `def` with type hints that makes one"
        case staticmethod():
            return "is a staticmethod; write @staticmethod above @tool, not below"
        case classmethod():
            bound = f"refold.tool({fn.__qualname__})"
            return f"is a classmethod; make the tool of a bound one, as in {bound}"
    if inspect.isroutine(fn) and not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        return "is built in and is no function; write a `def` with type hints that calls it"
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        return "is no function; write a `def` with type hints that calls it"
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        return "yields; return one value, and tell what comes meanwhile by refold.Context.progress"
    names = list(inspect.signature(fn).parameters)
    if fn.__name__ == "<lambda>" and names:
        return "is a lambda and has no type hints; write a `def` with type hints"
    if names[:1] == ["self"] and "self" not in fn.__annotations__:
        bound = f"refold.tool(obj.{fn.__name__})"
        return f"is a method of no object; make the tool of a bound one, as in {bound}"
    return None


def _name_of(fn: Callable[..., Any]) -> str:
    try:
        return ".".join(filter(None, (getattr(fn, "__module__", None), fn.__qualname__)))
    except Exception:  # noqa: BLE001 - anything may be given for a function
        return f"a value of type {type(fn).__name__}"


_SECTION = re.compile(r"^Args:\s*$", re.MULTILINE)
_ENTRY = re.compile(r"(\w+)(?: *\([^)]*\))?:(.*)")


def _parameter_docs(doc: str) -> dict[str, str]:
    """The entries of a docstring's `Args:` section, each joined to one line."""
    _, *section = _SECTION.split(doc, maxsplit=1)
    rest = "".join(section).lstrip("\n").splitlines()
    block = takewhile(lambda line: not line or line[0].isspace(), rest)
    docs: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent("\n".join(block)).splitlines():
        if entry := _ENTRY.match(line):
            name, line = entry.groups()  # noqa: PLW2901 - the rest of the line starts the text
        docs[name] = f"{docs.get(name, '')} {line.strip()}".strip()
    return docs
