"""What came from a log is shown and never obeyed."""

from __future__ import annotations

import sys
import unicodedata

import orjson
import pytest

from refold import render
from tests.refold.cli_stores import HOSTILE

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HARMLESS = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060"


def hidden(text: str) -> list[str]:
    """The characters of a text that a terminal would act on, or that deceive whoever reads it."""
    acting = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return [c for c in text if unicodedata.category(c) in acting and c not in f"\n\t{HARMLESS}"]


def test_every_character_that_a_terminal_acts_on_or_that_deceives_is_escaped() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert set(BIDI) <= set(hidden(every))
    assert hidden(render.visible(every)) == []
    assert hidden(render.visible_line(every)) == []
    tags = "".join(map(chr, range(0xE0000, 0xE0080)))
    assert render.visible(tags).isascii()


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with a non-joiner
        "\u0915\u094d\u200d\u0937",  # Hindi, with a joiner
        "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",  # a family
        "\u2764\ufe0f \u2708\ufe0e",  # variation selectors
        "e\u0301 \u0e2a\u200b\u0e27",  # a combining accent; Thai, with a place to break
        "\ue0b0 \U0001fae8 \U0001fadf",  # an icon of a font; emoji newer than some Pythons
    ],
)
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert render.visible(text) == text
    assert render.visible_line(text) == text


def test_what_people_write_stays_as_it_is() -> None:
    text = "naïve 日本\u3000語 👍 n°\u00a01\n\tindented \\ 'quoted' é"
    assert render.visible(text) == text


def test_escapes_name_the_character() -> None:
    assert render.visible("\x1b[2J\x9b\u202e\U000e0041") == r"\x1b[2J\x9b\u{202e}\u{e0041}"


def test_a_line_has_no_newline_tab_or_return() -> None:
    assert render.visible_line("a\nb\tc\rd") == r"a\nb\tc\rd"


def test_json_means_the_same_and_holds_nothing_that_a_terminal_obeys() -> None:
    value = {"text": HOSTILE + "\U000e0041\ue000", "plain": "é 👍"}
    text = render.to_json(value)
    assert orjson.loads(text) == value
    assert text.replace("\u3000", "").isprintable()
    assert "\n" not in text
    assert "é 👍" in text


def test_pretty_json_keeps_the_order_of_its_keys() -> None:
    assert render.to_pretty_json(b'{"b":1,"a":[]}') == '{\n  "b": 1,\n  "a": []\n}'


def test_percent_is_rounded_down_and_unknown_is_no_zero() -> None:
    assert [render.percent(share) for share in (1, 0.9999, 0, None)] == [
        "100.0 %",
        "99.9 %",
        "0.0 %",
        "-",
    ]


def test_a_bar_is_full_only_at_one() -> None:
    assert [render.bar(share, 4) for share in (1, 0.99, 0.5, 0, None)] == [
        "####",
        "###.",
        "##..",
        "....",
        "-",
    ]


def test_shortened_text_is_one_line_within_its_limit() -> None:
    assert render.shortened("short\nlines", 20) == r"short\nlines"
    cut = render.shortened("\x1b" * 100, 20)
    assert len(cut) <= 20
    assert cut.endswith("...")
    assert len(render.shortened("x" * 21, 20)) == 20


def test_a_table_lines_its_columns_up() -> None:
    rows = [("1.1", "5", "x"), ("12.3", "150", "a\nb")]
    assert render.table(("step", "in", "note"), rows, left=frozenset({0, 2})).split("\n") == [
        "step   in  note",
        "1.1     5  x",
        r"12.3  150  a\nb",
    ]


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"),
    [(True, None, True), (True, "1", False), (True, "", True), (False, None, False)],
)
def test_colour_needs_a_terminal_and_no_veto(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, no_color: str | None, coloured: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert (render.styled("text", "red") != "text") == coloured
