"""What `refold.toml` says: from a parsed table to records.

Pure; the file is found and read by `refold.config`. Every refusal names the file and the key, and
never quotes a value that may be a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from refold.runtime.errors import NotLosslessJson, Refused
from refold.runtime.json import Json
from refold.runtime.request_header import EpochHeader, LlmCallConfig
from refold.runtime.storage.address import SCHEME, is_address
from refold.runtime.wire.format import QUIRKS, ExtraRefused
from refold.runtime.wire.known_formats import CODECS
from refold.runtime.wire.providers import InvalidModelName, InvalidProvider, Provider, split_model


@attrs.define(eq=False)
class InvalidConfig(Refused):
    """A configuration that cannot be used; `key` is a dotted path such as `providers.x.codec`."""

    path: str
    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.key} {self.problem}"


@attrs.frozen
class Config:
    """What a configuration file sets; what it leaves out is None or empty.

    `path` is the file. `store` is the address of a store, as `refold.open` takes it. `max_tokens`
    and `temperature` are those of `start_agent`. `tools` are
    names such as `package.module:function`; `providers` replace built-in ones of the same name.
    """

    path: Path | None = None
    store: str | None = None
    model: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    tools: tuple[str, ...] = ()
    providers: tuple[Provider, ...] = ()


def parse_config(table: Mapping[str, Any], path: Path) -> Config:
    """The configuration in a parsed TOML table; `path` names its file. Raises `InvalidConfig`."""
    return Config(path, **_read(_Place(path), table, _TOP))


@attrs.frozen
class _Place:
    """A key of the file, for the errors."""

    path: Path
    key: str = ""

    def under(self, key: str) -> _Place:
        return _Place(self.path, f"{self.key}.{key}" if self.key else key)

    def refuses(self, problem: str) -> InvalidConfig:
        return InvalidConfig(str(self.path), self.key, problem)


_Reader: TypeAlias = Callable[[_Place, Any], Any]

_SECRETS = re.compile(
    r"key|token|bearer|secret|password|credentials?|authorization"
    r"|.*(apikey|(api|auth|access|bearer)token|secretkey|clientsecret|password)"
)
_NO_SECRETS = "looks like a secret, which has no place here; name the key's variable in key_env"


def _read(at: _Place, value: Any, readers: Mapping[str, _Reader]) -> dict[str, Any]:
    table = _table(at, value)
    for key in table:
        if key not in readers:
            known = ", ".join(readers)
            raise at.under(key).refuses(
                _NO_SECRETS if _is_secret(key) else f"is no setting; the settings are {known}"
            )
    return {key: readers[key](at.under(key), inner) for key, inner in table.items()}


def _is_secret(key: str) -> bool:
    return _SECRETS.fullmatch(re.sub(r"[-_. ]", "", key.lower())) is not None


def _typed(kind: type, wanted: str) -> _Reader:
    def read(at: _Place, value: Any) -> Any:
        if type(value) is not kind:
            raise at.refuses(f"must be {wanted}")
        return value

    return read


_table = _typed(dict, "a table")
_list = _typed(list, "a list")
_text = _typed(str, "text")
_switch = _typed(bool, "true or false")


def _store(at: _Place, value: Any) -> str:
    text = str(_text(at, value))
    if not text.removeprefix(SCHEME) or "\0" in text or not is_address(text):
        raise at.refuses('must be a folder, such as "sessions", or sqlite:///FILE')
    return text


def _model(at: _Place, value: Any) -> str:
    try:
        split_model(_text(at, value))
    except InvalidModelName as refused:
        raise at.refuses(f"is no model: {refused}") from None
    return str(value)


def _max_tokens(at: _Place, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise at.refuses("must be a whole number above 0")
    return value


def _temperature(at: _Place, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise at.refuses("must be a number that is not below 0")
    return float(value)


def _tools(at: _Place, value: Any) -> tuple[str, ...]:
    return tuple(
        _tool(attrs.evolve(at, key=f"{at.key}[{number}]"), name)
        for number, name in enumerate(_list(at, value))
    )


def _tool(at: _Place, value: Any) -> str:
    module, colon, function = _text(at, value).partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), function)):
        raise at.refuses('must name a function, such as "package.module:function"')
    return str(value)


def _providers(at: _Place, value: Any) -> tuple[Provider, ...]:
    return tuple(
        _provider(at.under(name), name, inner) for name, inner in _table(at, value).items()
    )


def _provider(at: _Place, name: str, value: Any) -> Provider:
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        raise at.refuses("is no name for a provider; use the characters A-Z a-z 0-9 _ and -")
    fields = {"codec": "chat", **_read(at, value, _PROVIDER)}
    try:
        made = Provider(name, **fields)
    except InvalidProvider as refused:
        raise at.refuses(refused.problem) from None
    _check_encodable(at, made)
    return made


def _codec(at: _Place, value: Any) -> str:
    if _text(at, value) not in CODECS:
        raise at.refuses(f"must be one of {', '.join(CODECS)}")
    return str(value)


def _variable(at: _Place, value: Any) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", _text(at, value)) is None:
        raise at.refuses("must be the name of an environment variable, and not the key itself")
    return str(value)


def _open_table(at: _Place, value: Any) -> dict[str, Any]:
    _refuse_secrets(at, _table(at, value))
    return dict(value)


def _refuse_secrets(at: _Place, value: Any) -> None:
    # These values become part of the logged request header.
    if isinstance(value, list):
        for inner in value:
            _refuse_secrets(at, inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if _is_secret(key):
                raise at.under(key).refuses(_NO_SECRETS)
            _refuse_secrets(at.under(key), inner)


def _check_encodable(at: _Place, provider: Provider) -> None:
    """Refuse now what the first request would be refused for."""
    fields = dict(provider.defaults)
    if provider.quirks:
        fields[QUIRKS] = dict(provider.quirks)
    try:
        config = LlmCallConfig(provider.name, model="any", extra=Json.of(fields))
        provider.format.opening(EpochHeader(config))
    except NotLosslessJson as refused:
        where = _written_as(at, refused.path.removeprefix("$."))
        raise where.refuses(f"is {refused.found}, which a request cannot carry") from None
    except ExtraRefused as refused:
        raise _written_as(at, refused.key).refuses(refused.problem) from None


def _written_as(at: _Place, key: str) -> _Place:
    """Where the file has what `config.extra` has under `key`."""
    head, dot, rest = key.partition(".")
    return at.under(f"quirks{dot}{rest}" if head == QUIRKS else f"defaults.{key}")


_TOP: Mapping[str, _Reader] = {
    "store": _store,
    "model": _model,
    "system": _text,
    "max_tokens": _max_tokens,
    "temperature": _temperature,
    "tools": _tools,
    "providers": _providers,
}
_PROVIDER: Mapping[str, _Reader] = {
    "base_url": _text,
    "key_env": _variable,
    "codec": _codec,
    "keep_alive": _switch,
    "defaults": _open_table,
    "quirks": _open_table,
}
