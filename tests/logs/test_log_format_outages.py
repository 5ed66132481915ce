"""A database outage is one log line, whichever process notices it."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings

import pytest
from django.db import OperationalError

from kandev.log_format import OUTAGE_RESET_SECONDS, OutageFilter


def record_of(error: Exception, name: str = "x", level: int = logging.ERROR) -> logging.LogRecord:
    """Return the log record of a caught error."""
    try:
        raise error
    except Exception:  # noqa: BLE001 - any, to be logged
        return logging.getLogger(name).makeRecord(name, level, "f", 1, "it failed", (), sys.exc_info())


def away() -> logging.LogRecord:
    return record_of(OperationalError("database or disk is full\nand more"))


def test_outage_is_one_line_without_a_traceback() -> None:
    once, first = OutageFilter(), away()
    assert once.filter(first)
    assert (first.getMessage(), first.exc_info) == ("it failed: database or disk is full", None)
    assert not once.filter(away())


def test_next_outage_is_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    once = OutageFilter()
    assert once.filter(away())
    later = time.monotonic() + OUTAGE_RESET_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert once.filter(away())


@pytest.mark.parametrize("error", [ValueError("no"), OperationalError("no such table: tasks")])
def test_programming_errors_always_keep_their_traceback(error: Exception) -> None:
    once = OutageFilter()
    for _ in range(2):
        record = record_of(error)
        assert once.filter(record)
        assert record.exc_info


def test_forked_processes_share_the_outage() -> None:
    once = OutageFilter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child logs once and exits
        child = os.fork()
    if not child:
        os._exit(0 if once.filter(away()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not once.filter(away())
