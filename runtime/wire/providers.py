"""Providers: where a model lives, how it is spoken to and which key it wants.

A record holds the name of a key's variable and never the key, so no log and no error can show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import attrs

from refold.runtime.errors import Refused
from refold.runtime.stream.failures import Failure, LlmFailure
from refold.runtime.wire.format import WireFormat
from refold.runtime.wire.known_formats import CODECS, NEWEST, without_version


@attrs.define(eq=False)
class InvalidProvider(Refused):
    """A provider record that no request could be sent with."""

    name: str
    problem: str

    def __str__(self) -> str:
        return f"provider {self.name!r} {self.problem}"


@attrs.define(eq=False)
class UnknownProvider(Refused):
    """A provider name that is neither built in nor configured."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"there is no provider {self.name!r}; use one of {', '.join(self.known)}, "
            "or describe yours in refold.toml"
        )


@attrs.define(eq=False)
class InvalidModelName(Refused):
    """A model that is not named as PROVIDER/MODEL."""

    found: str

    def __str__(self) -> str:
        return (
            f"{self.found!r} does not name a provider and a model; "
            "write PROVIDER/MODEL, such as deepseek/deepseek-chat"
        )


def _check_codec(provider: Provider, _field: object, codec: str) -> None:
    if codec not in NEWEST:
        known = ", ".join(CODECS)
        raise InvalidProvider(
            provider.name, f"speaks {codec!r}, which this refold does not know; it knows {known}"
        )


def _check_base_url(provider: Provider, _field: object, base_url: str) -> None:
    if provider.codec == "script":
        return
    wrong = InvalidProvider(
        provider.name, "needs a base URL such as https://host/v1 with a valid host and port"
    )
    if any(char.isspace() or not char.isprintable() for char in base_url):
        raise InvalidProvider(
            provider.name, "has white space or a control character in its base URL; leave it out"
        )
    if "?" in base_url or "#" in base_url:  # the requests' path would go behind it
        raise InvalidProvider(
            provider.name,
            "has a query (?) or a fragment (#) in its base URL, which a request's path cannot "
            "follow; leave it out, and name a key's variable in key_env",
        )
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # parsed, and refused, only when it is read
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise wrong
    if parts.username or parts.password:
        raise InvalidProvider(
            provider.name, "has a password in its base URL; name a variable in key_env instead"
        )


def _frozen(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(fields))


@attrs.frozen
class Provider:
    """One provider; pure data that holds the name of a key's variable and never the key.

    `codec` names the wire format that it speaks: `chat`, or `script` for a scripted model. A
    version in it, as in `chat/1`, is left out: requests are written in a format's newest one.
    `quirks` goes into `config.extra["refold"]`, where the format reads it and the log keeps it;
    `defaults` are body fields that every request starts from. Without `keep_alive` each request
    has a connection of its own. Raises `InvalidProvider` for an unknown codec, and for a base URL
    that is not http(s) or that holds a password, a query, a fragment or white space.
    """

    name: str
    codec: str = attrs.field(converter=without_version, validator=_check_codec)
    base_url: str = attrs.field(default="", validator=_check_base_url)
    key_env: str | None = None
    quirks: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen)
    defaults: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen)
    keep_alive: bool = True

    @property
    def format(self) -> WireFormat:
        """What its requests are written in."""
        return NEWEST[self.codec]


# llama.cpp looks for a peer that left only when it has something to send, hence the pings; and it
# sometimes closes a kept connection just as the next request arrives.
_LOCAL = Provider(
    name="local",
    codec="chat",
    base_url="http://127.0.0.1:8080/v1",
    defaults={"sse_ping_interval": 1, "cache_prompt": True},
    keep_alive=False,
)
_DEEPSEEK = Provider(
    name="deepseek",
    codec="chat",
    base_url="https://api.deepseek.com",
    key_env="DEEPSEEK_API_KEY",
)
_OPENAI = Provider(
    name="openai",
    codec="chat",
    base_url="https://api.openai.com/v1",
    key_env="OPENAI_API_KEY",
    quirks={"maxTokensKey": "max_completion_tokens"},
)
_OPENROUTER = Provider(
    name="openrouter",
    codec="chat",
    base_url="https://openrouter.ai/api/v1",
    key_env="OPENROUTER_API_KEY",
)
_OLLAMA = Provider(name="ollama", codec="chat", base_url="http://127.0.0.1:11434/v1")

BUILT_IN: Mapping[str, Provider] = MappingProxyType(
    {provider.name: provider for provider in (_LOCAL, _DEEPSEEK, _OPENAI, _OPENROUTER, _OLLAMA)}
)
"""The providers that need no configuration, by name."""


def split_model(model: str) -> tuple[str, str]:
    """`deepseek/deepseek-chat` as provider and model; the model may hold further slashes.

    Raises `InvalidModelName`.
    """
    provider, _, name = model.partition("/")
    if not provider or not name:
        raise InvalidModelName(model)
    return provider, name


def find_provider(name: str, extra: Sequence[Provider] = ()) -> Provider:
    """The provider called `name`, where `extra` wins over built in; raises `UnknownProvider`."""
    known = {**BUILT_IN, **{provider.name: provider for provider in extra}}
    if name not in known:
        raise UnknownProvider(name, tuple(sorted(known)))
    return known[name]


def spoken_by(provider: Provider | None) -> WireFormat:
    """What requests to a provider are written in; a scripted model (None) has no record."""
    return NEWEST["script"] if provider is None else provider.format


def read_key(provider: Provider, environ: Mapping[str, str]) -> str | None:
    """The provider's key from `environ` without the white space around it, or None without need.

    Raises `LlmFailure` MISSING_CREDENTIAL when it is absent, empty or cannot be sent in a header.
    """
    if provider.key_env is None:
        return None
    key = environ.get(provider.key_env, "").strip()
    if not key:
        raise _missing(f"set {provider.key_env} to your key for {provider.name}")
    if not is_sendable(key):
        raise _missing(
            f"{provider.key_env} holds characters that a key cannot have; "
            f"set it to your key for {provider.name} and nothing else"
        )
    return key


def is_sendable(key: str) -> bool:
    """Whether `key` may stand in a header: HTTP libraries quote a bad one in their errors."""
    return key.isascii() and key.isprintable() and " " not in key


def _missing(message: str) -> LlmFailure:
    return LlmFailure(Failure("MISSING_CREDENTIAL", message))
