"""Every error that refold raises on purpose, under one root: `RefoldError`.

`Refused` is what a rule forbids: nothing changed. `Broken` is what the world did, a disk, a
provider, another process: what was acknowledged stands. The text of each is one sentence that says
what to do, and its facts are attributes.
"""

from __future__ import annotations

from refold.actors.context import NotHere
from refold.actors.get_or_create import NotThatFork, OptionsDiffer
from refold.actors.kernel.errors import (
    ActorCrashed,
    ActorStopped,
    AskCycle,
    MailboxFull,
    RestartLimit,
)
from refold.actors.kernel.same_run import NoTrioRun, OtherRun
from refold.actors.leaving import Draining, NotClosed
from refold.actors.request.invariants import InvariantViolation
from refold.actors.request.model import NotAdmitted
from refold.actors.request.script import ScriptExhausted
from refold.actors.runtime import AgentOpen, RuntimeLeft
from refold.actors.tools.argument_shapes import BadArguments
from refold.actors.tools.definition import DuplicateTool
from refold.actors.tools.type_hints import InvalidTool
from refold.actors.turn.consult import SeamMisused
from refold.actors.turn.options import InvalidOption, ModelMissing, ToolsLeftOut
from refold.actors.turn.prompt_wait import NoSuchPrompt, NothingToRetry, PromptRemoved
from refold.config import ConfigUnreadable
from refold.runtime.config import InvalidConfig
from refold.runtime.divergence import UnknownCodec
from refold.runtime.errors import (
    Broken,
    HistoryUnbalanced,
    HistoryUnreadable,
    IdMismatch,
    InvalidArgument,
    InvalidEvent,
    InvalidHeader,
    InvalidSessionId,
    LegacyEvent,
    NoRequestHeader,
    NoSuchPosition,
    NoSuchStep,
    NotLosslessJson,
    ReentrantAppend,
    RefoldError,
    Refused,
    RuleBroken,
    SeqGap,
    SurfaceRefused,
    UnsupportedVersion,
)
from refold.runtime.rules.inbox import KeyConflict, KeyUsed
from refold.runtime.storage.errors import (
    AlreadyExists,
    EmptyBatch,
    Fenced,
    FileCorrupt,
    ForeignLog,
    LogClosed,
    LogCorrupt,
    LogFailed,
    NoForkPoint,
    NoStoreFile,
    NotFound,
    SeqMismatch,
    SessionBusy,
    StoreBusy,
    StoreFull,
    StoreRefused,
    TooLarge,
    Unavailable,
)
from refold.runtime.storage.kinds import NoSuchStore
from refold.runtime.stream.chunk_order import ChunkOrderBroken
from refold.runtime.stream.failures import LlmFailure
from refold.runtime.wire.format import ExtraRefused
from refold.runtime.wire.providers import InvalidModelName, InvalidProvider, UnknownProvider

__all__ = [
    "ActorCrashed",
    "ActorStopped",
    "AgentOpen",
    "AlreadyExists",
    "AskCycle",
    "BadArguments",
    "Broken",
    "ChunkOrderBroken",
    "ConfigUnreadable",
    "Draining",
    "DuplicateTool",
    "EmptyBatch",
    "ExtraRefused",
    "Fenced",
    "FileCorrupt",
    "ForeignLog",
    "HistoryUnbalanced",
    "HistoryUnreadable",
    "IdMismatch",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidEvent",
    "InvalidHeader",
    "InvalidModelName",
    "InvalidOption",
    "InvalidProvider",
    "InvalidSessionId",
    "InvalidTool",
    "InvariantViolation",
    "KeyConflict",
    "KeyUsed",
    "LegacyEvent",
    "LlmFailure",
    "LogClosed",
    "LogCorrupt",
    "LogFailed",
    "MailboxFull",
    "ModelMissing",
    "NoForkPoint",
    "NoRequestHeader",
    "NoStoreFile",
    "NoSuchPosition",
    "NoSuchPrompt",
    "NoSuchStep",
    "NoSuchStore",
    "NoTrioRun",
    "NotAdmitted",
    "NotClosed",
    "NotFound",
    "NotHere",
    "NotLosslessJson",
    "NotThatFork",
    "NothingToRetry",
    "OptionsDiffer",
    "OtherRun",
    "PromptRemoved",
    "ReentrantAppend",
    "RefoldError",
    "Refused",
    "RestartLimit",
    "RuleBroken",
    "RuntimeLeft",
    "ScriptExhausted",
    "SeamMisused",
    "SeqGap",
    "SeqMismatch",
    "SessionBusy",
    "StoreBusy",
    "StoreFull",
    "StoreRefused",
    "SurfaceRefused",
    "TooLarge",
    "ToolsLeftOut",
    "Unavailable",
    "UnknownCodec",
    "UnknownProvider",
    "UnsupportedVersion",
]
