"""One flipped bit, or one line in the wrong place, is never read as if nothing were."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.damage import closed, flipped, rearranged

pytestmark = pytest.mark.crash

FLIPS = 15_000
"""How many bits are flipped in each log where not all are."""

HEAD = pytest.mark.parametrize("head", [True, False], ids=["with head file", "without"])


def flip(scene: str, seed: int, *, head: bool, most: int | None = None) -> Counter[str]:
    log, counts = closed(scene, seed, head=head), Counter[str]()
    for bit, problem in flipped(log, most):
        assert problem is None, f"{scene} {seed}, bit {bit}: {problem}"
        counts["flips"] += 1
    return counts


@HEAD
def test_a_flipped_bit_is_refused_or_without_a_head_file_reported_in_the_undurable_tail(
    capsys: pytest.CaptureFixture[str], *, head: bool
) -> None:
    counts = flip("tools", 0, head=head, most=FLIPS)
    tell(counts, capsys)


@pytest.mark.slow
@HEAD
def test_no_flip_of_any_bit_is_silent(capsys: pytest.CaptureFixture[str], *, head: bool) -> None:
    counts = Counter[str]()
    for scene in ("tools", "cancel", "fork"):
        counts += flip(scene, 1, head=head)
    tell(counts, capsys)


def test_lines_in_the_wrong_place_are_refused() -> None:
    log, sibling = closed("tools", 0, head=True), closed("tools", 1, head=True)
    tried = 0
    for what, data in rearranged(log, sibling):
        problem = log.damaged(data)
        assert problem is None, f"{what}: {problem}"
        tried += 1
    assert tried > 500


def tell(counts: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{dict(counts)}")  # noqa: T201 - how much was tried is the test's other result
