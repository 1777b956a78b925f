"""Where the golden data is, and how it is read.

`REFOLD_GOLDEN` names the folder; without it `../shared/golden` beside the repository is tried.
Absent data skips the golden tests with a message, and fails them in CI.
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

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "golden"


def folder() -> Path:
    """The golden folder, or a skip (an error where `CI` is set)."""
    path = Path(os.environ.get("REFOLD_GOLDEN", _BESIDE))
    if path.is_dir():
        return path
    message = f"no golden data at {path}; set REFOLD_GOLDEN to its folder"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@cache
def differential() -> list[dict[str, Any]]:
    """The 120 generated sessions."""
    with gzip.open(folder() / "differential.jsonl.gz") as lines:
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
