"""What one round of the committer does, with a writing that notes it and a clock that stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest
import trio

from refold.actors.stores.committer import BACKGROUND_SECONDS, Committer, Outcome, Work
from refold.runtime.errors import Broken
from refold.runtime.storage.errors import LogFailed
from refold.runtime.storage.local_store import Batches, Done, SideBySide
from refold.runtime.storage.session_header import SessionHeader


@attrs.define(eq=False)
class FakeLog:
    """A log that counts what was written to it, and what of that is durable."""

    name: str
    next_seq: int = 0
    durable_seq: int = -1
    closed: bool = False
    close_fails: bool = False
    term: int = 1
    recovered: object = None

    @property
    def header(self) -> SessionHeader:
        return SessionHeader(self.name, 0)

    def close(self) -> None:
        self.closed = True
        if self.close_fails:
            raise LogFailed(self.name, "closing", self.durable_seq)


class Noted:
    """A writing that notes its calls, and fails the logs that it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, Broken] = {}
        self.surprise: Exception | None = None

    def write(self, works: Sequence[tuple[Any, Batches]], *, durable: bool) -> Done:
        self.calls.append(("write", [(log.name, *batches) for log, batches in works], durable))
        if self.surprise is not None:
            raise self.surprise
        failures = self._failures([log for log, _ in works])
        for log, batches in works:
            if log not in failures:
                log.next_seq += sum(map(len, batches))
        return Done(failures, writes=len(works) - len(failures), syncs=3 if durable else 0)

    def sync(self, logs: Sequence[Any], side_by_side: SideBySide) -> Done:
        del side_by_side
        self.calls.append(("sync", [log.name for log in logs]))
        failures = self._failures(logs)
        for log in logs:
            if log not in failures:
                log.durable_seq = log.next_seq - 1
        return Done(failures, syncs=len(logs))

    def _failures(self, logs: Sequence[Any]) -> dict[Any, Broken]:
        return {log: self.failing[log.name] for log in logs if log.name in self.failing}

    def stop(self) -> None:
        self.calls.append(("stop",))


