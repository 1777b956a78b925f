"""Every command finds its sessions in a SQLite file as it does in a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import attrs
import click.testing
import orjson
import pytest

from refold.cli import main, show
from refold.config import load_config
from refold.runtime.config import InvalidConfig
from refold.runtime.storage import frame_batch, open_sessions
from tests.refold.cli_stores import CliStore
from tests.refold.conftest import body
from tests.refold.test_cli_opening import one_sentence
from tests.runtime.storage.logs import event

DELTA = b'{"type":"request/header-delta","seq":0,"time":0,"data":{}}'


@pytest.fixture
def database(own_store: CliStore) -> CliStore:
    """The sessions of `own_store`, written in the same order, in a SQLite file."""
    store = attrs.evolve(own_store, file=own_store.path.parent / "sessions.db")
    with own_store.opened() as source, store.opened() as target:
        for session in source.list():
            target.adopt(source.read(session).header, body(source.raw(session)))
    return store


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "tour"],
        ["show", "tour", "--events"],
        ["show", "tour", "--json"],
        ["request", "tour", "1.2", "--wire"],
        ["diff", "tour", "1.1", "2.1"],
        ["usage", "changed"],
        ["verify", "--all"],
        ["check", "--all"],
        ["repair", "tour"],
        ["sessions", "--json"],
    ],
)
def test_what_is_read_is_the_same(
    own_store: CliStore, database: CliStore, arguments: list[str]
) -> None:
    with own_store.opened() as sessions:
        for session in sessions.list():
            sessions.open(session).close()  # a head file stands beside each of the others
    one, other = own_store.run(*arguments), database.run(*arguments)
    if arguments[0] == "sessions":
        rows = [orjson.loads(ran.out)["sessions"] for ran in (one, other)]
        assert rows[0] != []
        assert sorted(map(orjson.dumps, rows[0])) == sorted(map(orjson.dumps, rows[1]))
    else:
        assert one.out == other.out
    assert (one.code, one.err) == (other.code, other.err)
    assert one.code == 0


def test_last_is_the_one_that_was_written_to_last_and_a_fork_is_newer(database: CliStore) -> None:
    assert database.run("show", "last").lines[0].split()[1] == "tour,"
    forked = database.run("fork", "changed", "--json")
    assert (
        database.run("show", "last").lines[0].split()[1]
        == orjson.loads(forked.out)["session"] + ","
    )
    assert database.run("verify", "last").code == 0


def test_the_option_wins_over_the_environment(database: CliStore, tmp_path: Path) -> None:
    elsewhere = CliStore(tmp_path / "elsewhere")
    assert elsewhere.run("show", "tour").code == 3
    assert elsewhere.run("show", "tour", "--store", database.address).code == 0


def test_a_relative_address_is_taken_from_the_current_folder(
    database: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database.file is not None
    monkeypatch.chdir(database.file.parent)
    elsewhere = CliStore(tmp_path / "elsewhere")
    ran = elsewhere.run("show", "tour", "--store", f"sqlite:///{database.file.name}")
    assert ran.code == 0


def test_a_path_to_a_log_file_goes_by_itself(own_store: CliStore, database: CliStore) -> None:
    assert database.run("delete", "tour", "--yes").code == 0
    assert database.run("show", str(own_store.log("tour"))).code == 0


def test_a_configuration_may_name_a_sqlite_file(
    database: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database.file is not None
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("REFOLD_STORE", raising=False)
    config = database.file.parent / "refold.toml"
    config.write_text(f'store = "sqlite:///{database.file.name}"')
    assert load_config(config).store == f"sqlite:///{database.file}"
    ran = click.testing.CliRunner().invoke(main, ["show", "tour", "--config", str(config)])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize("store", ["sqlite:///", "sqlite:x.db", "http://x"])
def test_an_address_of_no_store_is_refused(
    made_store: CliStore, tmp_path: Path, store: str
) -> None:
    ran = made_store.run("sessions", "--store", store)
    assert (ran.code, one_sentence(ran.err)) == (2, True)
    (tmp_path / "refold.toml").write_text(f'store = "{store}"')
    with pytest.raises(InvalidConfig, match="sqlite:///FILE"):
        load_config(tmp_path / "refold.toml")


def test_a_sqlite_file_that_is_not_there_has_no_sessions_and_is_not_made(tmp_path: Path) -> None:
    store = CliStore(tmp_path, file=tmp_path / "absent.db")
    ran = store.run("show", "last")
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert f"there are no sessions in {store.address}" in ran.err
    assert store.run("sessions").code == 0
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_store_is_told_with_what_to_give(own_store: CliStore) -> None:
    path = own_store.log("tour")
    ran = own_store.run("sessions", "--store", str(path))
    assert (ran.code, "give a store's folder, or sqlite:///FILE" in ran.err) == (3, True)
    ran = own_store.run("sessions", "--store", f"sqlite:///{path}")
    assert (ran.code, "no store that this refold can use; name another file" in ran.err) == (
        3,
        True,
    )


def test_a_log_in_a_sqlite_file_is_followed(
    any_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(any_store.events("tour"))

    def append() -> None:
        with any_store.opened() as sessions:
            log = sessions.open("tour")
            log.append([event(log.next_seq, "note", text="more")])
            log.close()

    def repair() -> None:
        with any_store.opened() as sessions:
            found, data = sessions.read("tour"), sessions.raw("tour")
            sessions.replace(found.header, body(data), (found.end.offset, b""))

    rest = [append, lambda: None, repair, append]

    def pause(_seconds: float) -> None:
        if not rest:
            raise KeyboardInterrupt
        rest.pop(0)()

    monkeypatch.setattr(show, "time", SimpleNamespace(sleep=pause))
    ran = any_store.run("show", "tour", "--follow", "--json")
    assert (ran.code, ran.err) == (130, "")
    assert [orjson.loads(line)["seq"] for line in ran.lines] == list(range(count + 2))


def test_a_log_that_is_deleted_ends_following(
    any_store: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(_seconds: float) -> None:
        assert any_store.run("delete", "tour", "--yes").code == 0

    monkeypatch.setattr(show, "time", SimpleNamespace(sleep=delete))
    ran = any_store.run("show", "tour", "--follow")
    assert (ran.code, "there is no session 'tour'" in ran.err) == (3, True)


@pytest.mark.parametrize("session", ["tour", "changed"])
def test_our_own_log_is_imported_with_its_bytes(
    any_store: CliStore, made_store: CliStore, session: str
) -> None:
    ran = any_store.run("import", str(made_store.log(session)), "--id", "copy")
    assert (ran.code, ran.out) == (0, "copy\n")
    assert body(any_store.raw("copy")) == body(made_store.raw(session))
    assert any_store.run("import", str(made_store.log(session))).code == 3
    assert any_store.run("check", "copy").code == any_store.run("verify", "copy").code == 0


def test_a_foreign_log_is_imported_and_gone_on_with(any_store: CliStore, tmp_path: Path) -> None:
    path = tmp_path / "foreign.jsonl"
    header = b'{"type":"session","id":"{{sessionId}}","createdAt":7}'
    path.write_bytes(b"\n".join([header, event(0, text="\u00e9"), event(1), b""]))
    assert any_store.run("import", str(path), "--id", "foreign").code == 0
    assert [e.encoded for e in any_store.events("foreign")] == [event(0, text="\u00e9"), event(1)]
    with any_store.opened() as sessions:
        log = sessions.open("foreign")
        log.append([event(2)])
        log.close()
    assert any_store.run("check", "foreign").code == 0


@pytest.mark.parametrize("framed", [False, True])
def test_legacy_headers_are_refused_on_load_as_seed_and_by_import(
    any_store: CliStore, tmp_path: Path, framed: bool
) -> None:
    path = tmp_path / "legacy.jsonl"
    path.write_bytes(b'{"type":"session","id":"legacy","createdAt":0}\n' + DELTA + b"\n")
    if framed:
        _smuggle(any_store)
        assert any_store.run("export", "legacy", str(path)).code == 3
        for command in (["show", "legacy"], ["fork", "legacy"], ["repair", "legacy", "--yes"]):
            ran = any_store.run(*command)
            assert (ran.code, "header-delta" in ran.err) == (3, True)
        path.write_bytes(any_store.raw("legacy"))
        assert any_store.run("delete", "legacy", "--yes").code == 0
    before = any_store.ids()
    ran = any_store.run("import", str(path))
    assert (ran.code, one_sentence(ran.err)) == (3, True)
    assert "header-delta" in ran.err
    assert any_store.ids() == before


def _smuggle(store: CliStore) -> None:
    """A framed log with a legacy event, which no store would have written."""
    store.write("legacy", event(0))
    header = store.raw("legacy").partition(b"\n")[0] + b"\n"
    store.put("legacy", header + frame_batch([DELTA], 0, -1)[0])
    store.head("legacy").unlink()


def test_a_store_is_let_go_of_when_the_command_is_over(
    database: CliStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    real = open_sessions

    def opened(where: str) -> object:
        store = real(where)
        monkeypatch.setattr(store, "close", lambda: closed.append(where))
        return store

    monkeypatch.setattr("refold.cli.shared.options.open_sessions", opened)
    database.run("show", "tour")
    database.run("show", "nobody")
    assert closed == [database.address] * 2


COMMANDS = [
    ["sessions"],
    ["show", "tour"],
    ["check", "--all"],
    ["import", "x.jsonl"],
    ["delete", "tour", "--yes"],
    ["prune", "--older-than", "1d"],
    ["chat", "--model", "script/x"],
    ["demo"],
]


def no_memory(store: CliStore, *arguments: str) -> None:
    ran = store.run(*arguments)
    assert (ran.code, ran.out, one_sentence(ran.err)) == (2, "", True)
    assert "ends with its program" in ran.err


@pytest.mark.parametrize("arguments", COMMANDS)
def test_no_command_takes_a_store_in_memory(
    made_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    no_memory(made_store, *arguments, "--store", "memory:")
    no_memory(made_store, "export", "tour", "--to", "memory:")
    assert not [*tmp_path.iterdir()]


def test_neither_the_environment_nor_a_configuration_gives_a_store_in_memory(
    made_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "refold.toml"
    config.write_text('store = "memory:"')
    runner = click.testing.CliRunner(env={"REFOLD_STORE": None})
    for environment in ({"REFOLD_STORE": "memory:"}, {"REFOLD_CONFIG": str(config)}):
        result = runner.invoke(main, ["sessions"], env=environment)
        assert (result.exit_code, "ends with its program" in result.stderr) == (2, True)
    monkeypatch.chdir(tmp_path)
    assert made_store.run("export", "tour", "--to", "./memory:").code == 0
    assert (tmp_path / "memory:").is_dir()
