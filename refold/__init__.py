"""refold: LLM agents whose every request is a fold of an append-only session log."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.agent import Agent as Agent
    from actors.answers import NoSuchPrompt as NoSuchPrompt
    from actors.answers import PromptRemoved as PromptRemoved
    from actors.invariants import InvariantViolation as InvariantViolation
    from actors.kernel import ActorCrashed as ActorCrashed
    from actors.kernel import ActorStopped as ActorStopped
    from actors.options import AgentOptions as AgentOptions
    from actors.options import Budgets as Budgets
    from actors.options import InvalidOption as InvalidOption
    from actors.runtime import Runtime as Runtime
    from actors.runtime import open_runtime
    from actors.script import Call as Call
    from actors.script import Delay as Delay
    from actors.script import End as End
    from actors.script import Fail as Fail
    from actors.script import Hang as Hang
    from actors.script import Say as Say
    from actors.script import Script as Script
    from actors.script import Think as Think
    from actors.seam_log import SeamLog as SeamLog
    from actors.seams import CallView as CallView
    from actors.seams import Deny as Deny
    from actors.seams import GoOn as GoOn
    from actors.seams import PromptView as PromptView
    from actors.seams import Reject as Reject
    from actors.seams import SeamMisused as SeamMisused
    from actors.seams import Seams as Seams
    from actors.seams import StepView as StepView
    from actors.seams import Stop as Stop
    from actors.seams import Submit as Submit
    from actors.seams import TurnView as TurnView
    from actors.tools import Ge as Ge
    from actors.tools import Le as Le
    from actors.tools import MaxLen as MaxLen
    from actors.tools import MinLen as MinLen
    from actors.tools import Outcome as Outcome
    from actors.tools import Pattern as Pattern
    from actors.tools import Tool as Tool
    from actors.tools import tool as tool
    from refold.config import load_config as load_config
    from refold.config import load_tools as load_tools
    from runtime.config import Config as Config
    from runtime.envelope import InBatch as InBatch
    from runtime.envelope import Replace as Replace
    from runtime.envelope import draft as draft
    from runtime.errors import InvalidArgument as InvalidArgument
    from runtime.errors import RefoldError as RefoldError
    from runtime.events import ContextMessage as ContextMessage
    from runtime.events import ToolError as ToolError
    from runtime.header import LlmCallConfig as LlmCallConfig
    from runtime.messages import Message as Message
    from runtime.messages import Source as Source
    from runtime.messages import TextBlock as TextBlock
    from runtime.messages import text_of as text_of
    from runtime.rules.inbox import KeyConflict as KeyConflict
    from runtime.turns import Turn as Turn
    from runtime.wire.providers import Provider as Provider

    open = open_runtime  # noqa: A001 - `refold.open` is the name

_HOMES = {
    "ActorCrashed": "actors.kernel",
    "ActorStopped": "actors.kernel",
    "Agent": "actors.agent",
    "AgentOptions": "actors.options",
    "Budgets": "actors.options",
    "Call": "actors.script",
    "CallView": "actors.seams",
    "Config": "runtime.config",
    "ContextMessage": "runtime.events",
    "Delay": "actors.script",
    "Deny": "actors.seams",
    "draft": "runtime.envelope",
    "End": "actors.script",
    "Fail": "actors.script",
    "Ge": "actors.tools",
    "GoOn": "actors.seams",
    "Hang": "actors.script",
    "InBatch": "runtime.envelope",
    "InvalidArgument": "runtime.errors",
    "InvalidOption": "actors.options",
    "InvariantViolation": "actors.invariants",
    "KeyConflict": "runtime.rules.inbox",
    "Le": "actors.tools",
    "LlmCallConfig": "runtime.header",
    "load_config": "refold.config",
    "load_tools": "refold.config",
    "MaxLen": "actors.tools",
    "Message": "runtime.messages",
    "MinLen": "actors.tools",
    "NoSuchPrompt": "actors.answers",
    "open": "actors.runtime",
    "Outcome": "actors.tools",
    "Pattern": "actors.tools",
    "PromptRemoved": "actors.answers",
    "PromptView": "actors.seams",
    "Provider": "runtime.wire.providers",
    "RefoldError": "runtime.errors",
    "Reject": "actors.seams",
    "Replace": "runtime.envelope",
    "Runtime": "actors.runtime",
    "Say": "actors.script",
    "Script": "actors.script",
    "SeamLog": "actors.seam_log",
    "SeamMisused": "actors.seams",
    "Seams": "actors.seams",
    "Source": "runtime.messages",
    "StepView": "actors.seams",
    "Stop": "actors.seams",
    "Submit": "actors.seams",
    "text_of": "runtime.messages",
    "TextBlock": "runtime.messages",
    "Think": "actors.script",
    "Tool": "actors.tools",
    "tool": "actors.tools",
    "ToolError": "runtime.events",
    "Turn": "runtime.turns",
    "TurnView": "actors.seams",
}

__all__ = [*_HOMES]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] - it is the table


def __getattr__(name: str) -> Any:
    """Public names are imported at first use: commands that only read logs never load Trio."""
    if name not in _HOMES:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    found = getattr(home, "open_runtime" if name == "open" else name)
    globals()[name] = found
    return found


def _refuse_shadowed_packages() -> None:
    """`runtime` and `actors` are common names; say so when another module hides one of ours."""
    for name in ("runtime", "actors"):
        spec = importlib.util.find_spec(name)
        found = "nothing" if spec is None or spec.origin is None else spec.origin
        beside = Path(__file__).parent.parent / name / "__init__.py"
        if not Path(found).exists() or not beside.samefile(found):
            raise ImportError(
                f"refold needs its own package {name!r} at {beside}, but Python finds {found}; "
                "rename or move that module"
            )


_refuse_shadowed_packages()
