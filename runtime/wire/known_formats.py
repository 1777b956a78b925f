"""The wire formats by name; a version stays callable for ever."""

from __future__ import annotations

from collections.abc import Mapping

from refold.runtime.wire.chat import CHAT, CHAT_1
from refold.runtime.wire.format import WireFormat

FORMATS: Mapping[str, WireFormat] = {known.name: known for known in (CHAT_1, CHAT)}
"""Every version by the name that seals have for it."""

UNSEALED: WireFormat = CHAT
"""What a request that no seal tells of is shown in."""

NEWEST: Mapping[str, WireFormat] = {"chat": CHAT, "script": CHAT}
"""What requests are written in, by the `codec` of a provider; a scripted model speaks chat."""

CODECS: tuple[str, ...] = ("chat", *FORMATS)
"""What the `codec` of a provider that is reached over HTTP may be."""


def without_version(codec: str) -> str:
    """The format that `codec` names: requests are always written in a format's newest version."""
    return codec.partition("/")[0] if codec in FORMATS else codec
