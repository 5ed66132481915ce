"""Cron expressions: five fields, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_PART: Final = re.compile(r"(?:(?P<all>\*)|(?P<low>\d{1,2})(?:-(?P<high>\d{1,2}))?)(?:/(?P<step>\d{1,2}))?\Z")
_MONTHS: Final = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS: Final = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_SEARCH_LIMIT: Final = timedelta(days=366 * 8 + 1)


class CronError(ValueError):
    """The expression is invalid; users see the message."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron expression. If ``any_day`` or ``any_weekday`` is set, only the other field restricts the day."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first due minute after a moment; None if there is none, as for 30 February."""
        at = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        while at - moment < _SEARCH_LIMIT:
            if at.month not in self.months or not self._is_day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return at
        return None

    def _is_day(self, at: datetime) -> bool:
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return day and weekday
        return day or weekday


def parse_cron(text: str) -> Cron:
    """Parse a cron expression. Raises CronError, naming the field."""
    words = _NAMED.get(text.strip().lower(), text).upper().split()
    if len(words) != len(_FIELDS):
        raise CronError(f"a cron expression has five fields, this one has {len(words)}")
    sets = [_values(word, *field) for word, field in zip(words, _FIELDS, strict=True)]
    weekdays = frozenset(day % 7 for day in sets[4])
    return Cron(sets[0], sets[1], sets[2], sets[3], weekdays, words[2].startswith("*"), words[4].startswith("*"))


def _values(word: str, name: str, lowest: int, highest: int) -> frozenset[int]:
    for number, month in enumerate(_MONTHS, 1):
        word = word.replace(month, str(number)) if name == "month" else word
    for number, weekday in enumerate(_WEEKDAYS):
        word = word.replace(weekday, str(number)) if name == "weekday" else word
    found: set[int] = set()
    for part in word.split(","):
        match = _PART.match(part)
        if match is None:
            raise CronError(f"“{part}” is not a valid {name}")
        low = lowest if match["all"] else int(match["low"])
        last = highest if match["all"] or (match["step"] and not match["high"]) else int(match["high"] or low)
        step = int(match["step"] or 1)
        if not (lowest <= low <= last <= highest and step):
            raise CronError(f"“{part}” is not a {name} between {lowest} and {highest}")
        found.update(range(low, last + 1, step))
    return frozenset(found)
