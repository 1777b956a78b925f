"""Tools: functions that a model may call, their schemas, and how one call is run."""

from __future__ import annotations

from actors.tools.bounds import Ge, Le, MaxLen, MinLen, Pattern
from actors.tools.definition import DuplicateTool, Tool, as_tool, collect, tool
from actors.tools.run import Abandoned, Outcome, run_tool
from actors.tools.schema import BadArguments, InvalidTool, schema_of

__all__ = [
    "Abandoned",
    "BadArguments",
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
