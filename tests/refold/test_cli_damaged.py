"""A store with damaged sessions: the others work, and each bad one is named and readable so far."""

from __future__ import annotations

import attrs
import orjson
import pytest

import refold
from refold import Say, Script
from refold.runtime.errors import RefoldError
from refold.runtime.storage import frame_batch
from tests.refold.cli_stores import CliStore
from tests.refold.conftest import body
from tests.runtime.storage.logs import event

DELTA = b'{"type":"request/header-delta","seq":0,"time":0,"data":{}}'
GOOD = [f"good-{number:02}" for number in range(45)]
BAD = ["flipped", "header", "legacy", "shorter", "surface"]


@pytest.fixture
def fifty(any_store: CliStore) -> CliStore:
    """45 good sessions and five that are damaged, each in another way."""
    with any_store.opened() as sessions:
        header, lines = sessions.read("tour").header, body(sessions.raw("tour"))
        for name in sessions.list():
            sessions.delete(name)
        for name in [*GOOD, "flipped", "header", "shorter"]:
            sessions.adopt(attrs.evolve(header, id=name), lines)
    flip(any_store, "flipped", any_store.raw("flipped").index(b'"seq":9,'))
    flip(any_store, "header", 40)
    whole = any_store.raw("shorter")
    any_store.put("shorter", b"".join(whole.splitlines(keepends=True)[:-1]))
    any_store.write("legacy", event(0))
    first = any_store.raw("legacy").partition(b"\n")[0] + b"\n"
    any_store.put("legacy", first + frame_batch([DELTA], 0, -1)[0])
    any_store.head("legacy").unlink()
    message = event(1, "user/message", content=[], source={"kind": "user"})
    cited = message[:-1] + b',"sourceEventSeqs":[9],"surfaceOp":"append"}'
    any_store.write("surface", event(0), cited)
    return any_store


def flip(store: CliStore, session: str, at: int) -> None:
    data = bytearray(store.raw(session))
    data[at] ^= 1
    store.put(session, bytes(data))


async def test_the_good_ones_are_listed_opened_and_gone_on_with(fifty: CliStore) -> None:
    model = Script([Say("fine")] * len(GOOD))
    async with refold.open(fifty.address, providers=[model]) as runtime:
        assert sorted(await runtime.list()) == sorted([*GOOD, *BAD])
        for name in GOOD:
            agent = await runtime.resume(name, model="script/x", tools=[])
            assert (await agent.ask("and now?")).text == "fine"
            await agent.close()
        for name in BAD:
            with pytest.raises(RefoldError):
                await runtime.resume(name, model="script/x", tools=[])
        for name in ("flipped", "header", "legacy", "shorter"):
            with pytest.raises(RefoldError):
                await runtime.fork(name, model="script/x", tools=[])
        assert len(await runtime.list()) == 50
    assert fifty.run("verify", *GOOD).code == 0


def test_each_bad_one_is_named_with_position_and_reason_and_readable_up_to_there(
    fifty: CliStore,
) -> None:
    listed = orjson.loads(fifty.run("sessions", "--json").out)["sessions"]
    rows = {row["session"]: row for row in listed}
    assert len(rows) == 50
    assert sorted(name for name, row in rows.items() if row["state"] == "damaged") == BAD
    count = len(fifty.events("good-00"))
    said = {
        "flipped": "seq 9: found a line whose checksum does not fit",
        "header": "at byte 0, in its header: found a damaged line",
        "legacy": "request/header-delta at seq 0",
        "shorter": f"though seq {count - 1} was durable when it was last closed",
        "surface": "event at seq 1 cites seq 9",
    }
    assert all(text in rows[name]["detail"] for name, text in said.items())
    ran = fifty.run("check", "--all", "--json")
    checked = {found["session"]: found for found in orjson.loads(ran.out)["sessions"]}
    assert (ran.code, sorted(n for n, found in checked.items() if not found["good"])) == (4, BAD)
    # All but seq 9 can be believed.
    for name, code, shown in (
        ("flipped", 4, count - 1),
        ("shorter", 4, count - 1),
        ("surface", 0, 2),
    ):
        ran = fifty.run("show", name, "--json")
        assert (ran.code, len(ran.lines)) == (code, shown)


def test_what_can_be_repaired_is_and_the_rest_can_be_deleted(fifty: CliStore) -> None:
    codes = {name: fifty.run("repair", name, "--yes").code for name in BAD}
    assert codes == {"flipped": 0, "header": 0, "legacy": 3, "shorter": 0, "surface": 1}
    assert fifty.run("delete", "legacy", "surface", "--yes").code == 0
    assert fifty.run("verify", "--all").code == 0
    for name in ("flipped", "shorter"):
        assert fifty.run("check", name).code == 1  # of the loss that the next opening reports
    assert fifty.run("check", "header", *GOOD).code == 0
