"""Log formatter and filters: JSON lines, context fields, redaction of login secrets, one line for an outage."""

from __future__ import annotations

import json
import logging
import mmap
import re
import struct
import time
from datetime import UTC, datetime
from typing import Any, Final

from django.apps import apps
from django.db import Error

from sessions_app.kernel import actor_context
from sessions_app.redaction.visible_text import escape_invisible, make_visible

_LOGIN_SECRET: Final = re.compile(r"(/login/)[^/\s'\"?]+")
OUTAGE_RESET_SECONDS: Final = 60.0
"""Seconds without a database failure after which the next one is logged again."""
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ID_IN_MESSAGE: Final = re.compile(r"\b(session|task|execution|sweep) (?=%s)")
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object: time, level, logger, message, extra fields, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON. Values that JSON does not support are written as strings."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES})
        if record.exc_info:
            line["exception"] = _redact_login_secret(self.formatException(record.exc_info))
        return escape_invisible(json.dumps(line, default=str, ensure_ascii=False))


class ConsoleFormatter(logging.Formatter):
    """Format a record for people at a terminal, which no text of an agent, user or file can control.

    The lines after the first are indented, so that none can pass for a record of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines with every invisible character made visible."""
        return make_visible(super().format(record)).replace("\n", "\n  ")


class ContextFilter(logging.Filter):
    """Add ``session_id``, ``execution_id``, ``sweep_id``, ``cause`` and others where they are known.

    They come from the actor context, and from messages that name a session by its id. A record's own fields win.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to the record; every record passes."""
        context = dict(actor_context.current_context()) | _ids_in_message(record)
        for name, value in context.items():
            if value and not hasattr(record, name):
                setattr(record, name, value)
        return True


def _ids_in_message(record: logging.LogRecord) -> dict[str, str]:
    """Return the ids among a message's arguments, as in ``session %s: …``."""
    arguments = record.args
    if not isinstance(record.msg, str) or not isinstance(arguments, tuple):
        return {}
    ids = {}
    for name in _ID_IN_MESSAGE.finditer(record.msg):
        number = record.msg[: name.end()].replace("%%", "").count("%")
        if number >= len(arguments):
            continue
        text = str(arguments[number])
        if _ID.fullmatch(text):
            ids[f"{name[1]}_id"] = text
    return ids


class LoginSecretFilter(logging.Filter):
    """Redact the secret of a login link, whose path Django logs with failed requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record; every record passes."""
        message = record.getMessage()
        if "/login/" in message:
            record.msg, record.args = _redact_login_secret(message), ()
        if "/login/" in str(getattr(record, "request", "")):
            record.request = _redact_login_secret(str(vars(record)["request"]))
        return True


class OutageFilter(logging.Filter):
    """Log a database outage once, as one line with its reason instead of a traceback.

    Otherwise every loop would log a traceback at each attempt. The worker forks a process for each job, so the time of
    the last failure is in memory that forked processes share.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared = mmap.mmap(-1, struct.calcsize("d"))
        self._store_time(-OUTAGE_RESET_SECONDS)

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop repeated failures."""
        if not record.exc_info:
            return True
        error = record.exc_info[1]
        if error is None or not _is_outage(error):
            return True
        now = time.monotonic()
        (last_failure,) = struct.unpack("d", self._shared[:])
        is_known = now - last_failure < OUTAGE_RESET_SECONDS
        self._store_time(now)
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        record.msg, record.args = f"{record.getMessage()}: {reason}", ()
        record.exc_info = record.exc_text = None
        return not is_known

    def _store_time(self, at: float) -> None:
        self._shared[:] = struct.pack("d", at)


def _is_outage(error: BaseException) -> bool:
    if not isinstance(error, Error) or not apps.ready:
        return False
    from sessions_app.kernel.database_errors import DATABASE_FULL, DATABASE_UNAVAILABLE, classify_error  # noqa: PLC0415 - models come after logging

    return classify_error(error) in (DATABASE_FULL, DATABASE_UNAVAILABLE)


def _redact_login_secret(text: str) -> str:
    return _LOGIN_SECRET.sub(r"\1…", text)
