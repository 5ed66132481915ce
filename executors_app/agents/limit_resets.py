"""When a usage limit ends, read from what an agent or its provider says about it.

Agents name the time in many ways: as seconds since 1970, as a duration, as a time of day, with a date or without, with
a time zone or without. A text in which no such time is found gives None: unknown, not *now*.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

_SEARCHED_TEXT_LIMIT: Final = 4000
"""Characters of a text that are read."""
_TIMES_TRIED: Final = 10
"""Times of each form that are tried: a text may name hundreds of time zones, and each is searched on the disk."""
MOST: Final = timedelta(days=35)
"""No known limit lasts longer; a later time is not believed."""
_JUST_PASSED: Final = timedelta(minutes=5)
"""A time that has passed by no more is the time that was meant: the text took a while, or clocks differ."""


@dataclass(frozen=True, slots=True)
class LimitReset:
    """When a limit ends."""

    at: datetime
    """In UTC."""
    zone: str
    """The time zone that was named, as ``Europe/Berlin`` or ``UTC``; empty if none was, so that ``at`` is a guess.

    Durations and seconds since 1970 need no zone: they have ``UTC``.
    """

    @property
    def is_exact(self) -> bool:
        """Whether the time holds whatever the time zone of the agent's machine is."""
        return bool(self.zone)


def find_reset(text: str, now: datetime, local: tzinfo = UTC) -> LimitReset | None:
    """Return when the limit that a text is about ends; None if the text does not say so.

    Args:
        text: what the agent said; it may be long, and may be anything.
        now: the present time, aware.
        local: the time zone of the agent's machine, for a time of day without a zone.
    """
    shown = " ".join(text[:_SEARCHED_TEXT_LIMIT].split())
    for read in _READERS:
        for found in islice(read(shown, now, local), _TIMES_TRIED):
            if now - _JUST_PASSED <= found.at <= now + MOST:
                return LimitReset(max(found.at, now), found.zone)
    return None


# --- Seconds since 1970, and ISO 8601 ---

_EPOCH: Final = re.compile(
    r"(?:\||resets?[_ ]?(?:at|time)?[\"']?\s?[:=]\s?[\"']?)(?P<seconds>\d{10}(?:\d{3})?)(?!\d)", re.IGNORECASE
)
_ISO: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?:\.\d{1,9})?\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?"
)


def _read_epoch(text: str, now: datetime, local: tzinfo) -> Iterator[LimitReset]:
    for found in _EPOCH.finditer(text):
        yield LimitReset(_from_epoch(found["seconds"]), "UTC")


def _from_epoch(digits: str) -> datetime:
    # By the number of digits, not by size: thirteen that begin with 0 would be seconds of a year that has no date.
    seconds = int(digits) / 1000 if len(digits) > 10 else int(digits)
    return datetime.fromtimestamp(seconds, UTC)


def _read_iso(text: str, now: datetime, local: tzinfo) -> Iterator[LimitReset]:
    for found in _ISO.finditer(text):
        zone = (found["zone"] or "").upper()
        offset = {"": "", "Z": "+00:00", "UTC": "+00:00"}.get(zone, zone)
        try:
            moment = datetime.fromisoformat(f"{found['date']}T{found['time']}{offset}")
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=local)
            moment = moment.astimezone(UTC)
        except (ValueError, OverflowError):  # in UTC, the first and last days that can be written have no date
            continue
        yield LimitReset(moment, "UTC" if zone else "")


# --- Durations ---

_UNIT_SECONDS: Final = {
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
}
_AMOUNT: Final = r"\d{1,6}(?:\.\d{1,9})?\s?[a-z]{1,7}"
_DURATION: Final = re.compile(
    r"\b(?:again|resets?|retry|wait|available|renews?|refresh(?:es)?)\b[^.;\d]{0,24}?"
    rf"(?P<parts>{_AMOUNT}(?:,?\s?(?:and\s)?{_AMOUNT}){{0,4}})",
    re.IGNORECASE,
)
_ONE_PART: Final = re.compile(r"(?P<amount>\d{1,6}(?:\.\d{1,9})?)\s?(?P<unit>[a-z]+)", re.IGNORECASE)


