"""Moments as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.runtime.times import utc

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
END = (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)


@given(st.integers(FIRST, END))
def test_it_is_what_the_calendar_says(epoch_ms: int) -> None:
    moment = EPOCH + timedelta(milliseconds=epoch_ms)
    assert utc(epoch_ms) == f"{moment:%Y-%m-%d %H:%M:%S} UTC".rjust(23, "0")


@pytest.mark.parametrize("year", [1900, 1970, 2000, 2023, 2024, 2100])
def test_every_day_of_a_year_is_the_one_of_the_calendar(year: int) -> None:
    day = datetime(year, 1, 1, tzinfo=UTC)
    while day.year == year:
        assert utc((day - EPOCH) // timedelta(milliseconds=1)) == f"{day:%Y-%m-%d} 00:00:00 UTC"
        day += timedelta(days=1)


@pytest.mark.parametrize("beyond", [FIRST - 1, END + 1, -(2**63), 2**63])
def test_what_no_calendar_has_stays_a_number(beyond: int) -> None:
    assert utc(beyond) == f"{beyond} epoch ms"