class Rounds:
    """A committer whose rounds are asked for one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.noted = Noted()
        self.committer: Committer = Committer(self.noted, threaded=True)
        self.a, self.b = FakeLog("a"), FakeLog("b")
        self.outcomes: list[tuple[str, Outcome]] = []

    def work(
        self, log: FakeLog, *batches: Sequence[bytes], sync: bool = False, close: bool = False
    ) -> Work:
        def deliver(outcome: Outcome) -> None:
            self.outcomes.append((log.name, outcome))

        return Work(cast("Any", log), deliver, [*batches], sync, close)

    def round(self, *works: Work) -> list[tuple[Any, ...]]:
        """What one round with this work did; what came of it is in `outcomes`."""
        self.noted.calls.clear()
        self.outcomes.clear()
        for deliver, outcome in self.committer._round([*works]):
            deliver(outcome)
        return self.noted.calls


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def test_a_round_writes_what_came_for_each_log_in_its_order_and_then_syncs(rounds: Rounds) -> None:
    a, b, work = rounds.a, rounds.b, rounds.work
    done = rounds.round(
        work(a, [b"1"]), work(b, [b"x"], sync=True), work(a, [b"2", b"3"]), work(a, sync=True)
    )
    assert done == [
        ("write", [("a", [b"1"], [b"2", b"3"]), ("b", [b"x"])], True),
        ("sync", ["a", "b"]),
    ]
    assert rounds.outcomes == [("a", Outcome(2, 2)), ("b", Outcome(0, 0))]
    statistics = rounds.committer.statistics
    assert (statistics.rounds, statistics.writes) == (1, 2)
    assert (statistics.syncs, statistics.background_syncs) == (3 + 2, 0)


def test_what_one_of_several_works_for_a_log_asks_is_done(rounds: Rounds) -> None:
    """Whichever came first: nobody who asked is forgotten over who came after."""
    a, work = rounds.a, rounds.work
    done = rounds.round(work(a, sync=True), work(a, [b"1"]))
    assert done == [("write", [("a", [b"1"])], True), ("sync", ["a"])]
    rounds.round(work(a, close=True), work(a, sync=True))
    assert a.closed
    assert rounds.outcomes == [("a", Outcome(0, 0, closed=True))]


def test_nobody_who_did_not_ask_is_synced(rounds: Rounds) -> None:
    done = rounds.round(rounds.work(rounds.a, [b"1"]), rounds.work(rounds.b, [b"x"]))
    assert done == [("write", [("a", [b"1"]), ("b", [b"x"])], False)]
    assert rounds.outcomes == [("a", Outcome(0, -1)), ("b", Outcome(0, -1))]


def test_a_round_without_work_is_none(rounds: Rounds) -> None:
    assert rounds.round() == []
    assert rounds.committer.statistics.rounds == 0


def test_what_nobody_asked_for_is_synced_a_second_after_it_was_first_written(
    rounds: Rounds,
) -> None:
    committer, work = rounds.committer, rounds.work
    assert committer._until_background() is None, "nothing waits"
    rounds.round(work(rounds.a, [b"1"]))
    assert committer._until_background() == BACKGROUND_SECONDS
    rounds.now += 0.75
    rounds.round(work(rounds.a, [b"2"]), work(rounds.b, [b"x"]))
    assert committer._until_background() == BACKGROUND_SECONDS - 0.75, "since the first"
    assert rounds.round() == []
    rounds.now += 0.25
    assert committer._until_background() == 0
    assert rounds.round() == [("sync", ["a"])]
    assert rounds.outcomes == [("a", Outcome(1, 1))]
    assert committer.statistics.background_syncs == 1
    assert committer.statistics.syncs == 0
    rounds.now += 5
    assert committer._until_background() == 0
    assert rounds.round() == [("sync", ["b"])]
    assert committer._until_background() is None


def test_what_was_synced_on_demand_waits_for_no_other_sync(rounds: Rounds) -> None:
    rounds.round(rounds.work(rounds.a, [b"1"]))
    rounds.round(rounds.work(rounds.a, sync=True))
    assert rounds.committer._until_background() is None
    rounds.now += 5
    assert rounds.round() == []


def test_a_log_that_is_late_and_asks_is_synced_once(rounds: Rounds) -> None:
    rounds.round(rounds.work(rounds.a, [b"1"]), rounds.work(rounds.b, [b"x"]))
    rounds.now += 5
    assert rounds.round(rounds.work(rounds.a, sync=True)) == [("sync", ["a", "b"])]
    assert rounds.committer.statistics.syncs == 1
    assert rounds.committer.statistics.background_syncs == 1


def test_a_late_log_that_only_writes_is_synced_in_that_round(rounds: Rounds) -> None:
    rounds.round(rounds.work(rounds.a, [b"1"]))
    rounds.now += 5
    done = rounds.round(rounds.work(rounds.a, [b"2"]))
    assert done == [("write", [("a", [b"2"])], False), ("sync", ["a"])]


@pytest.mark.parametrize("sync", [False, True])
def test_a_log_that_failed_takes_no_more_and_says_why_each_time(rounds: Rounds, sync: bool) -> None:
    failure = LogFailed("a", "EIO", -1)
    rounds.noted.failing["a"] = failure
    rounds.round(rounds.work(rounds.a, [b"1"], sync=sync), rounds.work(rounds.b, [b"x"], sync=sync))
    assert rounds.outcomes[0] == ("a", Outcome(-1, -1, failure))
    assert rounds.outcomes[1] == ("b", Outcome(0, 0 if sync else -1))
    for _ in range(2):
        assert rounds.round(rounds.work(rounds.a, [b"2"], sync=True)) == []
        assert rounds.outcomes == [("a", Outcome(-1, -1, failure))]
    rounds.now += 5
    rounds.round()
    assert rounds.noted.calls in ([], [("sync", ["b"])]), "nor is it synced by itself"


def test_a_log_whose_sync_failed_is_never_synced_again(rounds: Rounds) -> None:
    rounds.round(rounds.work(rounds.a, [b"1"]))
    rounds.noted.failing["a"] = LogFailed("a", "EIO", -1)
    assert rounds.round(rounds.work(rounds.a, sync=True)) == [("sync", ["a"])]
    assert rounds.outcomes == [("a", Outcome(0, -1, rounds.noted.failing["a"]))]
    rounds.noted.failing.clear()
    assert rounds.round(rounds.work(rounds.a, [b"2"], sync=True)) == []
    assert rounds.a.durable_seq == -1


def test_a_surprise_ends_the_logs_of_its_call_and_names_itself(rounds: Rounds) -> None:
    rounds.noted.surprise = LookupError("on purpose")
    rounds.round(rounds.work(rounds.a, [b"1"]))
    ((_, outcome),) = rounds.outcomes
    assert isinstance(outcome.failure, LogFailed)
    assert "LookupError: on purpose" in str(outcome.failure)
    rounds.noted.surprise = None
    assert rounds.round(rounds.work(rounds.b, [b"x"])) == [("write", [("b", [b"x"])], False)]


def test_a_log_is_closed_after_its_last_work_and_forgotten(rounds: Rounds) -> None:
    rounds.noted.failing["a"] = LogFailed("a", "EIO", -1)
    rounds.round(rounds.work(rounds.a, [b"1"]))
    done = rounds.round(
        rounds.work(rounds.a, close=True),
        rounds.work(rounds.b, [b"x"]),
        rounds.work(rounds.b, close=True),
    )
    assert done == [("write", [("b", [b"x"])], False)]
    assert rounds.a.closed
    assert rounds.b.closed
    assert [(name, outcome.closed) for name, outcome in rounds.outcomes] == [
        ("a", True),
        ("b", True),
    ]
    assert rounds.outcomes[0][1].failure is not None
    assert rounds.outcomes[1][1].failure is None
    assert rounds.committer._until_background() is None, "who is closed owes no sync"
    assert rounds.committer._failed == {}


def test_a_log_that_fails_while_it_is_closed_says_so(rounds: Rounds) -> None:
    rounds.a.close_fails = True
    rounds.round(rounds.work(rounds.a, close=True))
    ((_, outcome),) = rounds.outcomes
    assert outcome.closed
    assert isinstance(outcome.failure, LogFailed)


def test_memory_owes_no_background_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch)
    rounds.committer = Committer(rounds.noted, threaded=False)
    rounds.committer.submit(rounds.work(rounds.a, [b"1"]))
    assert rounds.outcomes == [("a", Outcome(0, -1))]
    assert rounds.committer._until_background() is None


async def test_the_thread_sleeps_while_there_is_nothing_to_do_and_gives_back_what_it_held() -> None:
    noted, woken = Noted(), []
    committer: Committer = Committer(noted, threaded=True)
    round_ = committer._round

    def counted(taken: list[Work]) -> Any:
        woken.append(len(taken))
        return round_(taken)

    committer._round = counted  # type: ignore[method-assign]  # to count
    written = trio.Event()
    log = FakeLog("a")
    committer.submit(Work(cast("Any", log), lambda _outcome: written.set(), [[b"1"]], sync=True))
    await written.wait()
    await trio.sleep(0.05)
    await committer.stop()
    assert woken == [1, 0]
    assert noted.calls[-1] == ("stop",)


def test_a_thread_that_hangs_with_its_disk_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends in peace when the disk goes on, be it after the run."""
    monkeypatch.setattr("refold.actors.stores.committer.STOP_SECONDS", 0.05)
    noted, disk = Noted(), threading.Event()
    write, threads = noted.write, list[threading.Thread | None]()

    def hanging(works: Any, *, durable: bool) -> Done:
        disk.wait(30)
        return write(works, durable=durable)

    noted.write = hanging  # type: ignore[method-assign]  # the disk hangs
    committer: Committer = Committer(noted, threaded=True)

    async def program() -> None:
        log = cast("Any", FakeLog("a"))
        committer.submit(Work(log, lambda _outcome: None, [[b"1"]]))
        threads.append(committer._thread)
        with trio.fail_after(10):
            await committer.stop()

    try:
        trio.run(program)
    finally:
        disk.set()
    assert "the committer did not end within 0.05 s; its disk may hang" in caplog.text
    (thread,) = threads
    assert thread is not None
    thread.join(10)
    assert noted.calls[-1] == ("stop",)
