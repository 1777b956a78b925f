"""attrs <-> JSON: camelCase on disk, snake_case in Python, nothing guessed (design 2.1).

Structuring is strict: no coercion between types, no unknown keys, no `null` where a value is
merely optional (absent is the only spelling of absent). Whatever does not fit raises
`Misfit`; callers turn that into a refusal that names the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any, TypeVar, get_args, get_origin

import attrs
import cattrs
import orjson
from cattrs.errors import CattrsError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from runtime.json import Json, encode
from runtime.messages import BLOCKS, Block
from runtime.stream.chunks import CHUNKS, Chunk

T = TypeVar("T")


class Misfit(ValueError):
    """A JSON value does not have the shape of a class; for callers inside `runtime` only."""


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


_TAGS = {cls: tag for table in (BLOCKS, CHUNKS) for tag, cls in table.items()}

_converter = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)


def _exact(kind: type) -> Callable[[object, Any], object]:
    def structure(value: object, _type: Any) -> object:
        if type(value) is not kind:
            raise Misfit(f"expected {kind.__name__}, got {type(value).__name__}")
        return value

    return structure


def _number(value: object, _type: Any) -> object:
    if type(value) not in (int, float):
        raise Misfit(f"expected a number, got {type(value).__name__}")
    return value


# Hooks are looked up once a shape and not once a value: a log has many values of few shapes.


def _items_factory(kind: Any) -> Callable[[object, Any], tuple[object, ...]]:
    inner = get_args(kind)[0]
    hook = _converter.get_structure_hook(inner)

    def items(value: object, _type: Any) -> tuple[object, ...]:
        if not isinstance(value, list | tuple):
            raise Misfit(f"expected a list, got {type(value).__name__}")
        return tuple([hook(item, inner) for item in value])

    return items


def _present(kind: Any) -> Callable[[object, Any], object]:
    """An optional field that is there: `null` is no spelling of absent."""
    inner = reduce(or_, (arg for arg in get_args(kind) if arg is not type(None)))
    hook = _converter.get_structure_hook(inner)

    def present(value: object, _type: Any) -> object:
        if value is None:
            raise Misfit("null stands for nothing here; leave the key out")
        return hook(value, inner)

    return present


def _tagged(table: Mapping[str, type]) -> Callable[[object, Any], object]:
    hooks: dict[object, Callable[[Any, Any], object]] = {}  # filled late: blocks hold blocks

    def structure(value: object, _type: Any) -> object:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise Misfit("expected an object with a type")
        fields = dict(value)
        tag = fields.pop("type", None)
        cls = table.get(tag)
        if cls is None:
            raise Misfit(f"unknown type {value.get('type')!r}")
        hook = hooks.get(tag)
        if hook is None:
            hook = hooks[tag] = _converter.get_structure_hook(cls)
        return hook(fields, cls)

    return structure


def _overrides(cls: type) -> dict[str, Any]:
    attrs.resolve_types(cls)
    overrides = {}
    for field in attrs.fields(cls):
        optional = field.default is None and type(None) in get_args(field.type)
        overrides[field.name] = override(
            rename=camel(field.name),
            omit_if_default=field.default is not attrs.NOTHING,
            struct_hook=_present(field.type) if optional else None,
        )
    return overrides


def _structure_factory(cls: type) -> Callable[[Any, Any], Any]:
    inner: Callable[[Any, Any], Any] = make_dict_structure_fn(
        cls, _converter, _cattrs_forbid_extra_keys=True, **_overrides(cls)
    )

    def structure(value: object, kind: Any) -> Any:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise Misfit(f"expected an object, got {type(value).__name__}")
        return inner(value, kind)

    return structure


def _unstructure_factory(cls: type) -> Callable[[Any], Any]:
    inner: Callable[[Any], Any] = make_dict_unstructure_fn(cls, _converter, **_overrides(cls))
    tag = _TAGS.get(cls)
    if tag is not None:
        return lambda value: {"type": tag, **inner(value)}
    return inner if _required_first(cls) else _in_field_order(cls, inner)


def _required_first(cls: type) -> bool:
    required = [field.default is attrs.NOTHING for field in attrs.fields(cls)]
    return required == sorted(required, reverse=True)


def _in_field_order(cls: type, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """cattrs writes what is always there first; canonical bytes keep the order of the fields."""
    keys = [camel(field.name) for field in attrs.fields(cls)]

    def unstructure(value: Any) -> Any:
        fields = inner(value)
        return {key: fields[key] for key in keys if key in fields}

    return unstructure


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


_converter.register_structure_hook_factory(attrs.has, _structure_factory)
_converter.register_unstructure_hook_factory(attrs.has, _unstructure_factory)
_converter.register_structure_hook_factory(_is_tuple, _items_factory)
for _kind in (str, int, bool):
    _converter.register_structure_hook(_kind, _exact(_kind))
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook_func(lambda kind: kind == Block, _tagged(BLOCKS))
_converter.register_structure_hook_func(lambda kind: kind == Chunk, _tagged(CHUNKS))
_converter.register_structure_hook(Json, lambda value, _type: Json.of(value))
_converter.register_unstructure_hook(Json, lambda value: orjson.Fragment(value.encoded))


_HOOKS: dict[type, Callable[[object, Any], Any]] = {}


def structure(value: object, cls: type[T]) -> T:
    """Build `cls` from parsed JSON; raises `Misfit` with the reason, `NotLosslessJson`."""
    hook = _HOOKS.get(cls)
    if hook is None:
        hook = _HOOKS[cls] = _converter.get_structure_hook(cls)
    try:
        return hook(value, cls)  # type: ignore[no-any-return]  # a hook makes what it was asked for
    except (KeyError, TypeError, ValueError, CattrsError, ForbiddenExtraKeysError) as error:
        if isinstance(error, KeyError):
            raise Misfit(f"lacks {error.args[0]!r}") from None
        raise Misfit(str(error)) from None


def unstructure(value: object) -> Any:
    """The JSON form of an attrs value; open JSON inside stays a fragment of its own bytes."""
    return _converter.unstructure(value)


def canonical(value: object) -> bytes:
    """The canonical compact bytes of an attrs value: fields in their order, absent left out."""
    return encode(_converter.unstructure(value))
