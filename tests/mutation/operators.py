"""The mutants of a module: its source with one condition, step or constant changed.

What a reader of a log cannot notice is left alone: annotations, docstrings, sentences for people,
`assert`, and what stands under `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeAlias, TypeVar

import attrs

Node: TypeAlias = ast.AST

T = TypeVar("T")


@attrs.frozen
class Place:
    """The function that a mutant changes: its code is `name` at `line`; module level has none."""

    name: str
    line: int


@attrs.frozen
class Mutant:
    """One change of a module.

    `where` and `change` name it for people and in the list of survivors, without line numbers, so
    that both last while the file around it moves.
    """

    where: str
    change: str
    line: int
    end_line: int
    place: Place | None
    _make: Callable[[], ast.Module] = attrs.field(repr=False, eq=False)

    @property
    def tree(self) -> ast.Module:
        """The changed module. Made when it is asked for: a thousand trees would slow each fork."""
        return self._make()

    @property
    def key(self) -> tuple[str, str]:
        return self.where, self.change

    def compile(self, path: str) -> CodeType:
        return compile(self.tree, path, "exec")


@attrs.frozen
class _Change:
    """How a node is changed; `make` gives what stands in its place in a copy of the tree."""

    node: Node
    make: Callable[[Any], Node]
    after: str | None = None  # where the text of the new node does not tell


def mutants(source: str, module: str) -> list[Mutant]:
    """Every mutant of a module's source, in the order of its lines."""
    tree = ast.parse(source)
    stem = module.rpartition(".")[2] if not module.endswith("__init__") else module.split(".")[-2]
    found: list[Mutant] = []
    seen: dict[tuple[str, str], int] = {}
    for place, scope, root in _scopes(tree):
        where = ".".join([stem, *scope])
        for change in _changes(root, in_function=place is not None):
            mutant = _mutant(tree, where, place, change)
            again = seen[mutant.key] = seen.get(mutant.key, 0) + 1
            if again > 1:
                mutant = attrs.evolve(mutant, change=f"{mutant.change} (no. {again})")
            found.append(mutant)
    return found


def _mutant(tree: ast.Module, where: str, place: Place | None, change: _Change) -> Mutant:
    def make() -> ast.Module:
        memo: dict[int, object] = {}
        copied = copy.deepcopy(tree, memo)
        twin = memo[id(change.node)]
        assert isinstance(twin, ast.AST)
        _replace(copied, twin, change.make(twin))
        return ast.fix_missing_locations(copied)

    before = _text(change.node)
    after = change.after or _text(change.make(copy.deepcopy(change.node)))
    first = getattr(change.node, "lineno", None) or _first_line(change.node)
    last = getattr(change.node, "end_lineno", None) or first
    return Mutant(where, f"{before} -> {after}", first, last, place, make)


def _first_line(node: Node) -> int:
    return min(int(getattr(child, "lineno", 1 << 30)) for child in ast.walk(node))


def _text(node: Node) -> str:
    if isinstance(node, ast.match_case):
        guard = f" if {ast.unparse(node.guard)}" if node.guard else ""
        return f"`case {ast.unparse(node.pattern)}{guard}`"
    if isinstance(node, ast.ExceptHandler):
        return f"`except {ast.unparse(node.type) if node.type else ''}`"
    text = " ".join(ast.unparse(node).split())
    return f"`{text if len(text) <= 90 else text[:87] + '...'}`"


def _replace(tree: ast.AST, old: Node, new: Node) -> None:
    if old is new:
        return
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, ast.copy_location(new, old) if _placed(old) else new)
                return
            if isinstance(value, list):
                for at, item in enumerate(value):
                    if item is old:
                        value[at] = ast.copy_location(new, old) if _placed(old) else new
                        return
    raise AssertionError("the node is in the tree")


def _placed(node: Node) -> bool:
    return hasattr(node, "lineno")


