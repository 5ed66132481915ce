"""Run a program of Kandev with a clock that is wrong: ``-m tests.three_hosts.shifted_clock SECONDS PROGRAM…``.

What Kandev's own processes read as the time of day is shifted; monotonic clocks and those of their children are not.
"""

from __future__ import annotations

import runpy
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from django.utils import timezone


class _Shifted(type):
    """Looks like ``datetime`` to whoever does not ask for the time."""

    by = timedelta()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)

    def __getattr__(cls, name: str) -> Any:
        return getattr(datetime, name)

    def __call__(cls, *args: Any, **values: Any) -> datetime:
        return datetime(*args, **values)  # noqa: DTZ001 - as the caller says

    def now(cls, tz: tzinfo | None = None) -> datetime:
        """Return the wrong time."""
        return datetime.now(tz) + cls.by


class ShiftedDatetime(metaclass=_Shifted):
    """Stands for ``datetime`` where Django asks for the time."""


def shift(seconds: float) -> None:
    """Shift the time of day of this process."""
    _Shifted.by = timedelta(seconds=seconds)
    vars(timezone)["datetime"] = ShiftedDatetime
    right = time.time
    vars(time)["time"] = lambda: right() + seconds


def main() -> None:
    """Shift the clock, and run the program that the arguments name."""
    _, seconds, *program = sys.argv
    shift(float(seconds))
    if program[0] == "-m":
        sys.argv = ["-m", *program[2:]]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = str(Path(program[0]).parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
