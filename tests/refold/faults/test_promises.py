"""A journal remembers what was acknowledged, and every way of breaking it has a name."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from refold.faults import BrokenPromise, Journal, check_promises
from refold.runtime.storage import JsonlFolder, Record, Scan
from tests.runtime.storage.logs import HEADER, LOG, event, get, memory, put


def stored(count: int) -> tuple[JsonlFolder, Journal]:
    """A log of so many events, all of them acknowledged."""
    folder, journal = memory()[0], Journal()
    log = folder.create(HEADER)
    for seq in range(count):
        log.append([event(seq)])
        log.sync()
        journal.acknowledge("demo", seq, event(seq))
    log.close()
    return folder, journal


@attrs.frozen
class Rearranged:
    """A store that shows the records of another one in an order of its own."""

    inner: JsonlFolder
    order: tuple[int, ...]

    def read(self, session_id: str) -> Scan:
        found = self.inner.read(session_id)
        shown: list[Record] = [found.records[place] for place in self.order]
        return attrs.evolve(found, records=shown)


def test_what_is_there_breaks_nothing() -> None:
    folder, journal = stored(3)
    assert check_promises(folder, journal) == []


def test_more_than_was_acknowledged_breaks_nothing() -> None:
    folder, _ = stored(3)
    journal = Journal()
    journal.acknowledge("demo", 1, event(1))
    assert check_promises(folder, journal) == []


def test_a_missing_event_is_named() -> None:
    folder, journal = stored(3)
    journal.acknowledge("demo", 3, event(3))
    assert check_promises(folder, journal) == [
        BrokenPromise("demo", 3, "the acknowledged event is missing")
    ]


def test_other_bytes_are_named() -> None:
    folder, journal = stored(3)
    journal.acknowledge("demo", 1, event(1, text="another"))
    assert check_promises(folder, journal) == [
        BrokenPromise("demo", 1, "the acknowledged event has other bytes")
    ]


def test_a_doubled_event_and_disorder_are_named() -> None:
    folder, journal = stored(3)
    doubled = check_promises(Rearranged(folder, (0, 1, 1, 2)), journal)
    assert [broken.seq for broken in doubled] == [1, 2]
    assert str(doubled[0]) == "session 'demo', seq 1: it stands where seq 2 belongs"
    assert len(check_promises(Rearranged(folder, (0, 2, 1)), journal)) == 2


def test_a_refused_log_and_a_lost_one_are_named() -> None:
    folder, port = memory()
    log = folder.create(HEADER)
    log.append([event(0)], [event(1)])
    log.close()
    put(port, LOG, get(port, LOG).replace(b"seq", b"sEq", 1))
    journal = Journal()
    journal.acknowledge("demo", 0, event(0))
    journal.acknowledge("gone", 0, event(0))
    refused, lost = check_promises(folder, journal)
    assert refused.seq is None
    assert "is damaged" in refused.problem
    assert "there is no session 'gone'" in str(lost)


def test_a_folder_is_read_by_its_path(tmp_path: Path) -> None:
    log = JsonlFolder(tmp_path).create(HEADER)
    log.append([event(0)])
    log.close()
    journal = Journal()
    journal.acknowledge("demo", 0, event(0))
    assert check_promises(tmp_path, journal) == check_promises(str(tmp_path), journal) == []
    journal.acknowledge("demo", 1, event(1))
    assert len(check_promises(tmp_path, journal)) == 1


@pytest.mark.parametrize("cut", [1, 5])
def test_lines_of_a_process_make_a_journal_and_a_torn_one_was_not_said(cut: int) -> None:
    first, second = Journal.line("demo", 0, event(0)), Journal.line("twin", 7, event(7))
    whole = Journal()
    whole.acknowledge("demo", 0, event(0))
    assert Journal.read(first + second[:-cut]) == whole
    whole.acknowledge("twin", 7, event(7))
    assert Journal.read(first + second) == whole
