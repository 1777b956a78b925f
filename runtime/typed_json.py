"""attrs <-> JSON: camelCase on disk, snake_case in Python, nothing guessed.

Structuring is strict: no coercion between types, no unknown keys, no `null` where a value is
merely optional (absent is the only spelling of absent). Whatever does not fit raises
`Misfit`; callers turn that into a refusal that names the event.

Python checks no types, so an attrs object may hold anything. Unstructuring takes what it finds;
it is `read_back` that makes a value fit to be written: it structures the JSON form again, as a
reader of the log will, and gives the object that a reader gets. What a live program goes on with
is therefore what a replay finds, lists become tuples, and nothing that is written is unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs
import cattrs
import orjson
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from refold.runtime.json import Json, check, clean_text, encode
from refold.runtime.messages import BLOCKS, Block
from refold.runtime.stream.chunks import CHUNKS, Chunk

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
            raise Misfit(f"expected {kind.__name__}, got {_shown(value)}")
        return value

    return structure


def _shown(value: object) -> str:
    """A value for a sentence: its text where that is short, else its type."""
    if type(value) is str and len(value) <= 40 and value.isprintable():
        return repr(value)
    return type(value).__name__


def _number(value: object, _type: Any) -> object:
    if type(value) not in (int, float):
        raise Misfit(f"expected a number, got {type(value).__name__}")
    return value


def _literal_factory(kind: Any) -> Callable[[object, Any], object]:
    known = frozenset(get_args(kind))

    def one_of(value: object, _type: Any) -> object:
        # The type first: a subclass of text may be equal to anything.
        if type(value) is not str or value not in known:
            wanted = ", ".join(map(str, get_args(kind)))
            raise Misfit(f"expected one of {wanted}, got {_shown(value)}")
        return value

    return one_of


def _open_json(value: object, _type: Any) -> Json:
    if type(value) is Json:  # not from a line: a value that is about to be written
        check(value)
        return value
    return Json.of(value)


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
        if value is None or (type(value) is Json and value.encoded == b"null"):
            raise Misfit("null stands for nothing here; leave the key out")
        return hook(value, inner)

    return present


def _tagged(table: Mapping[str, type]) -> Callable[[object, Any], object]:
    hooks: dict[object, Callable[[Any, Any], object]] = {}  # filled late: blocks hold blocks

    def structure(value: object, _type: Any) -> object:
        if type(value) is not dict:
            raise Misfit(f"expected an object with a type, got {_shown(value)}")
        fields = dict(value)
        tag = fields.pop("type", None)
        cls = table.get(tag) if type(tag) is str else None
        if cls is None:
            raise Misfit(f"unknown type {_shown(tag)}")
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
        if type(value) is not dict:
            raise Misfit(f"expected an object, got {_shown(value)}")
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


def _is_choice(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is Literal and all(type(choice) is str for choice in get_args(kind))


_converter.register_structure_hook_factory(attrs.has, _structure_factory)
_converter.register_unstructure_hook_factory(attrs.has, _unstructure_factory)
_converter.register_structure_hook_factory(_is_tuple, _items_factory)
for _kind in (str, int, bool):
    _converter.register_structure_hook(_kind, _exact(_kind))
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook_func(lambda kind: kind == Block, _tagged(BLOCKS))
_converter.register_structure_hook_func(lambda kind: kind == Chunk, _tagged(CHUNKS))
_converter.register_structure_hook_factory(
    _is_choice,
    _literal_factory,
)
_converter.register_structure_hook(Json, _open_json)
_converter.register_unstructure_hook(Json, lambda value: value)


_HOOKS: dict[type, Callable[[object, Any], Any]] = {}


def structure(value: object, cls: type[T]) -> T:
    """Build `cls` from parsed JSON; raises `Misfit` with the reason.

    Classes that a program registered may raise anything; here it means that the value does not fit.
    """
    try:
        hook = _HOOKS.get(cls)
        if hook is None:
            hook = _HOOKS[cls] = _converter.get_structure_hook(cls)
        return hook(value, cls)  # type: ignore[no-any-return]  # a hook makes what it was asked for
    except KeyError as error:
        raise Misfit(f"lacks {error.args[0]!r}") from None
    except Exception as error:  # noqa: BLE001 - as said
        raise Misfit(_sentence(error)) from None


def _sentence(error: Exception) -> str:
    """The text of an error in one line; one of a registered class may be no text at all."""
    try:
        return " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - `__str__` is code of that class too
        return type(error).__name__


def unstructure(value: object) -> Any:
    """The JSON form of an attrs value; open JSON inside is a fragment of its own bytes."""
    return _mapped(_converter.unstructure(value), Json, lambda held: orjson.Fragment(held.encoded))


def canonical(value: object) -> bytes:
    """The canonical compact bytes of an attrs value: fields in their order, absent left out."""
    return encode(_converter.unstructure(value))


def read_back(value: T, *, own: bool = True) -> tuple[bytes, T]:
    """The canonical bytes of an attrs value, and what a reader makes of them.

    `own` says that the class is one of ours, whose fields keep nothing that they do not check, so
    that the JSON form need not go through its bytes. Raises `Misfit`, `NotLosslessJson`.
    """
    cls = type(value)
    form = _form_of(value)
    encoded = encode(form)
    try:
        return encoded, structure(form if own else orjson.loads(encoded), cls)
    except Misfit as misfit:
        raise _placed(form, cls, misfit) from None


def cleaned(value: T) -> T:
    """What a reader makes of an attrs value whose texts come from outside.

    Each lone surrogate becomes U+FFFD. Raises `Misfit`, `NotLosslessJson`.
    """
    cls = type(value)
    form = _mapped(_form_of(value), str, clean_text)
    check(form)
    try:
        return structure(form, cls)
    except Misfit as misfit:
        raise _placed(form, cls, misfit) from None


def _mapped(form: Any, leaf: type, change: Callable[[Any], Any]) -> Any:
    """A JSON form with each leaf of one type changed."""
    kind = type(form)
    if kind is leaf:
        return change(form)
    if kind is dict:
        return {key: _mapped(item, leaf, change) for key, item in form.items()}
    if kind is tuple or kind is list:
        return tuple(_mapped(item, leaf, change) for item in form)
    return form


def _form_of(value: object) -> Any:
    """The JSON form of what may hold anything: a property, a comparison may run and fail."""
    if not attrs.has(type(value)):
        raise Misfit(f"expected an instance of an attrs class, got {type(value).__name__}")
    try:
        return _converter.unstructure(value)
    except Exception:  # noqa: BLE001 - whatever it is, the value has not the shape of its class
        raise _culprit(value) from None


def _culprit(value: object) -> Misfit:
    """Which field of `value` has no JSON form."""
    cls: Any = type(value)
    for field in attrs.fields(cls):
        found: object = None
        try:
            found = getattr(value, field.name)
            _converter.unstructure(found, unstructure_as=field.type)
        except Exception:  # noqa: BLE001 - as in `_form_of`
            return Misfit(f"{camel(field.name)} cannot be {type(found).__name__}")
    return Misfit(f"{cls.__name__} has no JSON form")


def _placed(form: Any, cls: Any, misfit: Misfit) -> Misfit:
    """The misfit with the field that it is about."""
    for field in attrs.fields(cls):
        name = camel(field.name)
        if name in form:
            try:
                _converter.structure(form[name], field.type)
            except Exception:  # noqa: BLE001 - it is the field that does not fit
                return Misfit(f"{name}: {misfit}")
    return misfit
