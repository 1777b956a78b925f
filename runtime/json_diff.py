"""Where two requests part, by JSON pointer."""

from __future__ import annotations

from typing import Any

import attrs
import orjson

from refold.runtime import typed_json
from refold.runtime.request import Request


@attrs.frozen
class Difference:
    """The first place where two JSON values differ.

    `path` is a JSON pointer; `expected` and `got` are the JSON texts there, cut to 200
    characters, `absent` where one side has nothing.
    """

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path or '/'}: expected {self.expected}, got {self.got}"


_ABSENT = object()


def first_difference(expected: Any, got: Any, path: str = "") -> Difference | None:
    """The first difference of two parsed JSON values in document order; None where equal.

    Key order counts, since it reaches the wire.
    """
    if isinstance(expected, dict) and isinstance(got, dict):
        return _in_objects(expected, got, path)
    if isinstance(expected, list) and isinstance(got, list):
        return _in_lists(expected, got, path)
    if type(expected) is type(got) and expected == got:
        return None
    return Difference(path, _short(expected), _short(got))


def _in_objects(expected: dict[str, Any], got: dict[str, Any], path: str) -> Difference | None:
    for key in [*expected, *(key for key in got if key not in expected)]:
        pointer = f"{path}/{_escaped(key)}"
        found = first_difference(expected.get(key, _ABSENT), got.get(key, _ABSENT), pointer)
        if found is not None:
            return found
    if list(expected) != list(got):
        return Difference(path, f"keys {_short(list(expected))}", f"keys {_short(list(got))}")
    return None


def _in_lists(expected: list[Any], got: list[Any], path: str) -> Difference | None:
    for index in range(max(len(expected), len(got))):
        one = expected[index] if index < len(expected) else _ABSENT
        other = got[index] if index < len(got) else _ABSENT
        found = first_difference(one, other, f"{path}/{index}")
        if found is not None:
            return found
    return None


def _short(value: object) -> str:
    if value is _ABSENT:
        return "absent"
    text = orjson.dumps(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}..."


def request_as_json(request: Request) -> Any:
    """A request as the JSON that its canonical bytes spell."""
    return orjson.loads(request.canonical_bytes())


def compare_requests(expected: Request, got: Request) -> Difference | None:
    """The first path where two requests differ, `/config/...`, `/tools/...`, `/messages/...`."""
    return first_difference(request_as_json(expected), request_as_json(got))


def compare_headers(one: object, other: object) -> list[Difference]:
    """Every top-level field, every field of `config` and every tool in which two headers differ.

    A tool is the one of its name wherever it stands; that the order changed is told by itself, as
    one difference of `/tools`.
    """
    left, right = (_flat(orjson.loads(typed_json.canonical(header))) for header in (one, other))
    found = []
    for path in [*left, *(path for path in right if path not in left)]:
        difference = first_difference(left.get(path, _ABSENT), right.get(path, _ABSENT), path)
        if difference is not None:
            found.append(difference)
    orders = [[path for path in side if path in left and path in right] for side in (left, right)]
    before, after = ([path for path in paths if path.startswith(_TOOLS)] for paths in orders)
    if before != after:
        found.append(Difference(_TOOLS[:-1], _order(before), _order(after)))
    return found


_TOOLS = "/tools/"


def _flat(header: dict[str, Any]) -> dict[str, Any]:
    config, tools = header.pop("config"), header.pop("tools", [])
    flat = {f"/config/{key}": value for key, value in config.items()}
    flat |= {f"/{key}": value for key, value in header.items()}
    # Of one name there is one tool; in a log that another program wrote there may be more.
    counts: dict[str, int] = {}
    for tool in tools:
        name = str(tool.get("name"))
        counts[name] = counts.get(name, 0) + 1
        again = "" if counts[name] == 1 else f" ({counts[name]})"
        flat[_TOOLS + _escaped(name) + again] = tool
    return flat


def _order(paths: list[str]) -> str:
    return _short([path.removeprefix(_TOOLS) for path in paths])


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
