"""refold: LLM agents whose every request is a fold of an append-only session log."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from refold.actors.agent import Agent as Agent
    from refold.actors.asking import Asked as Asked
    from refold.actors.asking import Pending as Pending
    from refold.actors.context import Context as Context
    from refold.actors.context import Progress as Progress
    from refold.actors.kernel import ActorCrashed as ActorCrashed
    from refold.actors.kernel import ActorStopped as ActorStopped
    from refold.actors.log.seam_log import SeamLog as SeamLog
    from refold.actors.request.invariants import InvariantViolation as InvariantViolation
    from refold.actors.request.script import Answer as Answer
    from refold.actors.request.script import Call as Call
    from refold.actors.request.script import Delay as Delay
    from refold.actors.request.script import End as End
    from refold.actors.request.script import Fail as Fail
    from refold.actors.request.script import Hang as Hang
    from refold.actors.request.script import Piece as Piece
    from refold.actors.request.script import Say as Say
    from refold.actors.request.script import Script as Script
    from refold.actors.request.script import Think as Think
    from refold.actors.runtime import Runtime as Runtime
    from refold.actors.runtime import open_runtime
    from refold.actors.tools import Ge as Ge
    from refold.actors.tools import Le as Le
    from refold.actors.tools import MaxLen as MaxLen
    from refold.actors.tools import MinLen as MinLen
    from refold.actors.tools import Outcome as Outcome
    from refold.actors.tools import Pattern as Pattern
    from refold.actors.tools import Tool as Tool
    from refold.actors.tools import tool as tool
    from refold.actors.turn.consult import SeamMisused as SeamMisused
    from refold.actors.turn.options import AgentOptions as AgentOptions
    from refold.actors.turn.options import Budgets as Budgets
    from refold.actors.turn.options import InvalidOption as InvalidOption
    from refold.actors.turn.prompt_wait import NoSuchPrompt as NoSuchPrompt
    from refold.actors.turn.prompt_wait import PromptRemoved as PromptRemoved
    from refold.actors.turn.seams import CallView as CallView
    from refold.actors.turn.seams import Deny as Deny
    from refold.actors.turn.seams import GoOn as GoOn
    from refold.actors.turn.seams import PromptView as PromptView
    from refold.actors.turn.seams import Reject as Reject
    from refold.actors.turn.seams import Seams as Seams
    from refold.actors.turn.seams import StepView as StepView
    from refold.actors.turn.seams import Stop as Stop
    from refold.actors.turn.seams import Submit as Submit
    from refold.actors.turn.seams import TurnView as TurnView
    from refold.asyncio_bridge import from_asyncio as from_asyncio
    from refold.config import load_config as load_config
    from refold.config import load_tools as load_tools
    from refold.runtime.config import Config as Config
    from refold.runtime.envelope import InBatch as InBatch
    from refold.runtime.envelope import Replace as Replace
    from refold.runtime.envelope import draft as draft
    from refold.runtime.errors import InvalidArgument as InvalidArgument
    from refold.runtime.errors import RefoldError as RefoldError
    from refold.runtime.events import ContextMessage as ContextMessage
    from refold.runtime.events import ToolError as ToolError
    from refold.runtime.messages import Message as Message
    from refold.runtime.messages import Source as Source
    from refold.runtime.messages import TextBlock as TextBlock
    from refold.runtime.messages import text_of as text_of
    from refold.runtime.prompt_ledger import Turn as Turn
    from refold.runtime.request_header import LlmCallConfig as LlmCallConfig
    from refold.runtime.rules.inbox import KeyConflict as KeyConflict
    from refold.runtime.stream.failures import Code as Code
    from refold.runtime.turn_calls import FinishedCall as FinishedCall
    from refold.runtime.wire.providers import Provider as Provider

    open = open_runtime  # noqa: A001 - `refold.open` is the name

_HOMES = {
    "ActorCrashed": "refold.actors.kernel",
    "ActorStopped": "refold.actors.kernel",
    "Agent": "refold.actors.agent",
    "AgentOptions": "refold.actors.turn.options",
    "Answer": "refold.actors.request.script",
    "Asked": "refold.actors.asking",
    "Budgets": "refold.actors.turn.options",
    "Call": "refold.actors.request.script",
    "CallView": "refold.actors.turn.seams",
    "Code": "refold.runtime.stream.failures",
    "Config": "refold.runtime.config",
    "Context": "refold.actors.context",
    "ContextMessage": "refold.runtime.events",
    "Delay": "refold.actors.request.script",
    "Deny": "refold.actors.turn.seams",
    "draft": "refold.runtime.envelope",
    "End": "refold.actors.request.script",
    "Fail": "refold.actors.request.script",
    "FinishedCall": "refold.runtime.turn_calls",
    "from_asyncio": "refold.asyncio_bridge",
    "Ge": "refold.actors.tools",
    "GoOn": "refold.actors.turn.seams",
    "Hang": "refold.actors.request.script",
    "InBatch": "refold.runtime.envelope",
    "InvalidArgument": "refold.runtime.errors",
    "InvalidOption": "refold.actors.turn.options",
    "InvariantViolation": "refold.actors.request.invariants",
    "KeyConflict": "refold.runtime.rules.inbox",
    "Le": "refold.actors.tools",
    "LlmCallConfig": "refold.runtime.request_header",
    "load_config": "refold.config",
    "load_tools": "refold.config",
    "MaxLen": "refold.actors.tools",
    "Message": "refold.runtime.messages",
    "MinLen": "refold.actors.tools",
    "NoSuchPrompt": "refold.actors.turn.prompt_wait",
    "open": "refold.actors.runtime",
    "Outcome": "refold.actors.tools",
    "Pattern": "refold.actors.tools",
    "Pending": "refold.actors.asking",
    "Piece": "refold.actors.request.script",
    "Progress": "refold.actors.context",
    "PromptRemoved": "refold.actors.turn.prompt_wait",
    "PromptView": "refold.actors.turn.seams",
    "Provider": "refold.runtime.wire.providers",
    "RefoldError": "refold.runtime.errors",
    "Reject": "refold.actors.turn.seams",
    "Replace": "refold.runtime.envelope",
    "Runtime": "refold.actors.runtime",
    "Say": "refold.actors.request.script",
    "Script": "refold.actors.request.script",
    "SeamLog": "refold.actors.log.seam_log",
    "SeamMisused": "refold.actors.turn.consult",
    "Seams": "refold.actors.turn.seams",
    "Source": "refold.runtime.messages",
    "StepView": "refold.actors.turn.seams",
    "Stop": "refold.actors.turn.seams",
    "Submit": "refold.actors.turn.seams",
    "text_of": "refold.runtime.messages",
    "TextBlock": "refold.runtime.messages",
    "Think": "refold.actors.request.script",
    "Tool": "refold.actors.tools",
    "tool": "refold.actors.tools",
    "ToolError": "refold.runtime.events",
    "Turn": "refold.runtime.prompt_ledger",
    "TurnView": "refold.actors.turn.seams",
}

_ROOMS = ("errors", "events", "faults", "logs", "stores", "testing")
"""Modules of refold for users, found as `refold.NAME` without an import of their own."""

__all__ = [*_HOMES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] - it is the table


def __getattr__(name: str) -> Any:
    """Public names are imported at first use: commands that only read logs never load Trio."""
    if name in _ROOMS:
        return importlib.import_module(f"refold.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    trio = sys.modules.get("trio")
    if trio is not None:  # there may be a run, whose Ctrl-C an import would lose; see `Whole`
        trio.lowlevel.enable_ki_protection(__getattr__)
    home = importlib.import_module(_HOMES[name])
    found = getattr(home, "open_runtime" if name == "open" else name)
    globals()[name] = found
    _name_loaded_classes()
    return found


def __dir__() -> list[str]:
    return sorted((*_HOMES, *_ROOMS))


def _name_loaded_classes() -> None:
    """Let every public class that is loaded by now say `refold` as its module.

    So tracebacks and reprs show the names that users import. Annotations are resolved first:
    later they would be looked up here, where they are not.
    """
    for name, home in _HOMES.items():
        found = getattr(sys.modules.get(home), name, None)
        if isinstance(found, type) and found.__module__ not in (__name__, "refold.errors"):
            if "__attrs_attrs__" in vars(found):
                attrs.resolve_types(found)
            found.__module__ = __name__