def _read_duration(text: str, now: datetime, local: tzinfo) -> Iterator[LimitReset]:
    for found in _DURATION.finditer(text):
        seconds = _duration(found["parts"])
        if 0 < seconds <= MOST.total_seconds():
            yield LimitReset(now + timedelta(seconds=seconds), "UTC")


def _duration(parts: str) -> float:
    """Return the seconds of a duration such as ``3 hours 42 minutes`` or ``6m0s``; what follows it is ignored."""
    seconds = 0.0
    for part in _ONE_PART.finditer(parts):
        unit = _UNIT_SECONDS.get(part["unit"].lower())
        if unit is None:
            break
        seconds += float(part["amount"]) * unit
    return seconds


# --- Times of day ---

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_DATE: Final = rf"(?:{_MONTH}\s(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s(?P<year>20\d\d))?,?\s(?:at\s)?)?"
_TIME: Final = (
    r"(?:(?P<hour12>\d{1,2})(?::(?P<minute12>\d\d))?\s?(?P<half>[ap])\.?m\b\.?"
    r"|(?P<hour24>\d{1,2}):(?P<minute24>\d\d)\b)"
)
_ZONE: Final = r"(?:\s?\(?(?P<zone>UTC|GMT|[A-Z][A-Za-z_]{1,20}(?:/[A-Za-z_+-]{1,20}){1,2})\)?)?"
_CLOCK: Final = re.compile(
    rf"\b(?:resets?|again|until|available|renews?)\b\s?(?:at|on|:)?\s?{_DATE}{_TIME}{_ZONE}", re.IGNORECASE
)


def _read_clock(text: str, now: datetime, local: tzinfo) -> Iterator[LimitReset]:
    for found in _CLOCK.finditer(text):
        zone_name = found["zone"] or ""
        zone = _zone(zone_name) if zone_name else local
        if zone is None:
            zone, zone_name = local, ""
        moment = _moment(found, now.astimezone(zone))
        if moment is not None:
            yield LimitReset(moment.astimezone(UTC), zone_name)


def _zone(name: str) -> tzinfo | None:
    if name.upper() in ("UTC", "GMT"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _moment(found: re.Match[str], now: datetime) -> datetime | None:
    """Return the next moment with this time and, if it has one, this date; None if there is no such date or time."""
    time = _time_of_day(found)
    if time is None:
        return None
    hour, minute = time
    try:
        if not found["month"]:
            moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return moment + timedelta(days=1) if moment < now - _JUST_PASSED else moment
        month, day = _MONTHS.index(found["month"].lower()) + 1, int(found["day"])
        moment = now.replace(
            year=int(found["year"] or now.year), month=month, day=day, hour=hour, minute=minute, second=0, microsecond=0
        )
        if not found["year"] and moment < now - _JUST_PASSED:
            moment = moment.replace(year=now.year + 1)
    except (ValueError, OverflowError):
        return None
    return moment


def _time_of_day(found: re.Match[str]) -> tuple[int, int] | None:
    if found["hour12"] is None:
        hour, minute = int(found["hour24"]), int(found["minute24"])
        return (hour, minute) if hour < 24 and minute < 60 else None
    hour, minute = int(found["hour12"]), int(found["minute12"] or 0)
    if not 1 <= hour <= 12 or minute > 59:
        return None
    return hour % 12 + (12 if found["half"].lower() == "p" else 0), minute


_READERS: Final[tuple[Callable[[str, datetime, tzinfo], Iterator[LimitReset]], ...]] = (
    _read_epoch,
    _read_iso,
    _read_clock,
    _read_duration,
)
