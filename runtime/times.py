"""Moments as people read them, without a clock and without a calendar of the system."""

from __future__ import annotations

_DAY = 86_400_000
_ERA = 146_097  # days of 400 years, after which the calendar repeats
_TO_MARCH = 719_468  # days from 0000-03-01, where a leap day ends the year, to the epoch
_LAST_YEAR = 9999


def utc(epoch_ms: int) -> str:
    """A moment in UTC, to the second; as the number that it is before year 1 and after 9999."""
    days, rest = divmod(epoch_ms, _DAY)
    year, month, day = _date(days)
    if not 1 <= year <= _LAST_YEAR:
        return f"{epoch_ms} epoch ms"
    minutes, seconds = divmod(rest // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02} UTC"


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day after the epoch, in the Gregorian calendar."""
    era, day = divmod(days + _TO_MARCH, _ERA)
    year = (day - day // 1460 + day // 36_524 - day // (_ERA - 1)) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # from March on; five months have 153 days
    day -= (153 * month + 2) // 5
    year += 400 * era + (month >= 10)
    return year, month + 3 if month < 10 else month - 9, day + 1
