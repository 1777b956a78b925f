"""Where the golden data is, and how it is read.

The generated sessions are part of the repository, in `tests/data`. The recorded logs are not: their
folder is named by `REFOLD_GOLDEN`; without it `../shared/golden` beside the repository is tried.
Where they are absent, the tests of recorded logs are skipped with a message, and fail in CI.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

_DATA = Path(__file__).with_name("data")
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "golden"


def folder() -> Path:
    """The folder of the recorded logs, or a skip (an error where `CI` is set)."""
    path = Path(os.environ.get("REFOLD_GOLDEN", _BESIDE))
    if path.is_dir():
        return path
    message = f"no recorded logs at {path}; set REFOLD_GOLDEN to its folder"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@cache
def differential() -> list[dict[str, Any]]:
    """The 120 generated sessions."""
    with gzip.open(_DATA / "differential.jsonl.gz") as lines:
        return [orjson.loads(line) for line in lines]


@cache
def verdicts() -> list[dict[str, Any]]:
    """What the reference says of each recorded log."""
    with gzip.open(folder() / "recorded.json.gz") as file:
        found: list[dict[str, Any]] = orjson.loads(file.read())
    return found


@cache
def logs(archive: str) -> Mapping[str, list[bytes]]:
    """The lines of each log of an archive, by name; a line ends at 0x0A and nowhere else."""
    with tarfile.open(folder() / archive) as tar:
        return dict(_members(tar))


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, list[bytes]]]:
    for member in tar.getmembers():
        file = tar.extractfile(member)
        if file is not None:
            yield member.name, [line for line in file.read().split(b"\n") if line]
