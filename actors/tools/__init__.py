"""Tools: functions that a model may call, their schemas, and how one call is run."""

from __future__ import annotations

from refold.actors.tools.argument_bounds import Ge, Le, MaxLen, MinLen, Pattern
from refold.actors.tools.definition import DuplicateTool, Tool, as_tool, collect, tool
from refold.actors.tools.output import Outcome
from refold.actors.tools.run import Abandoned, CallPlace, run_tool
from refold.actors.tools.schema import BadArguments, InvalidTool, schema_of

__all__ = [
    "Abandoned",
    "BadArguments",
    "CallPlace",
    "DuplicateTool",
    "Ge",
    "InvalidTool",
    "Le",
    "MaxLen",
    "MinLen",
    "Outcome",
    "Pattern",
    "Tool",
    "as_tool",
    "collect",
    "run_tool",
    "schema_of",
    "tool",
]
