"""One process that has collected the tests, and a fork of it for each mutant.

It runs as a plugin in the place of pytest's own loop. A child exchanges the code of one function,
which every importer of it then calls, runs the tests that ran the changed lines, and stops at the
first that fails.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import math
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import attrs
import coverage
import pytest

from tests.mutation.operators import Mutant, Place

PATIENCE = 20.0
"""Seconds that a test, or all of a mutant's, may take beyond ten times what it took unchanged."""


@attrs.frozen
class Verdict:
    """What became of a mutant: None survived.

    `killed_by` names the test that failed, or says that the tests hung or ended the process.
    """

    mutant: Mutant
    killed_by: str | None
    tests: int
    seconds: float


@attrs.define
class Baseline:
    """Which tests ran which lines of which file, and how long each took, without a change."""

    seconds: list[float]
    lines: dict[str, dict[int, list[int]]]
    failed: list[str]

    def covering(self, path: str, first: int, last: int) -> set[int]:
        lines = self.lines.get(path, {})
        return {test for line in range(first, last + 1) for test in lines.get(line, ())}

    def of_file(self, path: str) -> set[int]:
        return {test for tests in self.lines.get(path, {}).values() for test in tests}


@attrs.define
class _Child:
    pid: int
    mutant: Mutant
    order: list[int]
    started: float
    deadline: float


