"""Reading the documents as tests do: their fenced blocks, and transcripts without accidents."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

import refold

ROOT = Path(refold.__file__).parent.parent

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b")
_SIZE = re.compile(r"\b\d+ bytes\b|\bbyte \d+\b|\b\d+\.\d %|\(seq \d+\)|\bseq \d+\b")


@attrs.frozen
class Snippet:
    """One fenced block: its language, its text, and the document's line where the text begins."""

    language: str
    text: str
    line: int


def snippets(document: str) -> list[Snippet]:
    """The fenced blocks of a document of the repository, in order."""
    text = (ROOT / document).read_text("utf-8")
    return [
        Snippet(found[1], found[2], text.count("\n", 0, found.start(2)) + 1)
        for found in _FENCE.finditer(text)
    ]


def normalised(transcript: str) -> str:
    """A transcript with ids and sizes replaced, and runs of blanks as one."""
    named = _ID.sub("ID", transcript)
    sized = _SIZE.sub(lambda found: re.sub(r"[\d.]+", "N", found[0]), named)
    return "\n".join(" ".join(line.split()) for line in sized.splitlines()).strip()
