"""The first line of a log: what a session says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import attrs

from refold.runtime import typed_json
from refold.runtime.errors import (
    IdMismatch,
    InvalidArgument,
    InvalidHeader,
    InvalidSessionId,
    UnsupportedVersion,
)

VERSION = 0

HEADER_BYTES = 1 << 20
"""No header's line is longer, its newline included, so nobody reads on for the end of one."""

_ID = re.compile(r"[A-Za-z0-9_@:][A-Za-z0-9_@.:-]{0,63}")

_IN_FILE_NAMES = {"@": "%40", ".": "%2E", ":": "%3A"}
"""How characters of ids stand in names of files, where a dot ends the id and some mean a place."""


Durability: TypeAlias = Literal["power", "process", "none"]
"""What an acknowledged event survives: the loss of power, the death of its process, or nothing."""


_LEVELS: tuple[Durability, ...] = get_args(Durability)


def stronger(one: Durability, other: Durability) -> Durability:
    """Of two levels the one that keeps more."""
    return one if _LEVELS.index(one) < _LEVELS.index(other) else other


@attrs.frozen
class SessionHeader:
    """What a log says of itself before its first event; version 0 is implied.

    `created_at` is epoch ms. A fork has `parent_session`, the number of events that it was
    seeded with, and the checksum of the last of them (eight hex digits).
    """

    id: str
    created_at: int
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: int | None = None
    seed_crc: str | None = None
    delegation_depth: int | None = None
    name: str | None = None
    durability: Durability | None = None

    @property
    def level(self) -> Durability:
        """What its acknowledged events survive, where nobody asks for more."""
        return self.durability or "power"


_KEYS = frozenset(typed_json.camel(field.name) for field in attrs.fields(SessionHeader))


def check_session_id(id: str) -> str:  # noqa: A002 - the format calls it `id`
    """Return `id`; raises `InvalidSessionId` unless it is 1 to 64 of `A-Z a-z 0-9 _ @ . : -`.

    It begins with neither a dot nor a hyphen.

    Raises `InvalidArgument` for what is no text.
    """
    given: object = id
    if type(given) is not str:
        raise InvalidArgument("a session's id", f"must be text, not {type(given).__name__}")
    if not is_session_id(id):
        raise InvalidSessionId(id)
    return id


def is_session_id(name: str) -> bool:
    """Whether a session can be called that."""
    return _ID.fullmatch(name) is not None


def file_name(session_id: str) -> str:
    """What names of files begin with that belong to a session; it holds no dot."""
    return "".join(_IN_FILE_NAMES.get(char, char) for char in session_id)


def from_file_name(name: str) -> str:
    """The id that a file's name begins with; a name that no id has stays as it is."""
    found = name
    for char, written in _IN_FILE_NAMES.items():
        found = found.replace(written, char)
    return found if is_session_id(found) and file_name(found) == name else name


def unparse_header(header: SessionHeader) -> dict[str, Any]:
    """The JSON form of a header, keys in their order on disk."""
    return {"type": "session", "version": VERSION, **typed_json.unstructure(header)}


def parse_header(
    record: Mapping[str, Any], expected_id: str | None, *, foreign: bool = False
) -> SessionHeader:
    """A header from its JSON form, without its checksum.

    In a foreign log a missing version counts as 0, keys that we do not know are passed over, and
    ids may be placeholders: `expected_id` wins, and a parent's is left out. Raises
    `UnsupportedVersion`, `IdMismatch`, `InvalidHeader`, `InvalidSessionId`.
    """
    if record.get("type") != "session":
        raise InvalidHeader(f"its type is {record.get('type')!r}, not 'session'")
    _check_version(record.get("version", VERSION if foreign else None))
    fields = {key: value for key, value in record.items() if key not in ("type", "version")}
    if foreign:
        fields = {key: value for key, value in fields.items() if key in _KEYS}
        fields = _without_placeholders(fields, expected_id)
    return _checked(_structure(fields), expected_id)


def _without_placeholders(fields: dict[str, Any], expected_id: str | None) -> dict[str, Any]:
    kept = fields if expected_id is None else {**fields, "id": expected_id}
    parent = kept.get("parentSession")
    if isinstance(parent, str) and _ID.fullmatch(parent) is None:
        del kept["parentSession"]
    return kept


def _check_version(version: object) -> None:
    if type(version) is not int or version != VERSION:
        raise UnsupportedVersion(version, VERSION)


def _structure(fields: Mapping[str, Any]) -> SessionHeader:
    try:
        return typed_json.structure(fields, SessionHeader)
    except typed_json.Misfit as misfit:
        raise InvalidHeader(str(misfit)) from None


def _checked(header: SessionHeader, expected_id: str | None) -> SessionHeader:
    if expected_id is not None and header.id != expected_id:
        raise IdMismatch(expected_id, header.id)
    check_session_id(header.id)
    if header.parent_session is not None:
        check_session_id(header.parent_session)
    return header
