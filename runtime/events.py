"""The event catalogue: the data of every type that refold writes.

`docs/events.md` is generated from these classes. `register` opens the catalogue to more log-only
types; a stored type that nobody registered is kept verbatim.
"""

from __future__ import annotations

from typing import Literal

import attrs

from refold.runtime.errors import InvalidEvent
from refold.runtime.json import Json
from refold.runtime.messages import Block, Provenance, Source
from refold.runtime.request_header import RequestHeader
from refold.runtime.stream.chunks import Chunk, Usage
from refold.runtime.stream.failures import Failure


@attrs.frozen
class Trigger:
    """What set a turn off."""

    kind: Literal["message", "injection", "recovery"]
    source: Source


@attrs.frozen
class TurnStart:
    turn: int
    trigger: Trigger


@attrs.frozen
class EndReason:
    """Why a turn ended; which fields are there depends on `kind`.

    `gave-up` stands in no log. A `Turn` says it of one that was interrupted, as were the recovery
    turns in a row that its agent allows: nothing answers its prompts until `Agent.retry`.
    """

    kind: Literal[
        "completed",
        "aborted",
        "error",
        "disposed",
        "max-tokens",
        "rejected",
        "budget",
        "interrupted",
        "gave-up",
    ]
    reason: str | None = None
    step: int | None = None
    message: str | None = None
    code: str | None = None
    limit: str | None = None


@attrs.frozen
class TurnEnd:
    turn: int
    reason: EndReason


@attrs.frozen
class StepStart:
    """The boundary: the step's messages are derived from the events strictly before it."""

    turn: int
    step: int


@attrs.frozen
class StepEnd:
    turn: int
    step: int


@attrs.frozen
class UserMessage:
    content: tuple[Block, ...]
    source: Source


@attrs.frozen
class ContextMessage:
    """Context that nobody typed; `raw` is shown as it is, else between context tags."""

    content: tuple[Block, ...]
    source: Source
    envelope: Literal["context", "raw"] | None = None
    meta: Json | None = None


@attrs.frozen
class SteeringMessage:
    """Input that joined a turn while it was running."""

    turn: int
    content: tuple[Block, ...]
    source: Source


@attrs.frozen
class AssistantMessage:
    """A model's finished answer; `interrupted` when only its visible text was kept."""

    turn: int
    step: int
    content: tuple[Block, ...]
    provenance: Provenance | None = None
    usage: Usage | None = None
    interrupted: bool | None = None


@attrs.frozen
class ToolError:
    name: str
    code: str


@attrs.frozen
class ToolResult:
    turn: int
    step: int
    call_id: str
    content: tuple[Block, ...]
    is_error: bool
    error: ToolError | None = None
    meta: Json | None = None


@attrs.frozen
class ToolCall:
    """A tool body is about to start; `arguments` is the raw text that the model produced.

    With effects, it starts once this is durable. Calls that wait for a place have none yet.
    """

    turn: int
    step: int
    call_id: str
    name: str
    arguments: str


@attrs.frozen
class AssistantChunk:
    """A piece of the stream, for reading and replay; no message is made from it."""

    turn: int
    step: int
    chunk: Chunk


@attrs.frozen
class PromptBlocked:
    content: tuple[Block, ...]
    source: Source
    reason: str


@attrs.frozen
class RequestSealed:
    """A request may have been sent from here on: its digests, both lowercase SHA-256 hex.

    `codec` is the version in which its body is written, such as `chat/2`; `wire_bytes` counts the
    body, `shared_prefix_bytes` what it has in common with the beginning of the last one.
    """

    turn: int
    step: int
    codec: str
    request_digest: str
    wire_digest: str
    wire_bytes: int
    shared_prefix_bytes: int
    invariants: Literal["full", "enforce", "audit", "off"]


@attrs.frozen
class LlmRetry:
    """The attempt's text is void; the same bytes are sent again after `delay_ms`."""

    turn: int
    step: int
    attempt: int
    failure: Failure
    delay_ms: int
    usage: Usage | None = None


@attrs.frozen
class InboxQueued:
    """Durable pending input, until a message cites it or `inbox/removed` names it.

    A prompt with `own_turn` shares its turn with no other prompt.
    """

    target: Literal["turn", "step"]
    kind: Literal["prompt", "steer", "inject"]
    content: tuple[Block, ...]
    source: Source
    idempotency_key: str | None = None
    own_turn: bool | None = None


@attrs.frozen
class InboxRemoved:
    """Input that no model saw: taken back, edited, or, as `rejected`, given up by its turn."""

    queued_seqs: tuple[int, ...]
    outcome: Literal["cancelled", "edited", "rejected"]


@attrs.frozen
class CompactStart:
    """A compaction bracket opens; `turn` is null between turns."""

    turn: int | None
    provider: str
    model: str
    range: tuple[int, ...]
    instruction: str
    digest: str
    max_tokens: int | None = None


@attrs.frozen
class CompactSummary:
    turn: int | None
    summary: str
    shadowed_range: tuple[int, ...]
    shadowed_seqs: tuple[int, ...]
    provider: str
    model: str
    max_tokens: int | None = None
    usage: Usage | None = None


