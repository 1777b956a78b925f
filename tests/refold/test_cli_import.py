"""`refold import`."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from refold.runtime.envelope import decode_line
from refold.runtime.history import History
from refold.runtime.storage import JsonlFolder, scan
from tests import golden
from tests.refold.cli_stores import HOSTILE, CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.runtime.storage.logs import event
from tests.runtime.test_golden import rebuilt

HEADER = b'{"type":"session","version":0,"id":"foreign","createdAt":7,"cwd":"/x","unknown":1}'


@pytest.fixture
def store(tmp_path: Path) -> CliStore:
    return CliStore(tmp_path / "sessions")


def foreign(tmp_path: Path, *events: bytes, header: bytes = HEADER) -> str:
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in (header, *events)))
    return str(path)


def nothing_written(store: CliStore) -> bool:
    return not store.path.exists() or {p.name for p in store.path.iterdir()} <= {".lock"}


def test_every_recorded_log_that_the_reference_accepts_is_imported_with_its_meaning(
    store: CliStore, tmp_path: Path
) -> None:
    lines, imported = golden.logs("recorded-logs.tar.gz"), 0
    for number, verdict in enumerate(golden.verdicts()):
        if "refused" in verdict:
            continue
        stored, session = lines[verdict["log"]], f"log-{number}"
        ran = store.run(
            "import", foreign(tmp_path, *stored[1:], header=stored[0]), "--id", session, "--json"
        )
        assert (ran.code, ran.err) == (0, "")
        assert orjson.loads(ran.out)["events"] == verdict["events"]
        found = JsonlFolder(store.path).read(session)
        assert (found.foreign, found.torn, found.header.id) == (False, None, session)
        assert [record.encoded for record in found.records] == stored[1:]
        events = [decode_line(record.encoded) for record in found.records]
        assert list(History(events).surface.nodes) == verdict["surface"]
        requests = [rebuilt(events, r["stepStartSeq"]) for r in verdict["requests"]]
        assert requests == verdict["requests"]
        JsonlFolder(store.path).open(session).close()
        imported += 1
    assert imported == 58


def test_what_the_reference_refuses_is_refused_or_granted_and_leaves_nothing(
    store: CliStore, tmp_path: Path
) -> None:
    lines, refused = golden.logs("recorded-logs.tar.gz"), 0
    for verdict in golden.verdicts():
        if "refused" not in verdict or "lacks provider/model" in verdict["refused"]:
            continue
        stored = lines[verdict["log"]]
        ran = store.run("import", foreign(tmp_path, *stored[1:], header=stored[0]), "--id", "x")
        assert (ran.code, one_sentence(ran.err)) == (4, True)
        assert nothing_written(store)
        refused += 1
    assert refused


def test_logs_with_reported_usage_are_imported(store: CliStore, tmp_path: Path) -> None:
    for number, stored in enumerate(golden.logs("usage-logs.tar.gz").values()):
        path = foreign(tmp_path, *stored[1:], header=stored[0])
        assert store.run("import", path, "--id", f"log-{number}").code == 0
        records = JsonlFolder(store.path).read(f"log-{number}").records
        assert [record.encoded for record in records] == stored[1:]


def test_an_imported_log_is_whole_durable_and_vouched_for(store: CliStore, tmp_path: Path) -> None:
    path = foreign(tmp_path, *(event(seq, text="é") for seq in range(4)))
    ran = store.run("import", path)
    assert (ran.code, ran.out, one_sentence(ran.err)) == (0, "foreign\n", True)
    checked = store.run("check", "foreign", "--json")
    assert (checked.code, orjson.loads(checked.out)["sessions"][0]["notes"]) == (0, [])
    found = JsonlFolder(store.path).read("foreign")
    assert (found.header.created_at, found.header.cwd, found.end.dur) == (7, "/x", 2)
    assert sorted(p.name for p in store.path.iterdir()) == [
        ".lock",
        "foreign.head",
        "foreign.jsonl",
    ]
    log = JsonlFolder(store.path).open("foreign")
    log.append([event(4)])
    log.close()
    assert len(store.events("foreign")) == 5


def test_every_prefix_of_an_imported_log_is_a_log(store: CliStore, tmp_path: Path) -> None:
    store.run("import", foreign(tmp_path, *(event(seq) for seq in range(4))))
    lines = store.log("foreign").read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        found = scan(b"".join(lines[:count]), "foreign", path="x")
        assert (len(found.records), found.torn) == (count - 1, None)


def test_nothing_closes_an_open_turn(store: CliStore, tmp_path: Path) -> None:
    trigger = {"kind": "message", "source": {"kind": "user"}}
    path = foreign(tmp_path, event(0, "turn/start", turn=1, trigger=trigger))
    assert store.run("import", path).code == 0
    assert [e.type for e in store.events("foreign")] == ["turn/start"]


def test_our_own_lines_are_copied_as_they_are(store: CliStore, made_store: CliStore) -> None:
    for session in ("tour", "changed", made_store.fork):
        path = made_store.log(session)
        assert store.run("import", str(path)).code == 0
        assert store.log(session).read_bytes() == path.read_bytes()
        assert store.run("import", str(path), "--id", f"{session[:8]}-2").code == 0
        again = store.log(f"{session[:8]}-2").read_bytes()
        assert again.split(b"\n")[1:] == path.read_bytes().split(b"\n")[1:]
    assert store.run("check", "--all").code == 0
    assert store.run("verify", "--all").code == 0


def test_a_log_goes_from_store_to_store_and_back_with_equal_bytes(
    store: CliStore, own_store: CliStore
) -> None:
    before = own_store.log("tour").read_bytes()
    assert store.run("import", str(own_store.log("tour"))).code == 0
    own_store.log("tour").unlink()
    assert own_store.run("import", str(store.log("tour"))).code == 0
    assert own_store.log("tour").read_bytes() == before


def test_nothing_is_ever_overwritten(own_store: CliStore, tmp_path: Path) -> None:
    before = own_store.log("tour").read_bytes()
    for path in (str(own_store.log("tour")), foreign(tmp_path, event(0))):
        ran = own_store.run("import", path, "--id", "tour")
        assert (ran.code, one_sentence(ran.err)) == (3, True)
        assert "exists already" in ran.err
    assert own_store.log("tour").read_bytes() == before


@pytest.mark.parametrize("id_", [b'"{{sessionId}}"', b'"a/b"', b"3", b"null", b'"\\u001b[2J"'])
def test_a_placeholder_of_an_id_asks_for_a_real_one(
    store: CliStore, tmp_path: Path, id_: bytes
) -> None:
    path = foreign(tmp_path, event(0), header=HEADER.replace(b'"foreign"', id_))
    ran = store.run("import", path)
    assert (ran.code, one_sentence(ran.err)) == (2, True)
    assert "--id" in ran.err
    assert hidden(ran.err) == []
    if id_.startswith(b'"'):
        assert store.run("import", path, "--id", "mine").out == "mine\n"
    assert store.run("import", path, "--id", "../mine").code == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"type":"request/header-delta","seq":0,"time":0,"data":{}}', 3),
        (b'{"type":"request/header","seq":0,"time":0,"data":{"reason":"whim"}}', 3),
        (b'{"type":"x","seq":1,"time":0,"data":{}}', 4),
        (b'{"type":"x","seq":0,"data":{}}', 4),
        (b'{"type":"x","seq":0,"time":0,"data":{},"more":1}', 4),
        (b'{"type":"x","seq":0,"time":0,"data":{},"surfaceOp":"append"}', 4),
        (b'{"type":"x","seq":0,"time":0,"data":{"a":[-0.0]}}', 4),
        (b'{"type":"x","seq":0,"time":0,"data":%b}' % (b"[" * 300 + b"]" * 300), 4),
        (b'{"type":"user/message","seq":0,"time":0,"data":{"content":[]},"surfaceOp":"append"}', 4),
        (b"", 4),
        (b"no json", 4),
    ],
)
def test_what_no_log_may_hold_is_refused_and_leaves_nothing(
    store: CliStore, tmp_path: Path, line: bytes, code: int
) -> None:
    ran = store.run("import", foreign(tmp_path, line))
    assert (ran.code, one_sentence(ran.err)) == (code, True)
    assert nothing_written(store)


def test_a_seed_keeps_its_length_and_gets_its_checksum(store: CliStore, tmp_path: Path) -> None:
    header = HEADER[:-1] + b',"parentSession":"p","seedLength":2}'
    assert (
        store.run("import", foreign(tmp_path, event(0), event(1), event(2), header=header)).code
        == 0
    )
    found = JsonlFolder(store.path).read("foreign")
    assert (found.header.seed_length, found.header.seed_crc) == (2, found.records[1].crc)
    ran = store.run("import", foreign(tmp_path, event(0), header=header), "--id", "short")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "seedLength is 2" in ran.err


def test_a_torn_tail_is_left_out_and_told(
    store: CliStore, own_store: CliStore, tmp_path: Path
) -> None:
    whole = own_store.log("tour").read_bytes()
    own_store.log("tour").write_bytes(whole + b'{"crc":"0123')
    ran = store.run("import", str(own_store.log("tour")))
    assert (ran.code, "12 bytes at the end" in ran.err) == (0, True)
    assert store.log("tour").read_bytes() == whole
    own_store.log("tour").write_bytes(whole[:-1])
    assert store.run("import", str(own_store.log("tour")), "--id", "again").code == 0
    assert len(store.events("again")) == len(store.events("tour"))
    path = Path(foreign(tmp_path, event(0), event(1)))
    path.write_bytes(path.read_bytes()[:-9])
    ran = store.run("import", str(path), "--id", "cut", "--json")
    assert orjson.loads(ran.out) == {
        "session": "cut",
        "events": 1,
        "foreign": True,
        "leftOutBytes": len(event(1)) - 8,
    }


def test_a_last_line_that_only_lost_its_newline_is_kept(store: CliStore, tmp_path: Path) -> None:
    path = Path(foreign(tmp_path, event(0), event(1)))
    path.write_bytes(path.read_bytes()[:-1])
    assert store.run("import", str(path)).code == 0
    assert len(store.events("foreign")) == 2


def test_damage_is_not_imported(store: CliStore, own_store: CliStore) -> None:
    data = bytearray(own_store.log("tour").read_bytes())
    data[len(data) // 2] ^= 1
    own_store.log("tour").write_bytes(data)
    ran = store.run("import", str(own_store.log("tour")))
    assert (ran.code, one_sentence(ran.err)) == (4, True)
    assert "is damaged at byte" in ran.err
    assert "repair" not in ran.err  # it is in no store yet
    assert nothing_written(store)


@pytest.mark.parametrize("tail", ["partial", "lines"])
def test_a_log_of_whose_events_none_is_whole_is_refused(
    any_store: CliStore, tmp_path: Path, tail: str
) -> None:
    any_store.write("odd", event(0), event(1))
    header, _, lines = any_store.raw("odd").partition(b"\n")
    rest = {"partial": lines[:30], "lines": lines.replace(b'"seq":0', b'"seq":9')}[tail]
    path, before = tmp_path / "odd.jsonl", any_store.ids()
    path.write_bytes(header + b"\n" + rest)
    ran = any_store.run("import", str(path), "--id", "again")
    assert (ran.code, ran.out, one_sentence(ran.err)) == (4, "", True)
    assert f"{len(rest)} bytes behind its header" in ran.err
    assert "repair" not in ran.err
    assert any_store.ids() == before
    path.write_bytes(header + b"\n")
    assert any_store.run("import", str(path), "--id", "again").code == 0


def test_a_foreign_log_of_whose_events_none_is_whole_is_refused(
    store: CliStore, tmp_path: Path
) -> None:
    path = Path(foreign(tmp_path, event(0)))
    path.write_bytes(path.read_bytes()[:-9])
    ran = store.run("import", str(path))
    assert (ran.code, ran.out, one_sentence(ran.err)) == (4, "", True)
    assert nothing_written(store)


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_read_is_told(store: CliStore, tmp_path: Path, name: str) -> None:
    ran = store.run("import", str(tmp_path / name))
    assert (ran.code, one_sentence(ran.err)) == (3, True)


@pytest.mark.parametrize("data", [b"", b"\0" * 99, b"[1]\n", b"just text\n", b'{"type":"x"}\n'])
def test_a_file_that_is_no_log_is_told(store: CliStore, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(data)
    ran = store.run("import", str(tmp_path / "x.jsonl"), "--id", "x")
    assert (ran.code in (3, 4), one_sentence(ran.err)) == (True, True)
    assert nothing_written(store)


def test_nothing_that_a_terminal_would_obey_is_ever_printed(
    store: CliStore, tmp_path: Path
) -> None:
    path = tmp_path / "a\x1b[2J\u202e.jsonl"
    path.write_bytes(HEADER + b"\n" + event(0, text=HOSTILE) + b"\n")
    for session, form in (("one", []), ("two", ["--json"])):
        ran = store.run("import", str(path), "--id", session, *form)
        assert ran.code == 0
        assert hidden(ran.out + ran.err) == []


def test_a_failed_import_leaves_no_draft(
    store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    ran = store.run("import", foreign(tmp_path, event(0)))
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert nothing_written(store)
