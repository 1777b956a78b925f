"""What a server means by the reason for which it ended an answer.

Only reasons that are known to be good are good: half an answer that is taken for a whole one is a
half-written tool call that is carried out. They are compared without case, and `-` as `_`.
"""

from __future__ import annotations

import re

from refold.runtime.stream.chunks import FinishKind
from refold.runtime.stream.failures import Failure, LlmFailure

PLAIN = ("", "stop", "length", "tool_calls", "function_call", "content_filter")
"""The reasons that this wire's standard knows; any other is kept in the words of the server."""

_GOOD = frozenset(
    (
        *("", "null", "stop", "stop_sequence", "end_turn", "eos", "eos_token", "end", "complete"),
        *("completed", "tool_calls", "tool_call", "tool_use", "function_call", "function_calls"),
    )
)
_CUT = re.compile(r"length|max|limit|truncat|context|window|incomplete|pause_turn")
_FILTERED = re.compile(
    r"filter|sensitive|safety|moderat|recitation|blocklist|blocked|prohibited|spii|refusal|violation"
    r"|censor|guardrail|policy"
)
_BUSY = re.compile(r"insufficient_system_resource|overload|capacity|busy")
_GAVE_UP = re.compile(r"error|abort|cancel|timeout|time_out|fail|disconnect|interrupt|network")


def kind_of(reason: str) -> FinishKind:
    """How an answer without tool calls ended.

    Raises `LlmFailure`: SERVER or OVERLOADED where the server gave up, and MALFORMED_RESPONSE,
    which is not asked again, for a reason that nobody here knows.
    """
    word = reason.strip().lower().replace("-", "_").replace(" ", "_")
    if word in _GOOD:
        return "stop"
    if _BUSY.search(word):
        raise LlmFailure(Failure("OVERLOADED", f"{GAVE_UP} ({reason[:80]})"))
    if _FILTERED.search(word):
        return "content-filter"
    if _GAVE_UP.search(word):
        raise LlmFailure(Failure("SERVER", f"{GAVE_UP} ({reason[:80]})"))
    if _CUT.search(word):
        return "max-tokens"
    raise LlmFailure(Failure("MALFORMED_RESPONSE", f"{_UNKNOWN} ({reason[:80]!r})"))


GAVE_UP = "the provider gave up in the middle of its answer; send the request again"
_UNKNOWN = (
    "the provider ended its answer for a reason that is not known here, so nothing of it was acted "
    "on; ask again or use another model"
)