@attrs.frozen
class CompactEnd:
    turn: int | None
    error: str | None = None


@attrs.frozen
class ApprovalAsked:
    turn: int
    step: int
    call_id: str


@attrs.frozen
class ApprovalDecided:
    turn: int
    step: int
    call_id: str
    decision: Literal["allowed", "denied"]
    by: str


@attrs.frozen
class Owner:
    """A process that writes a log; `boot` is the machine's boot id."""

    host: str
    pid: int
    boot: str


@attrs.frozen
class SessionOwner:
    """First event of each opening for writing: the fencing number and who holds it."""

    term: int
    owner: Owner | None = None


@attrs.frozen
class SessionReleased:
    term: int
    reason: str


@attrs.frozen
class SessionRecovered:
    """What an opening or a repair took from the log's end, and the file that keeps those bytes.

    With `lost-events` as its reason, no byte of the records was left to be kept.
    """

    dropped_bytes: int
    dropped_records: int
    reason: str
    quarantine: str | None = None


@attrs.frozen
class AgentSpawned:
    session: str
    call_id: str | None = None


@attrs.frozen
class AgentFinished:
    session: str
    reason: EndReason


@attrs.frozen
class Todo:
    content: str
    status: Literal["pending", "in_progress", "completed"]


@attrs.frozen
class TodoWrite:
    """The whole list; the last one wins."""

    todos: tuple[Todo, ...]


@attrs.frozen
class UnknownEvent:
    """A log-only event of a type that nobody registered, or of a foreign shape, kept verbatim."""

    json: Json


SURFACE: dict[str, type] = {
    "user/message": UserMessage,
    "context/message": ContextMessage,
    "steering/message": SteeringMessage,
    "assistant/message": AssistantMessage,
    "tool/result": ToolResult,
}
"""The five types that project to a message."""

CATALOGUE: dict[str, type] = {
    "turn/start": TurnStart,
    "turn/end": TurnEnd,
    "step/start": StepStart,
    "step/end": StepEnd,
    **SURFACE,
    "tool/call": ToolCall,
    "assistant/chunk": AssistantChunk,
    "prompt/blocked": PromptBlocked,
    "request/header": RequestHeader,
    "request/sealed": RequestSealed,
    "llm/retry": LlmRetry,
    "inbox/queued": InboxQueued,
    "inbox/removed": InboxRemoved,
    "compact/start": CompactStart,
    "compact/summary": CompactSummary,
    "compact/end": CompactEnd,
    "approval/asked": ApprovalAsked,
    "approval/decided": ApprovalDecided,
    "session/owner": SessionOwner,
    "session/released": SessionReleased,
    "session/recovered": SessionRecovered,
    "agent/spawned": AgentSpawned,
    "agent/finished": AgentFinished,
    "todo/write": TodoWrite,
}

FOLDED = frozenset(
    {
        *SURFACE,
        *("request/header", "turn/start", "turn/end", "inbox/queued", "inbox/removed"),
        *("compact/start", "compact/summary", "compact/end"),
    }
)
"""The types that matter to what a live log folds to once their step is over.

An opening reads these of earlier steps, and of others what it must not pass over.
"""

_TYPES: dict[type, str] = {cls: type_ for type_, cls in CATALOGUE.items()}

BUILT_IN = frozenset(CATALOGUE)
"""The types that are refold's own."""

LEGACY_TYPE = "request/header-delta"
"""A type that the format gave up before version 0 was fixed; no log may hold it."""

_RESERVED = frozenset({"session", LEGACY_TYPE})


def register(type_: str, cls: type) -> None:
    """Add a log-only event type whose data is the attrs class `cls`.

    Registering the same class under the same type again does nothing. Raises `InvalidEvent` when
    the type or the class is taken, when `cls` is no attrs class, and for what is no type's name.
    """
    name: object = type_
    if type(name) is not str or not name or not name.isprintable():
        raise InvalidEvent(
            type(type_).__name__, "is no name of a type; give printable text such as 'mine/note'"
        )
    if type_ in _RESERVED:
        raise InvalidEvent(type_, "is reserved; choose a name of your own")
    given: object = cls
    if not isinstance(given, type) or not attrs.has(cls):
        raise InvalidEvent(type_, "needs an attrs class for its data")
    if CATALOGUE.get(type_) is cls and type_ not in BUILT_IN:
        return
    if type_ in CATALOGUE:
        raise InvalidEvent(type_, "is registered already; choose a name of your own")
    if cls in _TYPES:
        raise InvalidEvent(type_, f"needs a class of its own: {cls.__name__} is {_TYPES[cls]!r}")
    CATALOGUE[type_] = cls
    _TYPES[cls] = type_


def type_of(data: object) -> str:
    """The event type whose data `data` is; raises `InvalidEvent` for a class nobody registered."""
    found = _TYPES.get(type(data))
    if found is None:
        raise InvalidEvent(
            type(data).__name__, "is not registered; call refold.runtime.events.register first"
        )
    return found
