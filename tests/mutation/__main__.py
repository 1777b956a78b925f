"""`python -m tests.mutation`; see the package."""

from __future__ import annotations

import importlib.util
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import attrs
import click
import pytest

from tests.mutation.operators import Mutant, mutants
from tests.mutation.targets import TARGETS
from tests.mutation.zygote import Verdict, Zygote

SURVIVORS = Path(__file__).with_name("survivors.toml")


@attrs.define
class Report:
    """What a run came to."""

    accepted: dict[tuple[str, str], str]
    verbose: bool
    made: dict[str, int] = attrs.field(factory=dict)
    killed: dict[str, int] = attrs.field(factory=dict)
    known: dict[str, int] = attrs.field(factory=dict)
    new: list[tuple[str, Verdict]] = attrs.field(factory=list)
    outlived: list[tuple[str, str]] = attrs.field(factory=list)

    def take(self, module: str, verdict: Verdict) -> None:
        mutant = verdict.mutant
        _count(self.made, module)
        if verdict.killed_by is not None:
            _count(self.killed, module)
            if mutant.key in self.accepted:
                self.outlived.append(mutant.key)
            if self.verbose:
                click.echo(f"killed   {_place(module, mutant)}  by {verdict.killed_by}")
        elif mutant.key in self.accepted:
            _count(self.known, module)
        else:
            self.new.append((module, verdict))
            how = f"{verdict.tests} tests" if verdict.tests else "no test runs it"
            click.echo(f"SURVIVED {_place(module, mutant)}  ({how}, {verdict.seconds:.1f} s)")

    def line(self, module: str) -> str:
        """The counts of a module, for people."""
        made, killed, known = (
            counts.get(module, 0) for counts in (self.made, self.killed, self.known)
        )
        new = made - killed - known
        return f"  {module:36}{made:5} made {killed:5} killed {known:4} accepted {new:4} new"


def _count(counts: dict[str, int], module: str) -> None:
    counts[module] = counts.get(module, 0) + 1


def _place(module: str, mutant: Mutant) -> str:
    return f"{_source(module)}:{mutant.line} {mutant.where}: {mutant.change}"


def _source(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@click.command()
@click.argument("targets", nargs=-1, type=click.Choice(list(TARGETS)))
@click.option("--list", "list_", is_flag=True, help="Name the targets and end.")
@click.option("--jobs", default=1, show_default=True, help="Mutants that are tried at once.")
@click.option("--only", default="", help="Only mutants whose place or change has this text.")
@click.option("--marks", default="not slow and not crash and not engine", show_default=True)
@click.option("--verbose", is_flag=True, help="Name the killed ones too, and what killed them.")
@click.pass_context
def main(
    context: click.Context,
    targets: Sequence[str],
    list_: bool,
    jobs: int,
    only: str,
    marks: str,
    verbose: bool,
) -> None:
    """Change one condition of each TARGET at a time and see which changes no test notices."""
    if list_ or not targets:
        for name, target in TARGETS.items():
            click.echo(f"{name:12}{' '.join(target.modules)}")
        return
    began = time.monotonic()
    report = Report(_accepted(targets), verbose)
    modules = [module for name in targets for module in TARGETS[name].modules]
    work = [(module, _mutants_of(module, only)) for module in modules]
    tests = dict.fromkeys(path for name in targets for path in TARGETS[name].tests)
    zygote = Zygote(work, jobs, report.take)
    options = ["-q", "-s", "--tb=line", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    paths = [path for path in tests if Path(path).exists()]
    without = {part for name in targets for part in TARGETS[name].without}
    if without:
        options += ["-k", f"not ({' or '.join(sorted(without))})"]
    pytest.main([*options, "-m", marks, *paths], plugins=[zygote])
    untried = sum(len(found) for _, found in work) - sum(report.made.values())
    if untried:
        click.echo(f"{untried} mutants were not tried")
    for broken in zygote.broken:
        click.echo(f"FAILS without a change: {broken}")
    existing = {mutant.key for _, found in work for mutant in found}
    gone = [] if only else [key for key in report.accepted if key not in existing]
    for where, change in gone:
        click.echo(f"GONE     {where}: {change} is no mutant any more; strike it from the list")
    for where, change in report.outlived:
        click.echo(f"note     {where}: {change} was noticed; it may be struck from the list")
    click.echo(f"\n{' '.join(targets)}: {time.monotonic() - began:.0f} s")
    for module, _ in work:
        click.echo(report.line(module))
    context.exit(1 if untried or report.new or gone else 0)


def _mutants_of(module: str, only: str) -> list[Mutant]:
    made = mutants(_source(module).read_text(encoding="utf-8"), _named(module))
    return [mutant for mutant in made if only in f"{mutant.where}: {mutant.change}"]


def _named(module: str) -> str:
    return f"{module}.__init__" if _source(module).name == "__init__.py" else module


def _accepted(targets: Sequence[str]) -> dict[tuple[str, str], str]:
    """The accepted survivors of some targets, by place and change, each with its reason."""
    known = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))
    return {
        (entry["where"], change): entry["reason"]
        for target in targets
        for entry in known.get(target, [])
        for change in entry["changes"]
    }


if __name__ == "__main__":
    main()
