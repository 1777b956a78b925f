"""Where `refold.toml` is looked for, the tools that it names, and the command line's use of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from refold.cli import main
from refold.config import LARGEST, ConfigUnreadable, load_config, load_tools
from refold.runtime.config import Config, InvalidConfig
from refold.runtime.wire.providers import find_provider
from tests.refold.cli_stores import CliStore
from tests.refold.test_cli_opening import one_sentence
from tests.refold.test_render import hidden
from tests.snippets import ROOT, snippets


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty current folder and an empty home."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("REFOLD_CONFIG", "REFOLD_STORE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def run(*arguments: str) -> Result:
    """The command without a store in the environment."""
    return CliRunner(env={"NO_COLOR": "1"}).invoke(main, arguments, prog_name="refold")


def test_without_a_file_nothing_is_set() -> None:
    assert load_config() == Config()


def test_the_first_file_that_is_found_counts_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "home/.config/refold/refold.toml", 'model = "a/home"\nsystem = "home"')
    assert load_config().model == "a/home"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative, so ignored")
    assert load_config().model == "a/home"
    write(tmp_path / "xdg/refold/refold.toml", 'model = "a/xdg"')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert load_config().model == "a/xdg"
    write(tmp_path / "cwd/refold.toml", 'model = "a/cwd"')
    assert load_config().model == "a/cwd"
    monkeypatch.setenv("REFOLD_CONFIG", str(write(tmp_path / "named.toml", 'model = "a/named"')))
    assert load_config().model == "a/named"
    given = load_config(write(tmp_path / "given.toml", 'model = "a/given"'))
    assert (given.model, given.system) == ("a/given", None)
    monkeypatch.setenv("REFOLD_CONFIG", "")
    assert load_config().model == "a/cwd"


def test_a_file_that_was_named_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cwd/refold.toml", 'model = "a/cwd"')
    with pytest.raises(ConfigUnreadable, match=r"gone\.toml cannot be read"):
        load_config("gone.toml")
    monkeypatch.setenv("REFOLD_CONFIG", "gone.toml")
    with pytest.raises(ConfigUnreadable, match="REFOLD_CONFIG"):
        load_config()


def test_a_file_that_is_there_and_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cwd/refold.toml").mkdir()
    with pytest.raises(ConfigUnreadable):
        load_config()


@pytest.mark.parametrize(
    "data", [b"model =", b"model = '\xff'", b"a = " + b"[" * 9999, b"a = " + b"9" * 9999]
)
def test_a_file_that_is_no_toml_is_refused_by_name(data: bytes) -> None:
    Path("refold.toml").write_bytes(data)
    with pytest.raises(InvalidConfig, match=r"^refold\.toml: the file is not TOML"):
        load_config()


@pytest.mark.parametrize(
    ("written", "meant"),
    [("sessions", "other/sessions"), ("/abs", "/abs"), ("~/logs", "{home}/logs")],
)
def test_a_store_is_taken_from_the_folder_of_its_file(
    tmp_path: Path, written: str, meant: str
) -> None:
    config = load_config(write(Path("other/refold.toml"), f'store = "{written}"'))
    assert str(config.store) == meant.format(home=tmp_path / "home")


def test_a_home_that_nobody_knows_is_refused() -> None:
    path = write(Path("refold.toml"), 'store = "~nobody-at-all/x"')
    with pytest.raises(InvalidConfig, match="store begins with a home"):
        load_config(path)


def test_tools_come_from_the_current_folder_and_from_what_is_installed() -> None:
    write(Path("my_notes.py"), "def read(): return 'a note'\n")
    write(Path("my_package/inner.py"), "import my_notes\ndef write(): return my_notes.read()\n")
    names = '"my_notes:read", "my_package.inner:write", "shutil:copy"'
    tools = load_tools(load_config(write(Path("refold.toml"), f"tools = [{names}]")))
    assert [tools[0](), tools[1](), tools[2]] == ["a note", "a note", shutil.copy]


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("", "no_such_module:f", "No module named 'no_such_module'"),
        ("", "broken_notes:gone", "there is no function 'gone' in the module broken_notes"),
        ("value = 3", "broken_notes:value", "there is no function 'value'"),
        ("import no_such_library", "broken_notes:f", "No module named 'no_such_library'"),
        ("1 / 0", "broken_notes:f", "ZeroDivisionError"),
        ("def f(:", "broken_notes:f", "SyntaxError"),
    ],
)
def test_a_tool_that_cannot_be_had_is_told_in_a_sentence(source: str, name: str, said: str) -> None:
    write(Path("broken_notes.py"), source)
    config = load_config(write(Path("refold.toml"), f'tools = ["shutil:copy", "{name}"]'))
    with pytest.raises(InvalidConfig, match=r"tools\[1\] names no tool: ") as caught:
        load_tools(config)
    assert said in str(caught.value)


def test_reading_a_configuration_imports_neither_its_tools_nor_trio() -> None:
    write(Path("refold.toml"), 'tools = ["trio:run"]')
    program = (
        "import sys; from refold.config import load_config; assert load_config().tools; "
        "print([name for name in ('trio', 'actors', 'httpx2') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert ran.stdout == "[]\n"


def test_the_example_of_the_guide_is_a_configuration() -> None:
    (example,) = (found for found in snippets("docs/guide.md") if found.language == "toml")
    assert len(example.text.splitlines()) == 10
    config = load_config(write(Path("refold.toml"), example.text))
    assert re.fullmatch(r"vllm/\w+", config.model or "")
    assert find_provider("vllm", config.providers).key_env == "VLLM_API_KEY"
    assert len(config.tools) == 2


def test_a_configured_store_is_used_unless_another_is_named(
    made_store: CliStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("refold.toml"), f'store = "{made_store.path}"')
    write(tmp_path / "empty.toml", 'store = "nothing"')
    assert run("show", "tour").exit_code == 0
    assert run("show", "tour", "--store", "nothing").exit_code == 3
    assert run("show", "tour", "--config", str(tmp_path / "empty.toml")).exit_code == 3
    monkeypatch.setenv("REFOLD_STORE", "nothing")
    assert run("show", "tour").exit_code == 3


@pytest.mark.parametrize(
    ("text", "code"), [("nope = 1", 2), ("store = 1", 2), ("\x1b[2J\u202e = 1", 2), (None, 3)]
)
def test_a_bad_configuration_is_one_sentence_and_a_code(text: str | None, code: int) -> None:
    if text is not None:
        write(Path("bad.toml"), text)
    ran = run("sessions", "--config", "bad.toml")
    assert (ran.exit_code, one_sentence(ran.stderr)) == (code, True)
    assert "bad.toml" in ran.stderr
    assert hidden(ran.stderr) == []


def test_a_bad_configuration_does_not_stop_who_names_a_store(made_store: CliStore) -> None:
    write(Path("refold.toml"), "nope = 1")
    assert made_store.run("show", "tour").code == 0


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "large"])
@pytest.mark.parametrize("named", [True, False])
def test_a_configuration_that_is_no_plain_file_is_one_sentence(kind: str, named: bool) -> None:
    path = Path("other.toml" if named else "refold.toml")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"#" * (LARGEST + 1))
    chosen = ["--config", str(path)] if named else []
    ran = subprocess.run(
        [sys.executable, "-m", "refold", "sessions", *chosen],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (ran.returncode, ran.stdout, one_sentence(ran.stderr)) == (3, "", True)
    assert f"{path} cannot be read" in ran.stderr


def test_a_link_to_a_configuration_is_one_and_the_null_device_is_an_empty_one() -> None:
    Path("real.toml").write_text('model = "local/x"')
    Path("refold.toml").symlink_to("real.toml")
    assert load_config().model == "local/x"
    assert load_config(os.devnull) == Config(Path(os.devnull))
