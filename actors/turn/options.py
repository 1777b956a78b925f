"""From what a user says of an agent to what its first call starts from.

`parse_options` looks at what was given, once, where it was given; `Given.over` puts it over the
header that the log folds to, which may differ each time that a loop starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypedDict, cast, get_args

import attrs

from refold.actors.arguments import is_number
from refold.actors.request.dispatch import Invariants
from refold.actors.tools import Tool, collect
from refold.actors.turn.seams import Seams
from refold.runtime import typed_json
from refold.runtime.envelope import draft
from refold.runtime.errors import NotLosslessJson, RefoldError, Refused
from refold.runtime.json import Json, check
from refold.runtime.prompt_ledger import Tally
from refold.runtime.request_header import EpochHeader, LlmCallConfig, RequestHeader, ToolSchema
from refold.runtime.stream.chunk_logging import ChunkLogging
from refold.runtime.wire.providers import Provider, split_model, spoken_by


@attrs.frozen
class Budgets:
    """What one turn may take: steps, seconds, and tokens read and written; None is no limit.

    Time is up at once, whatever the turn is doing; steps and tokens are looked at after each step.
    """

    max_steps: int | None = 100
    max_seconds: float | None = None
    turn_tokens: int | None = None

    def spent(self, tally: Tally) -> Literal["steps", "tokens"] | None:
        """What a turn has used up after a step; seconds are not looked at here."""
        if self.max_steps is not None and tally.step >= self.max_steps:
            return "steps"
        tokens = tally.usage.total_input + (tally.usage.output_tokens or 0)
        return "tokens" if self.turn_tokens is not None and tokens >= self.turn_tokens else None


class AgentOptions(TypedDict, total=False):
    """What can be said of an agent at `start_agent`, `resume` and `fork`.

    `model` is PROVIDER/MODEL; `extra` are body fields of that provider, logged like the rest.
    `chunks` says how much of the stream is logged, `invariants` how requests are checked,
    `retries` how often a failed request is sent again (default 5), and `budgets` what one turn
    may take. `recoveries` (default 3) is how many recovery turns in a row may end with the program
    before what they were for is given up (see `Agent.retry`). `state` is JSON that tools and seams
    find as `Context.state`; it is not logged. On resume and fork, what is not given comes from the
    folded header; tools, seams and state are given again.
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
    recoveries: int
    budgets: Budgets
    state: Mapping[str, Any]


@attrs.frozen
class Options:
    """What an agent is made of; `config` is where the instance's first call starts from."""

    config: LlmCallConfig
    system: str
    tools: tuple[Tool, ...]
    seams: Seams
    budgets: Budgets

    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(tool.schema for tool in self.tools)


@attrs.define(eq=False)
class InvalidOption(Refused):
    """An option that no agent has, or with a value that it cannot have."""

    option: str
    problem: str

    def __str__(self) -> str:
        return f"{self.option!r} {self.problem}"


class ModelMissing(Refused):
    """An agent without a model: none was given at its start, and its log names none."""

    def __str__(self) -> str:
        return "an agent needs a model, and the log names none yet: give model='PROVIDER/MODEL'"


@attrs.define(eq=False)
class ToolsLeftOut(Refused):
    """A session whose model has been shown tools, opened again without a word about them."""

    tools: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the log names the tools {', '.join(map(repr, self.tools))}, whose code is given "
            "again: say tools=[...], or tools=() to go on without tools"
        )


@attrs.frozen
class Given:
    """What was said of an agent, found to be right; what was not said is None or empty."""

    model: tuple[str, str] | None
    system: str | None
    temperature: float | None
    max_tokens: int | None
    stop: tuple[str, ...] | None
    extra: Mapping[str, Any] | None
    tools: tuple[Tool, ...] | None
    seams: Seams
    budgets: Budgets
    chunks: ChunkLogging
    invariants: Invariants
    retries: int
    recoveries: int
    state: Mapping[str, Any]

    def over(self, folded: EpochHeader | None, find: Callable[[str], Provider | None]) -> Options:
        """What the agent is made of: what was said over the folded header.

        `find` gives a provider's record by name, None for a scripted one; it raises for an unknown
        name. Raises `ModelMissing`, `ToolsLeftOut`, and `NotLosslessJson`, `InvalidEvent` and
        `ExtraRefused` for what no request could hold.
        """
        system = self.system
        if system is None:
            system = "" if folded is None else folded.system
        config = self._config(None if folded is None else folded.config, find)
        if self.tools is None and folded is not None and folded.tools:
            raise ToolsLeftOut(tuple(tool.name for tool in folded.tools))
        options = Options(config, system, self.tools or (), self.seams, self.budgets)
        header = EpochHeader(config, system, options.schemas())
        draft(RequestHeader(header, "initial"))
        spoken_by(find(config.provider)).opening(header)
        return options

    def _config(
        self, folded: LlmCallConfig | None, find: Callable[[str], Provider | None]
    ) -> LlmCallConfig:
        if self.model is not None:
            provider, model = self.model
        elif folded is None:
            raise ModelMissing
        else:
            provider, model = folded.provider, folded.model
        base = folded or LlmCallConfig(provider, model=model)
        said = ("temperature", "max_tokens", "stop")
        fields = {name: getattr(self, name) for name in said if getattr(self, name) is not None}
        extra = self._extra(base if base.provider == provider else None, find(provider))
        return attrs.evolve(base, provider=provider, model=model, extra=extra, **fields)

    def _extra(self, base: LlmCallConfig | None, provider: Provider | None) -> Json | None:
        """The provider's values: as logged while nothing is said, else its defaults and ours."""
        if self.extra is None and base is not None and base.extra is not None:
            return base.extra
        fields: dict[str, Any] = {} if provider is None else dict(provider.defaults)
        fields.update(self.extra or {})
        if provider is not None and provider.quirks:
            fields["refold"] = dict(provider.quirks)
        return Json.of(fields) if fields else None


