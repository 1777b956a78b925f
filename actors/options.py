"""From what a user says of an agent to what its first call starts from (design 3.4, 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, TypedDict, get_args

import attrs

from actors.dispatch import Invariants
from actors.seams import Seams
from actors.step import Budgets, Options
from actors.tools import Tool, collect
from runtime import codec
from runtime.errors import Refused
from runtime.header import EpochHeader, LlmCallConfig
from runtime.json import Json
from runtime.stream.chunk_logging import ChunkLogging
from runtime.wire.providers import Provider, split_model, spoken_by


class AgentOptions(TypedDict, total=False):
    """What can be said of an agent at `start_agent`, `resume` and `fork`.

    `model` is PROVIDER/MODEL; `extra` are body fields of that provider, logged like the rest.
    `chunks` says how much of the stream is logged, `invariants` how requests are checked,
    `retries` how often a failed request is sent again (default 5), and `budgets` what one turn
    may take. On resume and fork, what is not given
    comes from the folded header; tools and seams are code and are given again.
    """

    model: str
    system: str
    tools: Sequence[Tool | Callable[..., Any]]
    temperature: float
    max_tokens: int
    stop: Sequence[str]
    extra: Mapping[str, Any]
    chunks: ChunkLogging
    seams: Seams
    invariants: Invariants
    retries: int
    budgets: Budgets


_KINDS: Mapping[str, type | UnionType] = {
    "model": str,
    "system": str,
    "temperature": float | int,
    "max_tokens": int,
    "extra": Mapping,
    "retries": int,
    "budgets": Budgets,
    "seams": Seams,
}
"""What no request or turn could be made of otherwise, long after it was said."""

_CHOICES = {"invariants": get_args(Invariants), "chunks": get_args(ChunkLogging)}


@attrs.define(eq=False)
class InvalidOption(Refused):
    """An option that no agent has, or with a value that it cannot have."""

    option: str
    problem: str

    def __str__(self) -> str:
        return f"{self.option!r} {self.problem}"


class ModelMissing(Refused):
    """An agent of which neither its starter nor its log says what model it has."""

    def __str__(self) -> str:
        return "an agent needs a model, and the log names none yet: give model='PROVIDER/MODEL'"


def configure(
    given: AgentOptions, folded: EpochHeader | None, find: Callable[[str], Provider | None]
) -> Options:
    """What an agent is made of: the given options over the folded header.

    `find` gives a provider's record by name, None for a scripted one; it raises for an unknown
    name. Raises `InvalidOption`, `InvalidModelName`, `DuplicateTool`, `InvalidTool`, and
    `NotLosslessJson` and `ExtraRefused` for what no request could hold.
    """
    check_options(given)
    options = Options(
        config=_config(given, None if folded is None else folded.config, find),
        system=given.get("system", "" if folded is None else folded.system),
        tools=collect(given.get("tools", ())),
        seams=given.get("seams", Seams()),
        budgets=given.get("budgets", Budgets()),
    )
    header = EpochHeader(options.config, options.system, options.schemas())
    codec.canonical(header)
    spoken_by(find(options.config.provider)).opening(header)
    return options


def check_options(given: AgentOptions) -> None:
    """Refuse what needs no log to be seen as wrong; raises `InvalidOption`, `DuplicateTool`."""
    collect(given.get("tools", ()))
    for name in given:
        _check_option(name, given.get(name))
    if "model" in given:
        split_model(given["model"])
    for field, limit in attrs.asdict(given.get("budgets", Budgets())).items():
        if limit is not None and not limit > 0:
            raise InvalidOption("budgets", f"has {field} {limit}; give it a number above 0 or None")
    if given.get("retries", 0) < 0:
        raise InvalidOption("retries", "must be at least 0")


def _check_option(name: str, value: object) -> None:
    if name not in AgentOptions.__annotations__:
        known = ", ".join(sorted(AgentOptions.__annotations__))
        raise InvalidOption(name, f"is no option of an agent; the options are {known}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InvalidOption(name, f"must be one of {', '.join(_CHOICES[name])}")
    if name in _KINDS and not isinstance(value, _KINDS[name]):
        raise InvalidOption(name, f"cannot be {type(value).__name__}")


def _config(
    given: AgentOptions, folded: LlmCallConfig | None, find: Callable[[str], Provider | None]
) -> LlmCallConfig:
    if "model" in given:
        provider, model = split_model(given["model"])
    elif folded is None:
        raise ModelMissing
    else:
        provider, model = folded.provider, folded.model
    base = folded or LlmCallConfig(provider, model=model)
    return attrs.evolve(
        base,
        provider=provider,
        model=model,
        temperature=given.get("temperature", base.temperature),
        max_tokens=given.get("max_tokens", base.max_tokens),
        stop=tuple(given["stop"]) if "stop" in given else base.stop,
        extra=_extra(given, base if base.provider == provider else None, find(provider)),
    )


def _extra(
    given: AgentOptions, base: LlmCallConfig | None, provider: Provider | None
) -> Json | None:
    """The provider's values: as logged while nothing is said, else its defaults and the given."""
    if "extra" not in given and base is not None and base.extra is not None:
        return base.extra
    fields: dict[str, Any] = {} if provider is None else dict(provider.defaults)
    fields.update(given.get("extra", {}))
    if provider is not None and provider.quirks:
        fields["refold"] = dict(provider.quirks)
    return Json.of(fields) if fields else None