def _scopes(tree: ast.Module) -> Iterator[tuple[Place | None, tuple[str, ...], Node]]:
    """Each outermost function with its name and code, and each statement of module level."""

    def walk(
        body: list[ast.stmt], scope: tuple[str, ...]
    ) -> Iterator[tuple[Place | None, tuple[str, ...], Node]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name == "__str__":
                    continue  # a sentence for people
                # A decorated function's code begins at its first decorator.
                line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                yield Place(node.name, line), (*scope, node.name), node
            elif isinstance(node, ast.ClassDef):
                yield from walk(node.body, (*scope, node.name))
            elif not scope and isinstance(node, ast.Assign | ast.AnnAssign):
                if _assigned(node) in ("__all__", "_log") or _is_alias(node):
                    continue
                yield None, (*scope, _assigned(node)), node

    yield from walk(tree.body, ())


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether it names a type, which nothing reads while a program runs."""
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"


def _assigned(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return ast.unparse(target)


def _changes(root: Node, *, in_function: bool) -> Iterator[_Change]:
    if isinstance(root, ast.FunctionDef | ast.AsyncFunctionDef):
        for statement in root.body:
            yield from _within(statement)
    elif isinstance(root, ast.Assign | ast.AnnAssign) and root.value is not None:
        yield from _within(root.value)


def _within(node: Node) -> Iterator[_Change]:
    """The changes of a node and of all below it, but for what nobody can notice."""
    if isinstance(node, ast.Assert):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring, or the `...` of a protocol
    if isinstance(node, ast.JoinedStr):
        return
    yield from _of(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                yield from _within(child)


def _of(node: Node) -> Iterator[_Change]:
    for kind, rule in _RULES:
        if isinstance(node, kind):
            yield from rule(node)


_COMPARED: dict[type, tuple[type, ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}

_CALCULATED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


def _compare(node: ast.Compare) -> Iterator[_Change]:
    for at, op in enumerate(node.ops):
        for other in _COMPARED[type(op)]:

            def change(twin: Any, at: int = at, other: type = other) -> Node:
                assert isinstance(twin, ast.Compare)
                ops = [*twin.ops[:at], other(), *twin.ops[at + 1 :]]
                return ast.Compare(twin.left, ops, twin.comparators)

            yield _Change(node, change)


def _bool_op(node: ast.BoolOp) -> Iterator[_Change]:
    def swap(twin: Any) -> Node:
        assert isinstance(twin, ast.BoolOp)
        return ast.BoolOp(ast.And() if isinstance(twin.op, ast.Or) else ast.Or(), twin.values)

    yield _Change(node, swap)
    for at in range(len(node.values)):

        def drop(twin: Any, at: int = at) -> Node:
            assert isinstance(twin, ast.BoolOp)
            left = [*twin.values[:at], *twin.values[at + 1 :]]
            return left[0] if len(left) == 1 else ast.BoolOp(twin.op, left)

        yield _Change(node, drop)


def _not(node: ast.UnaryOp) -> Iterator[_Change]:
    if isinstance(node.op, ast.Not):
        yield _Change(node, lambda twin: twin.operand)


def _test(node: ast.If | ast.While | ast.IfExp) -> Iterator[_Change]:
    constants = (False,) if isinstance(node, ast.While) else (True, False)
    for value in () if isinstance(node.test, ast.Constant) else constants:

        def decide(_: Any, value: bool = value) -> Node:
            return ast.Constant(value)

        yield _Change(node.test, decide)


def _comprehension(node: ast.comprehension) -> Iterator[_Change]:
    for condition in node.ifs:
        yield _Change(condition, lambda _: ast.Constant(value=True))


def _returned(node: ast.Return) -> Iterator[_Change]:
    value = node.value
    if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
        yield _Change(node, lambda _: ast.Return(ast.Constant(None)))


def _statement(node: ast.stmt) -> Iterator[_Change]:
    """A statement is left out; its names stay known, so that the rest compiles as it did."""
    if isinstance(node, ast.Assign | ast.Delete) and not _changes_something(node):
        return
    yield _Change(node, _never, after="`pass`")


def _never(twin: Node) -> ast.stmt:
    assert isinstance(twin, ast.stmt)
    return ast.If(ast.Constant(value=False), [twin], [])


def _changes_something(node: ast.Assign | ast.Delete) -> bool:
    """Whether it changes more than a name that is read further down, which would crash at once."""
    return any(
        isinstance(part, ast.Attribute | ast.Subscript)
        and isinstance(part.ctx, ast.Store | ast.Del)
        for target in node.targets
        for part in ast.walk(target)
    )


def _constant(node: ast.Constant) -> Iterator[_Change]:
    value = node.value
    if isinstance(value, bool):
        yield _Change(node, lambda _: ast.Constant(not value))
    elif isinstance(value, int):
        yield _Change(node, lambda _: ast.Constant(value + 1))
        yield _Change(node, lambda _: ast.Constant(value - 1))
    elif isinstance(value, float):
        yield _Change(node, lambda _: ast.Constant(value * 2 or 1.0))
    elif isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9/_.-]*", value):
        yield _Change(node, lambda _: ast.Constant(value + "x"))
    elif isinstance(value, bytes) and value:
        yield _Change(node, lambda _: ast.Constant(value + b"x"))


def _calculated(node: ast.BinOp | ast.AugAssign) -> Iterator[_Change]:
    other = _CALCULATED.get(type(node.op))
    if other is None:
        return

    def change(twin: Any) -> Node:
        assert isinstance(twin, ast.BinOp | ast.AugAssign)
        twin.op = other()
        return twin

    yield _Change(node, change)


def _display(node: ast.Tuple | ast.List | ast.Set | ast.Dict) -> Iterator[_Change]:
    """An element of what is written out is missing."""
    if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return
    size = len(node.keys) if isinstance(node, ast.Dict) else len(node.elts)
    for at in range(size):

        def drop(twin: Any, at: int = at) -> Node:
            if isinstance(twin, ast.Dict):
                return ast.Dict(_without(twin.keys, at), _without(twin.values, at))
            left = _without(twin.elts, at)
            if isinstance(twin, ast.Set):
                return ast.Call(ast.Name("set", ast.Load()), [ast.Tuple(left, ast.Load())], [])
            kind = ast.List if isinstance(twin, ast.List) else ast.Tuple
            return kind(left, ast.Load())

        yield _Change(node, drop)


def _without(items: list[T], at: int) -> list[T]:
    return [*items[:at], *items[at + 1 :]]


def _case(node: ast.match_case) -> Iterator[_Change]:
    def never(twin: Any) -> Node:
        assert isinstance(twin, ast.match_case)
        # Captures stay, so that the rest compiles; the guard keeps the case from being taken.
        return ast.match_case(twin.pattern, ast.Constant(value=False), twin.body)

    if not _is_irrefutable(node.pattern):
        yield _Change(node, never)
    if node.guard is not None:

        def unguarded(twin: Any) -> Node:
            assert isinstance(twin, ast.match_case)
            return ast.match_case(twin.pattern, None, twin.body)

        if not _is_irrefutable(node.pattern):
            yield _Change(node, unguarded)


def _is_irrefutable(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None


def _alternatives(node: ast.MatchOr) -> Iterator[_Change]:
    for at in range(len(node.patterns)):

        def drop(twin: Any, at: int = at) -> Node:
            assert isinstance(twin, ast.MatchOr)
            left = [*twin.patterns[:at], *twin.patterns[at + 1 :]]
            return left[0] if len(left) == 1 else ast.MatchOr(left)

        yield _Change(node, drop)


def _handler(node: ast.ExceptHandler) -> Iterator[_Change]:
    def blind(twin: Any) -> Node:
        assert isinstance(twin, ast.ExceptHandler)
        return ast.ExceptHandler(ast.Tuple([], ast.Load()), twin.name, twin.body)

    yield _Change(node, blind, after="`except ()`")


_RULES: list[tuple[type | tuple[type, ...], Callable[[Any], Iterator[_Change]]]] = [
    (ast.Compare, _compare),
    (ast.BoolOp, _bool_op),
    (ast.UnaryOp, _not),
    ((ast.If, ast.While, ast.IfExp), _test),
    (ast.comprehension, _comprehension),
    (ast.Return, _returned),
    (
        (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Break, ast.Continue),
        _statement,
    ),
    (ast.Constant, _constant),
    ((ast.BinOp, ast.AugAssign), _calculated),
    ((ast.Tuple, ast.List, ast.Set, ast.Dict), _display),
    (ast.match_case, _case),
    (ast.MatchOr, _alternatives),
    (ast.ExceptHandler, _handler),
]
