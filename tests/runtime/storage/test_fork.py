"""A fork starts with the very bytes of its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.runtime.storage import (
    OS,
    AlreadyExists,
    JsonlFolder,
    LogCorrupt,
    MaintainedStore,
    NoForkPoint,
    SessionBusy,
    SessionHeader,
    Unavailable,
    frame_header,
)
from tests.runtime.storage.logs import (
    FOLDER,
    HEADER,
    event,
    framed,
    get,
    intercepted,
    memory,
    owner_event,
    put,
    stores,
)

TWIN = SessionHeader("twin", 9, name="twin")


def _fill(store: MaintainedStore) -> None:
    log = store.create(HEADER)
    log.append([event(0, "turn/start"), event(1, text="h\u00e9")])
    log.append([event(2, "turn/end")])
    log.append([event(3, "turn/start"), event(4, "turn/end")])
    log.append([event(5, "turn/start")])
    log.close()


@pytest.fixture(params=["disk", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MaintainedStore:
    store = stores(tmp_path)[request.param]()
    _fill(store)
    return store


def test_the_owner_of_a_parent_is_not_that_of_its_fork() -> None:
    """Else who forks a log that is open would wait for its owner, or take over from it."""
    store, _ = memory()
    log = store.create(HEADER)
    log.append([owner_event(0), event(1, "turn/start"), event(2, "turn/end")])
    store.fork("demo", 2, TWIN)
    assert store.read("demo").last_owner() is not None
    assert store.read("twin").last_owner() is None
    twin = store.open("twin")
    twin.append([owner_event(3)])
    twin.close()
    assert store.read("twin").last_owner() is not None
    log.close()


def test_a_fork_holds_the_same_lines_up_to_the_turn_end() -> None:
    store, port = memory()
    _fill(store)
    store.fork("demo", 2, TWIN)
    source, twin = get(port, FOLDER / "demo.jsonl"), get(port, FOLDER / "twin.jsonl")
    header = store.read("twin").header
    first = frame_header(header)
    lines = source.split(b"\n")[1:4]
    assert twin == first + b"".join(line + b"\n" for line in lines)
    assert header.parent_session == "demo"
    assert header.seed_length == 3
    assert header.seed_crc == lines[2][8:16].decode()
    assert (header.id, header.created_at, header.name) == ("twin", 9, "twin")


def test_the_last_turn_end_is_the_default(store: MaintainedStore) -> None:
    store.fork("demo", None, TWIN)
    assert [record.seq for record in store.read("twin").records] == [0, 1, 2, 3, 4]


def test_a_fork_goes_on_by_itself(store: MaintainedStore) -> None:
    store.fork("demo", 2, TWIN)
    log = store.open("twin")
    assert (log.next_seq, log.durable_seq) == (3, 2)
    log.append([event(3, text="other")])
    log.close()
    assert [record.seq for record in store.read("twin").records] == [0, 1, 2, 3]
    assert len(store.read("demo").records) == 6
    store.open("demo").close()


@pytest.mark.parametrize(
    ("seq", "nearest"), [(0, None), (1, None), (3, 2), (5, 4), (6, 4), (99, 4), (-1, None)]
)
def test_any_other_place_is_refused_with_the_nearest_before(
    store: MaintainedStore, seq: int, nearest: int | None
) -> None:
    with pytest.raises(NoForkPoint) as caught:
        store.fork("demo", seq, TWIN)
    assert caught.value.nearest == nearest
    assert store.list() == ["demo"]


def test_a_log_without_a_turn_end_has_no_fork_point(store: MaintainedStore) -> None:
    log = store.create(SessionHeader("fresh", 1))
    log.append([event(0)])
    log.close()
    with pytest.raises(NoForkPoint):
        store.fork("fresh", None, TWIN)


def test_a_turn_end_amid_its_batch_is_no_fork_point(store: MaintainedStore) -> None:
    log = store.create(SessionHeader("odd", 1))
    log.append([event(0, "turn/end"), event(1)])
    log.close()
    with pytest.raises(NoForkPoint):
        store.fork("odd", 0, TWIN)


def test_a_seed_of_other_bytes_is_corruption() -> None:
    store, port = memory()
    _fill(store)
    store.fork("demo", 2, TWIN)
    first = get(port, FOLDER / "twin.jsonl").split(b"\n")[0]
    other, ends = framed([[event(seq, text="other") for seq in range(3)]])
    put(port, FOLDER / "twin.jsonl", first + b"\n" + other[ends[0] :])
    for read in (store.read, lambda name: store.reader(name).read_new()):
        with pytest.raises(LogCorrupt, match="another seed") as caught:
            read("twin")
        offset = len(first) + 1 + ends[1] - ends[0] - len(other.split(b"\n")[-2]) - 1
        assert (caught.value.offset, caught.value.line, caught.value.expected_seq) == (offset, 4, 2)


def test_a_seed_that_lost_its_end_is_corruption_and_no_torn_tail() -> None:
    store, port = memory()
    _fill(store)
    store.fork("demo", 2, TWIN)
    whole = get(port, FOLDER / "twin.jsonl")
    put(port, FOLDER / "twin.jsonl", whole[:-20])
    with pytest.raises(LogCorrupt, match="the end of a fork's seed") as caught:
        store.read("twin")
    begun = whole.rindex(b"\n", 0, -1) + 1
    assert (caught.value.offset, caught.value.line, caught.value.expected_seq) == (begun, 4, 2)


def test_a_fork_is_listed_and_followed_from_its_first_event_on(store: MaintainedStore) -> None:
    store.fork("demo", 2, TWIN)
    assert store.list() == ["demo", "twin"]
    reader = store.reader("twin")
    assert [record.seq for record in reader.read_new(max_bytes=100)] == [0, 1]
    log = store.open("twin")
    log.append([event(3)])
    assert [record.seq for record in reader.read_new()] == [2, 3]
    reader.close()
    log.close()


def test_a_file_that_appears_while_a_fork_is_written_is_left_alone() -> None:
    _, port = memory()
    _fill(JsonlFolder(FOLDER, port))

    def before(operation: str, _args: tuple[object, ...]) -> None:
        if operation == "link":
            put(port, FOLDER / "twin.jsonl", b"mine")

    with pytest.raises(AlreadyExists):
        JsonlFolder(FOLDER, intercepted(port, before)).fork("demo", None, TWIN)
    assert get(port, FOLDER / "twin.jsonl") == b"mine"
    assert "twin.fork" not in port.listdir(FOLDER)


def test_a_source_that_shrinks_while_it_is_copied_fails_the_fork() -> None:
    _, port = memory()
    _fill(JsonlFolder(FOLDER, port))

    def before(operation: str, _args: tuple[object, ...]) -> object:
        return 0 if operation == "copy_range" else None

    with pytest.raises(Unavailable, match="shorter"):
        JsonlFolder(FOLDER, intercepted(port, before)).fork("demo", None, TWIN)


def test_an_error_while_copying_in_the_kernel_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> int:
        raise OSError(5, "Input/output error")

    store = JsonlFolder(tmp_path)
    _fill(store)
    monkeypatch.setattr("os.copy_file_range", fail)
    with pytest.raises(Unavailable):
        store.fork("demo", None, TWIN)


def test_a_log_that_is_being_written_can_be_forked(store: MaintainedStore) -> None:
    log = store.open("demo")
    store.fork("demo", None, TWIN)
    log.close()
    assert len(store.read("twin").records) == 5


def test_a_taken_id_is_refused_and_left_alone(store: MaintainedStore) -> None:
    store.fork("demo", 2, TWIN)
    with pytest.raises(AlreadyExists):
        store.fork("demo", 4, TWIN)
    assert len(store.read("twin").records) == 3
    log = store.create(SessionHeader("new", 1))
    with pytest.raises(SessionBusy):
        store.fork("demo", 4, SessionHeader("new", 1))
    log.close()


def test_a_forked_session_is_not_left_locked(store: MaintainedStore) -> None:
    store.fork("demo", None, TWIN)
    store.open("twin").close()


def test_a_fork_of_a_fork_names_its_parent(store: MaintainedStore) -> None:
    store.fork("demo", 4, TWIN)
    store.fork("twin", 2, SessionHeader("third", 1))
    header = store.read("third").header
    assert (header.parent_session, header.seed_length) == ("twin", 3)


def test_the_second_name_that_a_crashed_fork_left_does_not_refuse_it(tmp_path: Path) -> None:
    store = JsonlFolder(tmp_path)
    _fill(store)
    store.fork("demo", None, TWIN)
    (tmp_path / "twin.fork").hardlink_to(tmp_path / "twin.jsonl")
    assert len(store.read("twin").records) == 5
    store.open("twin").close()
    assert not (tmp_path / "twin.fork").exists()


def test_a_store_without_copying_in_the_kernel_copies_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.copy_file_range", refuse)
    store = JsonlFolder(tmp_path, OS)
    _fill(store)
    store.fork("demo", None, TWIN)
    assert len(store.read("twin").records) == 5
