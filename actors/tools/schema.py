"""From a function to a JSON schema and back: what a model may pass to a tool."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import orjson

from refold.actors.context import context_parameters
from refold.actors.tools.argument_shapes import BadArguments
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
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        raise at.refusal("is no function; write a `def` with type hints that calls it")
    hints, docs = hints_of(fn, at), _parameter_docs(inspect.getdoc(fn) or "")
    contexts = context_parameters(fn)
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise at.field(name).refusal(
                "cannot be passed by name, as a model passes everything; "
                "declare each argument as a plain parameter"
            )
        if name in contexts:
            continue
        required = parameter.default is parameter.empty
        yield Field(name, hints.get(name, parameter.empty), required, docs.get(name))


def _name_of(fn: Callable[..., Any]) -> str:
    try:
        return f"{fn.__module__}.{fn.__qualname__}"
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
