"""What a user can do to a store, for real: the session ends with one clear error, or goes on.

Afterwards the log agrees with what was acknowledged.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import refold
import refold.actors.runtime
from refold import ActorCrashed, Call, Say
from refold.faults import ForkServer, Journal, Life
from refold.runtime.envelope import Event
from refold.runtime.errors import Broken
from refold.runtime.storage.errors import NotFound
from refold.runtime.verify import verify_requests
from tests.agents import assert_sound, assert_within_rules, stored_events
from tests.crash import starving
from tests.crash.places import Place, journal_of
from tests.crash.writing import Witness

HOUR = 3_600_000
SESSION = "hurt"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(starving.__name__, "refold.actors.runtime") as server:
        yield server


@attrs.frozen
class Starved:
    """What a program of `starving` said: why its session failed, and why it was not resumed."""

    failed: str
    refused: str
    journal: Journal
    text: str


def starved(life: Life) -> Starved:
    assert life.status == 0
    told = [json.loads(line) for line in life.lines if line[:1] == b"{"]
    if told[0].get("impossible"):
        pytest.skip(told[0]["impossible"])
    facts: dict[str, Any] = {key: value for one in told for key, value in one.items()}
    assert {one["reason"] for one in told if "reason" in one} == {"completed"}
    texts = " ".join(one.get("text", "") for one in told)
    return Starved(facts["failed"], facts["refused"], journal_of(life.lines), texts)


def assert_kept(place: Place, journal: Journal) -> list[Event]:
    """What was acknowledged is there, and the log is one that goes on."""
    assert journal.said[place.session]
    assert place.broken_promises(journal) == []
    events = place.events()
    assert_within_rules(events)
    assert all(verdict.verified for verdict in verify_requests(place.records()))
    return events


@attrs.frozen
class Need:
    """A program of `starving`, and the errors that its session may end with and be refused with.

    An empty text is none: the session goes on.
    """

    program: str
    kind: str
    failed: set[str]
    refused: set[str]
    reason: str = ""


NEEDS = [
    Need("limit_file_size", "jsonl", {"StoreFull"}, {"StoreFull"}, "File too large"),
    Need("limit_file_size", "sqlite", {"LogFailed", "StoreFull"}, {"", "LogFailed", "StoreFull"}),
    # What a file system has left of a file's last block may be enough to resume.
    Need("fill_file_system", "jsonl", {"StoreFull"}, {"StoreFull", ""}, "No space left"),
    Need("fill_file_system", "sqlite", {"StoreFull"}, {"StoreFull", ""}, "disk is full"),
    Need("limit_descriptors", "jsonl", {""}, {"Unavailable"}, "Too many open files"),
    Need("lose_permission", "jsonl", {""}, {"Unavailable"}, "Permission denied"),
    # A SQLite file stays open as long as its store, and its lock file while a session is.
    Need("limit_descriptors", "sqlite", {""}, {"Unavailable"}, "Too many open files"),
    Need("lose_permission", "sqlite", {""}, {"Unavailable"}, "Permission denied"),
]


@pytest.mark.crash
@pytest.mark.parametrize("need", NEEDS, ids=lambda need: f"{need.program}-{need.kind}")
def test_a_session_that_starves_says_so_and_goes_on_when_it_can(
    server: ForkServer, tmp_path: Path, need: Need
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    name = f"{starving.__name__}:{need.program}"
    found = starved(server.start(name, str(folder), need.kind).end())
    assert found.failed in need.failed
    assert found.refused in need.refused
    assert need.reason in found.text
    copy = folder / "copy"
    where = copy if copy.exists() else folder
    assert (str(folder) in found.text) == bool(found.failed or found.refused)
    assert_kept(Place(need.kind, where, starving.SESSION), found.journal)


def delete(place: Place) -> None:
    place.file.unlink()


def replace(place: Place) -> None:
    """As an editor or a synchroniser does it: the same bytes in a new file."""
    copy = place.folder / "copy"
    shutil.copyfile(place.file, copy)
    copy.rename(place.file)


def append(place: Place) -> None:
    with place.file.open("ab") as file:
        file.write(b"a line of somebody else\n")


def rename_folder(place: Place) -> None:
    place.folder.rename(place.folder.with_name("elsewhere"))


def rename_back(place: Place) -> None:
    place.folder.with_name("elsewhere").rename(place.folder)


@attrs.define(eq=False)
class Hurt:
    """A session on which a fault falls, while it is idle or within a tool of its third turn."""

    place: Place
    fault: Callable[[Place], None]
    said: list[bytes] = attrs.field(factory=list)

    async def live(self, *, in_turn: bool) -> BaseException:
        """Ask twice, then once more about the time of the fault; what that ended with."""

        @refold.tool
        async def wait() -> str:
            """Wait for what comes."""
            self.fault(self.place)
            return "it came"

        third = [Call("wait"), Say("three")] if in_turn else [Say("three")]
        script = refold.Script([Say("one"), Say("two"), *third])
        async with refold.open(self.place.store, providers=[script]) as runtime:
            agent = await runtime.start_agent(
                session_id=SESSION, model="script/m", tools=[wait], retries=0
            )
            witness = Witness(agent, self.said.append)
            for prompt in ("a", "b"):
                witness.acknowledged((await agent.ask(prompt)).end_seq)
            if not in_turn:
                self.fault(self.place)
            with pytest.raises((Broken, ActorCrashed)) as caught:
                witness.acknowledged((await agent.ask("c")).end_seq)
            with pytest.raises(ActorCrashed) as again:
                await agent.prompt("d")
            assert again.value.__cause__ is not None
            cause = caught.value
            return again.value.__cause__ if isinstance(cause, ActorCrashed) else cause

    @property
    def journal(self) -> Journal:
        return Journal.read(b"".join(self.said))


@pytest.mark.parametrize("in_turn", [False, True], ids=["idle", "in-a-turn"])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("jsonl", delete),
        ("jsonl", replace),
        ("jsonl", append),
        ("jsonl", rename_folder),
        ("sqlite", delete),
        ("sqlite", replace),
        ("sqlite", rename_folder),
    ],
)
async def test_a_session_whose_log_is_taken_away_ends_with_one_clear_error(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    fault: Callable[[Place], None],
    in_turn: bool,
) -> None:
    place = Place(kind, tmp_path / "store", SESSION)
    hurt = Hurt(place, fault)
    with caplog.at_level(logging.ERROR):
        failure = await hurt.live(in_turn=in_turn)
    assert isinstance(failure, Broken)
    assert str(place.file) in str(failure)
    assert [record.getMessage() for record in caplog.records] == [
        f"session {SESSION} has ended: {failure}"
    ]
    if fault is rename_folder:
        rename_back(place)
    async with refold.open(place.store, providers=[refold.Script([Say("four")])]) as runtime:
        if fault is delete:
            with pytest.raises(NotFound):
                await runtime.resume(SESSION, model="script/m", tools=())
            return
        agent = await runtime.resume(SESSION, model="script/m", tools=())
        assert (await agent.ask("e")).text == "four"
    events = assert_kept(place, hurt.journal)
    assert [event.data.reason for event in events if event.type == "session/recovered"] == (
        ["bad-crc"] if fault is append else []
    )


async def test_a_clock_that_goes_back_by_an_hour_changes_labels_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_760_000_000_000]
    monkeypatch.setattr(refold.actors.runtime, "now_ms", lambda: now[0])
    said: list[bytes] = []
    async with refold.open(tmp_path, providers=[refold.Script([Say("a"), Say("b")])]) as runtime:
        agent = await runtime.start_agent(session_id=SESSION, model="script/m")
        witness = Witness(agent, said.append)
        witness.acknowledged((await agent.ask("one")).end_seq)
        now[0] -= HOUR
        witness.acknowledged((await agent.ask("two")).end_seq)
        await agent.park()
        assert_sound(runtime, agent)
    now[0] -= HOUR
    async with refold.open(tmp_path, providers=[refold.Script([Say("c")])]) as runtime:
        agent = await runtime.resume(SESSION, model="script/m", tools=())
        assert (await agent.ask("three")).text == "c"
        times = {event.time for event in stored_events(runtime, SESSION)}
        assert times == {now[0], now[0] + HOUR, now[0] + 2 * HOUR}
    assert_kept(Place("jsonl", tmp_path, SESSION), Journal.read(b"".join(said)))
