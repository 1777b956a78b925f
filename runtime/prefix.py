"""How much two byte strings share at their beginning: what a provider's cache can reuse."""

from __future__ import annotations


def common_prefix(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """How many leading bytes two byte strings share."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
