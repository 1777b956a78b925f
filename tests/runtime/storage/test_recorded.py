"""Logs recorded by the reference load as foreign logs, or are refused where it refuses them."""

from __future__ import annotations

import orjson

from refold.runtime.errors import RefoldError
from refold.runtime.storage import LogCorrupt, scan
from tests import golden


def test_every_recorded_log_loads_as_foreign_or_is_refused_for_its_numbering() -> None:
    refused = {}
    recorded = golden.logs("recorded-logs.tar.gz")
    assert len(recorded) == 69
    for name, lines in recorded.items():
        data = b"".join(line + b"\n" for line in lines)
        try:
            found = scan(data, "recorded", path=name)
        except RefoldError as error:
            refused[name] = error
            continue
        assert found.foreign
        assert found.torn is None
        assert found.header.id == "recorded"
        assert [record.encoded for record in found.records] == lines[1:]
        assert [record.type for record in found.records] == [
            orjson.loads(line)["type"] for line in lines[1:]
        ]
    known = {entry["log"] for entry in golden.verdicts() if "has seq" in entry.get("refused", "")}
    assert set(refused) == known
    assert all(isinstance(error, LogCorrupt) for error in refused.values())


def test_every_older_log_loads_as_foreign() -> None:
    for name, lines in golden.logs("usage-logs.tar.gz").items():
        found = scan(b"".join(line + b"\n" for line in lines), "usage", path=name)
        assert found.foreign
        assert len(found.records) == len(lines) - 1