class Zygote:
    """The plugin. `work` gives the mutants of each module; `tell` is called with each verdict."""

    def __init__(
        self,
        work: Sequence[tuple[str, Sequence[Mutant]]],
        jobs: int,
        tell: Callable[[str, Verdict], None],
    ) -> None:
        self._work, self._jobs, self._tell = work, jobs, tell
        self._failed_in_child = False
        self._kills: dict[int, int] = {}
        self.broken: list[str] = []
        """Tests that fail without any change; nothing was tried then."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed_in_child = self._failed_in_child or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        modules = {name: importlib.import_module(name) for name, _ in self._work}
        paths = {name: str(module.__file__) for name, module in modules.items()}
        baseline = self._measure(items, list(paths.values()))
        self.broken = baseline.failed
        if self.broken:
            return True
        functions = _functions(set(paths.values()))
        gc.collect()
        gc.freeze()  # what all forks share is neither searched nor copied by their collections
        queue = [(name, mutant) for name, found in self._work for mutant in found]
        running: dict[int, tuple[str, _Child]] = {}
        with selectors.DefaultSelector() as selector:
            while queue or running:
                while queue and len(running) < self._jobs:
                    name, mutant = queue.pop(0)
                    order = self._order(baseline, paths[name], mutant)
                    if not order:
                        self._tell(name, Verdict(mutant, None, 0, 0.0))
                        continue
                    module, path = modules[name], paths[name]

                    def change(
                        mutant: Mutant = mutant, module: ModuleType = module, path: str = path
                    ) -> None:
                        _apply(mutant, module, path, functions)

                    limit = PATIENCE + 10 * sum(baseline.seconds[test] for test in order)
                    pid, pipe = self._fork(items, order, baseline.seconds, change)
                    now = time.monotonic()
                    running[pipe] = name, _Child(pid, mutant, order, now, now + limit)
                    selector.register(pipe, selectors.EVENT_READ)
                self._reap(selector, running, items)
        return True

    def _order(self, baseline: Baseline, path: str, mutant: Mutant) -> list[int]:
        if mutant.place is None:
            chosen = baseline.of_file(path)
        else:
            chosen = baseline.covering(path, mutant.line, mutant.end_line)
        promise = {
            at: (self._kills.get(at, 0) + 0.1) / (baseline.seconds[at] + 0.01) for at in chosen
        }
        return sorted(chosen, key=lambda at: -promise[at])

    def _reap(
        self,
        selector: selectors.BaseSelector,
        running: dict[int, tuple[str, _Child]],
        items: Sequence[pytest.Item],
    ) -> None:
        ready = {key.fd for key, _ in selector.select(timeout=0.2)}
        now = time.monotonic()
        for pipe, (name, child) in list(running.items()):
            late = now > child.deadline
            if pipe not in ready and not late:
                continue
            said = b"" if pipe not in ready else os.read(pipe, 64)
            _end(child.pid)
            selector.unregister(pipe)
            os.close(pipe)
            del running[pipe]
            killed_by = "hanging, or ending the process"
            if said == b"survived":
                killed_by = ""
            elif said:
                self._kills[int(said)] = self._kills.get(int(said), 0) + 1
                killed_by = items[int(said)].nodeid
            verdict = Verdict(
                child.mutant, killed_by or None, len(child.order), now - child.started
            )
            self._tell(name, verdict)

    def _fork(
        self,
        items: Sequence[pytest.Item],
        order: Sequence[int],
        seconds: Sequence[float],
        change: Callable[[], None],
    ) -> tuple[int, int]:
        """A child that makes a change and runs tests; its pipe says which failed first, if any."""
        ours, theirs = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.close(theirs)
            return pid, ours
        try:
            _be_alone(ours)
            change()
            said = b"survived"
            for at in order:
                signal.alarm(math.ceil(PATIENCE + 10 * seconds[at]))  # a test that hangs ends us
                if self._fails(items[at]):
                    said = b"%d" % at
                    break
            os.write(theirs, said)
        finally:
            os._exit(0)

    def _fails(self, item: pytest.Item) -> bool:
        self._failed_in_child = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return self._failed_in_child

    def _measure(self, items: Sequence[pytest.Item], paths: list[str]) -> Baseline:
        """Run everything once in a child, with coverage by test."""
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "baseline.json"
            pid = os.fork()
            if not pid:
                try:
                    _be_alone(None)
                    result.write_text(json.dumps(self._measured(items, paths)))
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
            if not result.exists():
                return Baseline([], {}, ["the run without a change ended early"])
            found = json.loads(result.read_text())
        lines = {
            path: {int(line): tests for line, tests in of_file.items()}
            for path, of_file in found["lines"].items()
        }
        return Baseline(found["seconds"], lines, found["failed"])

    def _measured(self, items: Sequence[pytest.Item], paths: list[str]) -> dict[str, Any]:
        os.environ["COVERAGE_CORE"] = "ctrace"  # the one that knows contexts everywhere
        real = {path: str(Path(path).resolve()) for path in paths}  # coverage follows links
        seen = coverage.Coverage(data_file=None, include=list(real.values()), config_file=False)
        seconds, failed = [], []
        seen.start()
        for at, item in enumerate(items):
            seen.switch_context(str(at))
            before = time.monotonic()
            if self._fails(item):
                failed.append(item.nodeid)
            seconds.append(time.monotonic() - before)
        seen.stop()
        data = seen.get_data()
        lines = {
            path: {
                line: [int(context) for context in contexts if context]
                for line, contexts in data.contexts_by_lineno(real[path]).items()
            }
            for path in paths
        }
        return {"seconds": seconds, "failed": failed, "lines": lines}


def _be_alone(pipe: int | None) -> None:
    """In a child: silent, with a group of its own, so that it can be ended with all it started."""
    os.setsid()
    if pipe is not None:
        os.close(pipe)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


Functions = dict[CodeType, list[FunctionType]]


def _functions(paths: set[str]) -> Functions:
    """Every live function of these files by its code; those made within others, too."""
    found: dict[int, tuple[CodeType, list[FunctionType]]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in paths:
            found.setdefault(id(one.__code__), (one.__code__, []))[1].append(one)
    return dict(found.values())


def _apply(mutant: Mutant, module: ModuleType, path: str, functions: Functions) -> None:
    if mutant.place is None:
        _assign(mutant, module)
        return
    before = _code_at(mutant.place, functions, path)
    (after,) = [one for one in _codes(mutant.compile(path)) if _is_at(one, mutant.place)]
    # What the function made when it was imported lives on its own: tables of conditions do.
    inner = zip(_codes(before), _codes(after), strict=False)
    for old, new in [(before, after), *inner]:
        for function in functions.get(old, ()):
            function.__code__ = new


def _code_at(place: Place, functions: Functions, path: str) -> CodeType:
    (code,) = {one for one in functions if one.co_filename == path and _is_at(one, place)}
    return code


def _is_at(code: CodeType, place: Place) -> bool:
    return (code.co_name, code.co_firstlineno) == (place.name, place.line)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _assign(mutant: Mutant, module: ModuleType) -> None:
    """Give a name of module level, and what is made of it, its value wherever it is imported."""
    names = dict(vars(module))
    exec(mutant.compile(str(module.__file__)), names)
    for name in _made_of(mutant.where.partition(".")[2], mutant.tree):
        before, after = vars(module)[name], names[name]
        for other in list(sys.modules.values()):
            if vars(other).get(name) is before:
                setattr(other, name, after)


def _made_of(name: str, tree: ast.Module) -> list[str]:
    """The name, and those of module level whose values were made from it."""
    made = [name]
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            used = {one.id for one in ast.walk(statement.value) if isinstance(one, ast.Name)}
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name) and used.intersection(made):
                made.append(target.id)
    return made
