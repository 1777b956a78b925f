"""The mutants themselves: each is one change, compiles, and keeps its name while lines move."""

from __future__ import annotations

from tests.mutation.operators import Mutant, mutants

SOURCE = '''
KINDS = frozenset({"one", "two"})


def judge(count: int, kind: str) -> int | None:
    """Not this sentence."""
    assert count >= 0, "nor this"
    if count > 3 and kind in KINDS:
        raise ValueError(f"nor {count}")
    match kind:
        case "one" | "two" if count:
            return count + 1
    return None


class Box:
    LIMIT = 5

    def put(self, thing: object) -> None:
        self.thing = thing
        for _ in range(2):
            print(thing)
'''

EXPECTED = {
    ("room.KINDS", "`{'one', 'two'}` -> `set(('two',))`"),
    ("room.KINDS", "`{'one', 'two'}` -> `set(('one',))`"),
    ("room.KINDS", "`'one'` -> `'onex'`"),
    ("room.judge", "`count > 3 and kind in KINDS` -> `True`"),
    ("room.judge", "`count > 3 and kind in KINDS` -> `False`"),
    ("room.judge", "`count > 3 and kind in KINDS` -> `count > 3 or kind in KINDS`"),
    ("room.judge", "`count > 3 and kind in KINDS` -> `kind in KINDS`"),
    ("room.judge", "`count > 3 and kind in KINDS` -> `count > 3`"),
    ("room.judge", "`count > 3` -> `count >= 3`"),
    ("room.judge", "`count > 3` -> `count <= 3`"),
    ("room.judge", "`3` -> `4`"),
    ("room.judge", "`kind in KINDS` -> `kind not in KINDS`"),
    ("room.judge", "`raise ValueError(f'nor {count}')` -> `pass`"),
    ("room.judge", "`case 'one' | 'two' if count` -> `case 'one' | 'two' if False`"),
    ("room.judge", "`case 'one' | 'two' if count` -> `case 'one' | 'two'`"),
    ("room.judge", "`'one' | 'two'` -> `'two'`"),
    ("room.judge", "`return count + 1` -> `return None`"),
    ("room.judge", "`count + 1` -> `count - 1`"),
    ("room.Box.put", "`self.thing = thing` -> `pass`"),
    ("room.Box.put", "`print(thing)` -> `pass`"),
}


def named(source: str) -> dict[tuple[str, str], Mutant]:
    found = mutants(source, "house.room")
    by_key = {mutant.key: mutant for mutant in found}
    assert len(by_key) == len(found), "two mutants have one name"
    return by_key


def test_each_condition_step_and_constant_has_its_mutants() -> None:
    found = named(SOURCE)
    assert set(found) >= EXPECTED
    assert not any("nor" in change and "raise" not in change for _, change in found)
    for mutant in found.values():
        mutant.compile("room.py")


def test_a_mutant_keeps_its_name_while_the_lines_around_it_move() -> None:
    before, after = named(SOURCE), named("\n\n" + SOURCE)
    assert set(before) == set(after)
    assert {after[key].line - one.line for key, one in before.items()} == {2}


def test_the_changed_code_does_what_the_change_says() -> None:
    found = named(SOURCE)

    def result(change: str, *arguments: object) -> object:
        names: dict[str, object] = {}
        exec(found["room.judge", change].compile("room.py"), names)
        judge = names["judge"]
        assert callable(judge)
        return judge(*arguments)

    assert result("`count + 1` -> `count - 1`", 2, "one") == 1
    assert result("`return count + 1` -> `return None`", 2, "one") is None
    assert result("`raise ValueError(f'nor {count}')` -> `pass`", 9, "two") == 10
    assert result("`'one' | 'two'` -> `'two'`", 2, "one") is None
    assert result("`count > 3` -> `count >= 3`", 2, "one") == 3
