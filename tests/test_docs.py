"""The documents say what is so: their programs run, their transcripts are what a user sees."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import refold
from refold.faults import OPERATIONS
from tests.snippets import ROOT, Snippet, normalised, snippets

DESIGN = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "design").glob("*.md"))

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/guide.md", "docs/events.md"]
DOCUMENTS += DESIGN


def compiled(snippet: Snippet, document: str) -> Any:
    """The code of a snippet, in which `await` may stand anywhere, as in a notebook."""
    padded = "\n" * (snippet.line - 1) + snippet.text
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(padded, str(ROOT / document), "exec", flags=flags, dont_inherit=True)


async def run_snippet(snippet: Snippet, document: str, names: dict[str, Any]) -> None:
    made = eval(compiled(snippet, document), names)
    if inspect.iscoroutine(made):
        await made


def python(document: str) -> list[Snippet]:
    return [found for found in snippets(document) if found.language == "python"]


def refold_says(command: str, cwd: Path) -> str:
    """What a line such as `refold diff last 1.1 1.2` prints in the folder `cwd`."""
    program, *arguments = shlex.split(command)
    assert program == "refold"
    done = subprocess.run(
        [sys.executable, "-m", "refold", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def commands(transcript: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that it promises."""
    parts = re.split(r"^\$ (.*)\n", transcript, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_the_readme_s_program_and_transcript_are_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = python("README.md")
    assert len(program.text.splitlines()) <= 25
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compiled(program, "README.md"), names)
    assert capsys.readouterr().out == "You need milk. completed\n"

    async def tuesday() -> None:
        model = refold.Script([refold.Say("Nothing else.")])
        async with refold.open("sessions", providers=[model]) as runtime:
            (session_id,) = await runtime.list()
            said = re.search(r"`runtime\.resume\((.*)\)`", (ROOT / "README.md").read_text())
            assert said, "the README does not say how the session is resumed"
            scope = {**names, "session_id": session_id, "resume": runtime.resume}
            agent = await eval(f"resume({said[1]})", scope)
            await agent.ask("Is there anything else?")

    trio.run(tuesday)
    (transcript,) = (found for found in snippets("README.md") if found.language == "console")
    promised = commands(transcript.text)
    assert len(promised) == 2
    for command, output in promised:
        assert normalised(refold_says(command, tmp_path)) == normalised(output)


async def test_the_guide_s_snippets_and_commands_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a program that stands there
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names: dict[str, Any] = {"__name__": "guide"}
    found = snippets("docs/guide.md")
    assert {snippet.language for snippet in found} == {"python", "console", "toml"}
    for snippet in found:
        if snippet.language == "toml":
            (tmp_path / "refold.toml").write_text(snippet.text, "utf-8")
        elif snippet.language == "python":
            with trio.fail_after(30):
                await run_snippet(snippet, "docs/guide.md", names)
        else:
            for command, _ in commands(snippet.text):
                assert refold_says(command, tmp_path), command


def test_the_guide_names_every_operation_that_a_fault_can_strike() -> None:
    text = (ROOT / "docs/guide.md").read_text("utf-8")
    told = re.search(r"one of `faults.OPERATIONS`: (.*?);", text, re.DOTALL)
    assert told
    assert tuple(re.findall(r"`(\w+)`", told[1])) == OPERATIONS


def test_the_catalogue_of_events_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    path = ROOT / document
    text = path.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), f"{document} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_within_a_document_lead_to_a_heading(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    headings = {_anchor(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    missing = set(re.findall(r"\]\(#([^)]+)\)", text)) - headings
    assert missing == set()


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def sources() -> Iterator[Path]:
    """Every file of ours that somebody reads: code, documents, settings."""
    for folder, inside, names in os.walk(ROOT):
        inside[:] = [name for name in inside if name not in ("build", "dist") and name[0] != "."]
        found = (Path(folder, name) for name in names)
        yield from (path for path in found if path.suffix in (".md", ".py", ".toml"))


CITED = re.compile(r'docs/design/([\w-]+\.md)(?:#([\w-]+))?(?:, "([^"]+)")?')


def citations(text: str) -> set[tuple[str, str | None]]:
    """The paragraphs that a text cites: page and anchor, None where it means the page."""
    unwrapped = re.sub(r"\s*\n\s*(?:# )?", " ", text)
    found = CITED.findall(unwrapped)
    return {(page, anchor or (_anchor(name) if name else None)) for page, anchor, name in found}


def test_a_citation_is_found_wherever_its_line_ends() -> None:
    for said in (
        '(docs/design/log.md, "The surface")',
        '(docs/design/log.md,\n# "The\n# surface")',
    ):
        assert citations(said) == {("log.md", "the-surface")}
    assert citations("see docs/design/log.md#the-surface") == {("log.md", "the-surface")}
    assert citations("see docs/design/log.md") == {("log.md", None)}


def test_every_paragraph_that_is_cited_exists() -> None:
    pages = {Path(page).name: (ROOT / page).read_text("utf-8") for page in DESIGN}
    there: set[tuple[str, str | None]] = {(page, None) for page in pages}
    for page, text in pages.items():
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        there |= {(page, _anchor(title)) for title in headings}
    cited = {
        (str(path.relative_to(ROOT)), *one)
        for path in sources()
        if path != Path(__file__).resolve()
        for one in citations(path.read_text("utf-8"))
    }
    assert len(cited) > 3
    assert [one for one in sorted(cited, key=str) if one[1:] not in there] == []


def test_what_a_user_reads_cites_no_page_of_the_design() -> None:
    told = [ROOT / "docs" / "guide.md", ROOT / "docs" / "events.md"]
    found = [path.name for path in told if "docs/design" in path.read_text("utf-8")]
    for package in ("runtime", "actors", "refold"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text("utf-8"))
            docstrings = {id(text) for text in _docstrings(tree)}
            texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
            found += [
                f"{path.relative_to(ROOT)}:{text.lineno}"
                for text in texts
                if isinstance(text.value, str) and "docs/design" in text.value
                if id(text) not in docstrings
            ]
    assert found == []


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings of a module, but not of its commands: those are what `--help` says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body and not _is_command(node) else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _is_command(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any("command" in ast.unparse(decorator) for decorator in decorators)


def test_nothing_refers_to_a_chapter_by_its_number() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {one[0]}"
        for path in sources()
        for one in re.finditer(r"\b[Dd]esign\s+(?:chapter\s+)?\d[\d.]*", path.read_text("utf-8"))
    ]
    assert found == []


def test_the_table_of_rooms_names_every_folder_of_programs_and_no_other() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?/`) \|", text, re.MULTILINE)
    named = {room for row in rows for room in re.findall(r"`([^`]+)/`", row)}
    folders = {str(p.parent.relative_to(ROOT)) for p in sources() if p.suffix == ".py"}
    assert sorted(folders - named) == []
    assert sorted(named - folders) == []
