"""Lossless JSON: what may enter a log, and the value that holds open JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import attrs
import orjson

from refold.runtime.errors import NotLosslessJson

MAX_DEPTH = 200
"""Deepest nesting that may be written: what can be loaded must also be writable again."""

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def check(value: object, path: str = "$", depth: int = 0) -> None:
    """Raise `NotLosslessJson` with a JSON path unless `value` survives a round trip.

    Refused: NaN, infinities, -0.0, integers outside -2^63 .. 2^64-1, lone surrogates, keys that
    are not text, anything but the JSON types, and nesting deeper than `MAX_DEPTH` (so cycles
    too). Tuples count as lists.
    """
    if depth > MAX_DEPTH:
        raise NotLosslessJson(path, f"nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if value is None or kind is bool or kind is orjson.Fragment:
        return
    checker = _CHECKS.get(kind)
    if checker is None:
        raise NotLosslessJson(path, f"of type {kind.__name__}")
    checker(value, path, depth)


def _check_text(value: str, path: str, _depth: int) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotLosslessJson(path, "text with a lone surrogate") from None


def _check_int(value: int, path: str, _depth: int) -> None:
    if not _INT_MIN <= value <= _INT_MAX:
        raise NotLosslessJson(path, "an integer outside -2^63 .. 2^64-1")


def _check_float(value: float, path: str, _depth: int) -> None:
    if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
        raise NotLosslessJson(path, f"the number {value}")


def _check_list(value: list[object] | tuple[object, ...], path: str, depth: int) -> None:
    for index, item in enumerate(value):
        check(item, f"{path}[{index}]", depth + 1)


def _check_dict(value: dict[object, object], path: str, depth: int) -> None:
    for key, item in value.items():
        if type(key) is not str:
            raise NotLosslessJson(path, f"a mapping with the key {key!r}, which is not text")
        _check_text(key, path, depth)
        check(item, f"{path}.{key}", depth + 1)


def _check_open(value: Json, path: str, _depth: int) -> None:
    try:
        sound = encode(orjson.loads(value.encoded)) == value.encoded
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise NotLosslessJson(path, "a Json whose bytes are no compact JSON (Json.of makes one)")


_CHECKS: dict[type, Callable[[Any, str, int], None]] = {
    str: _check_text,
    int: _check_int,
    float: _check_float,
    list: _check_list,
    tuple: _check_list,
    dict: _check_dict,
}


def encode(value: object) -> bytes:
    """The compact JSON bytes of a value that survives a round trip; raises `NotLosslessJson`.

    One look and the encoder itself find whatever is wrong; `check`, which keeps paths and takes
    several times as long, is asked only then, for the place.
    """
    if _is_plain(value, 0):
        try:
            return orjson.dumps(value, default=_fragment)
        except TypeError:  # a surrogate, an integer out of range, a key that is no text
            pass
    check(value)
    raise NotLosslessJson("$", f"of type {type(value).__name__}")


def _is_plain(value: Any, depth: int) -> bool:
    """Whether nothing in `value` passes the encoder that `check` refuses."""
    kind = type(value)
    if kind in _LEAVES:
        return depth <= MAX_DEPTH
    if kind is dict:
        items = value.values()
    elif kind is tuple or kind is list:
        items = value
    else:
        sound = kind is float and math.isfinite(value)
        return sound and (value != 0 or math.copysign(1, value) > 0)
    if depth >= MAX_DEPTH:
        return not items and depth == MAX_DEPTH
    for item in items:  # noqa: SIM110 - a generator would cost as much again
        if type(item) not in _LEAVES and not _is_plain(item, depth + 1):
            return False
    return True


def _fragment(value: object) -> orjson.Fragment:
    if isinstance(value, Json):
        return orjson.Fragment(value.encoded)
    raise TypeError


def freeze(value: Any) -> Any:
    """A read-only view of parsed JSON: mappings refuse assignment, lists become tuples."""
    if isinstance(value, dict):
        return MappingProxyType({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list):
        return tuple(freeze(item) for item in value)
    return value


@attrs.frozen
class Json:
    """An open JSON value, immutable all the way down.

    It keeps its key order and its bytes: two values are equal when their bytes are. `value` is a
    read-only view, built anew at each access.
    """

    encoded: bytes

    @classmethod
    def of(cls, value: object) -> Json:
        """Hold `value`; raises `NotLosslessJson`."""
        return cls(encode(value))

    @property
    def value(self) -> Any:
        return freeze(orjson.loads(self.encoded))

    def thaw(self) -> Any:
        """A fresh mutable copy of the value."""
        return orjson.loads(self.encoded)


_CHECKS[Json] = _check_open

_LEAVES = frozenset({str, int, bool, type(None), Json, orjson.Fragment})
"""What holds nothing further; the encoder itself refuses the texts and integers that it cannot."""


def clean_text(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD, as text from outside must be."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def said_by(error: Exception) -> str:
    """What an error of anybody's code says, as text that a log can hold: its class, its words."""
    name = type(error).__name__
    try:
        return clean_text(f"{name}: {error}")
    except Exception:  # noqa: BLE001 - `__str__` is code of that class too
        return clean_text(name)


def parse(encoded: bytes) -> Any:
    """The value of JSON bytes; raises `ValueError`, which callers map: they know the place."""
    return orjson.loads(encoded)