def parse_options(options: AgentOptions) -> Given:
    """Look at what is said of an agent; what needs the log to be judged is left to `Given.over`.

    Raises `InvalidOption`, `InvalidModelName`, `DuplicateTool`, `InvalidTool`, `NotLosslessJson`.
    """
    for name in options:
        if name not in AgentOptions.__annotations__:
            known = ", ".join(sorted(AgentOptions.__annotations__))
            raise InvalidOption(name, f"is no option of an agent; the options are {known}")
    read: dict[str, Any] = {}
    for name, reader in _READERS.items():
        if name in options:
            try:
                read[name] = reader(name, cast("Mapping[str, object]", options)[name])
            except RefoldError:
                raise
            except Exception as error:  # a value may be of a class that fails when it is looked at
                kind = type(error).__name__
                raise InvalidOption(name, f"cannot be read: looking at it raised {kind}") from error
    return Given(**{**_UNSAID, **read})


def _cannot_be(name: str, value: object, wanted: str) -> InvalidOption:
    return InvalidOption(name, f"cannot be {type(value).__name__}; give it {wanted}")


def _model(name: str, value: object) -> tuple[str, str]:
    return split_model(_text(name, value))


def _text(name: str, value: object) -> str:
    if type(value) is not str:
        raise _cannot_be(name, value, "text")
    return value


def _temperature(name: str, value: object) -> float:
    if type(value) is float and not math.isfinite(value):
        raise NotLosslessJson(f"$.{name}", f"the number {value}")
    if not is_number(value):
        raise _cannot_be(name, value, "a number")
    return value


def _integer(name: str, value: object) -> int:
    if type(value) is not int:
        raise _cannot_be(name, value, "an integer")
    return value


def _stop(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise _cannot_be(name, value, 'a list of texts, such as ["END"]')
    texts: tuple[object, ...] = tuple(value)
    for text in texts:
        if type(text) is not str:
            raise InvalidOption(name, f"cannot hold {type(text).__name__}; give it texts")
    return cast("tuple[str, ...]", texts)


def _extra(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _cannot_be(name, value, "a dict of body fields")
    return dict(value)


def _tools(name: str, value: object) -> tuple[Tool, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _cannot_be(name, value, "a list of tools")
    return tuple(attrs.evolve(tool, schema=_schema(name, tool)) for tool in collect(value))


def _schema(name: str, tool: Tool) -> ToolSchema:
    """What a reader of the header will find; a tool can be made by hand, of anything."""
    try:
        return typed_json.read_back(tool.schema)[1]
    except typed_json.Misfit as misfit:
        raise InvalidOption(name, f"holds a tool that no model can be shown: {misfit}") from None


def _seams(name: str, value: object) -> Seams:
    if type(value) is not Seams:
        raise _cannot_be(name, value, "refold.Seams(...)")
    return value


def _budgets(name: str, value: object) -> Budgets:
    if type(value) is not Budgets:
        raise _cannot_be(name, value, "refold.Budgets(...)")
    for field, limit in attrs.asdict(value).items():
        wanted = (int, float) if field == "max_seconds" else (int,)
        if limit is not None and not (type(limit) in wanted and limit > 0):
            shown = limit if type(limit) in (int, float) else type(limit).__name__
            raise InvalidOption(name, f"has {field} {shown}; give it a number above 0 or None")
    return value


def _state(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _cannot_be(name, value, "a dict of JSON")
    plain = _thawed(value)
    check(plain, f"$.{name}")
    state: Mapping[str, Any] = Json.of(plain).value
    return state


def _thawed(value: Any) -> Any:
    """Read-only JSON as the encoder takes it; the state of another context is some."""
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, list | tuple) else value


def _count(name: str, value: object) -> int:
    if _integer(name, value) < 0:
        raise InvalidOption(name, "must be at least 0")
    return cast("int", value)


def _one_of(choices: Any) -> Callable[[str, object], object]:
    def read(name: str, value: object) -> object:
        if type(value) is not str or value not in get_args(choices):
            raise InvalidOption(name, f"must be one of {', '.join(get_args(choices))}")
        return value

    return read


_READERS: Mapping[str, Callable[[str, object], object]] = {
    "model": _model,
    "system": _text,
    "tools": _tools,
    "temperature": _temperature,
    "max_tokens": _integer,
    "stop": _stop,
    "extra": _extra,
    "chunks": _one_of(ChunkLogging),
    "seams": _seams,
    "invariants": _one_of(Invariants),
    "retries": _count,
    "recoveries": _count,
    "budgets": _budgets,
    "state": _state,
}

_UNSAID: Mapping[str, Any] = {
    **dict.fromkeys(("model", "system", "temperature", "max_tokens", "stop", "extra")),
    "tools": None,
    "seams": Seams(),
    "budgets": Budgets(),
    "chunks": "coalesced",
    "invariants": "enforce",
    "retries": 5,
    "recoveries": 3,
    "state": MappingProxyType({}),
}
