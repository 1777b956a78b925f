"""Reading structural events of another version: known types with other fields or kinds than ours.

Every version within format 0 reads the logs of every other, and all folds read an event alike: by
its type and the few fields that they need. What else it carries stands in its bytes and is kept
as it is. A field that no fold needs has a stand-in. Where a needed one is missing there is no
typed data, and a session cannot go on from there: nobody knows where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_origin

import attrs

from refold.runtime import typed_json
from refold.runtime.events import CATALOGUE, Trigger
from refold.runtime.json import Json
from refold.runtime.messages import USER, Source

STRUCTURAL: Mapping[str, Mapping[str, object]] = {
    "turn/start": {"trigger": Trigger("message", USER)},
    "turn/end": {},
    "step/start": {},
    "step/end": {},
    "tool/call": {"name": "", "arguments": ""},
    "request/sealed": {"invariants": "off"},
    "inbox/queued": {},
    "inbox/removed": {"outcome": "cancelled"},
    "compact/start": {"provider": "", "model": "", "range": (), "instruction": "", "digest": ""},
    "compact/summary": {
        "summary": "",
        "shadowed_range": (),
        "shadowed_seqs": (),
        "provider": "",
        "model": "",
    },
    "compact/end": {},
    "session/owner": {},
}
"""The types that say where a log stands, each with what stands in for fields that no fold needs."""

_ASIDE: Mapping[str, Mapping[str, object]] = {
    "approval/asked": {"turn": 0, "step": 0},
    "approval/decided": {"turn": 0, "step": 0, "decision": "denied", "by": ""},
}
"""As `STRUCTURAL`; but one that cannot be read is passed over: its call says what became of it."""


def read_odd(type_: str, data: object) -> object | None:
    """The typed data of a structural event that does not fit our class, None if that is too little.

    Unknown fields are left out, unknown kinds are kept as they are.
    """
    stand_ins = STRUCTURAL.get(type_, _ASIDE.get(type_))
    if stand_ins is None:
        return None
    try:
        return _lenient(data, CATALOGUE[type_], stand_ins)
    except typed_json.Misfit:
        return None


def missing_field(type_: str, data: object) -> str:
    """Which field keeps `read_odd` from reading an event, as its JSON key."""
    fields = data if isinstance(data, Mapping) else {}
    for field in attrs.fields(CATALOGUE[type_]):
        if field.default is attrs.NOTHING and field.name not in STRUCTURAL[type_]:
            try:
                _value(fields[typed_json.camel(field.name)], field.type)
            except (KeyError, typed_json.Misfit):
                return typed_json.camel(field.name)
    return "data"


def _lenient(data: object, cls: type, stand_ins: Mapping[str, object]) -> object:
    if not isinstance(data, Mapping):
        raise typed_json.Misfit("expected an object")
    attrs.resolve_types(cls)
    found = {}
    for field in attrs.fields(cls):
        key = typed_json.camel(field.name)
        try:
            found[field.name] = _value(data[key], field.type)
        except (KeyError, typed_json.Misfit):
            if field.name in stand_ins:
                found[field.name] = stand_ins[field.name]
            elif field.default is attrs.NOTHING:
                raise typed_json.Misfit(f"lacks a {key!r} that can be read") from None
    return cls(**found)


def _value(value: object, kind: Any) -> object:
    if kind is Source:  # it goes into messages, which are read strictly
        known = {field.name for field in attrs.fields(Source)}
        fields = value if isinstance(value, Mapping) else {}
        value = {key: item for key, item in fields.items() if key in known}
    elif get_origin(kind) is Literal:
        return typed_json.structure(value, str)
    elif attrs.has(kind) and kind is not Json:
        return _lenient(value, kind, {})
    return typed_json.structure(value, kind)
