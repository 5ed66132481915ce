"""How log lines look: one JSON object each for ``KANDEV_LOG_FORMAT=json``, never a login secret, one for an outage."""

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

from sessions_app.domain import actor_context

_LOGIN_SECRET: Final = re.compile(r"(/login/)[^/\s'\"?]+")
OUTAGE_RESET_SECONDS: Final = 60.0
"""Seconds without a failure of the database after which the next one is said again."""
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ID_IN_MESSAGE: Final = re.compile(r"\b(session|task|execution|sweep) (?=%s)")
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, whatever ``extra`` held and is known, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON; what JSON does not know is written as text."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES})
        if record.exc_info:
            line["exception"] = _redact_login_secret(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


class ContextFilter(logging.Filter):
    """Adds ``session_id``, ``execution_id``, ``sweep_id``, ``cause`` … wherever they are known.

    They are known from who acts, and from messages that name a session by its id; what a line says itself counts.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, with more in it."""
        for name, value in {**actor_context.current_context(), **_ids_in_message(record)}.items():
            if value and not hasattr(record, name):
                setattr(record, name, value)
        return True


def _ids_in_message(record: logging.LogRecord) -> dict[str, str]:
    """The ids that a message names by its arguments, as in ``session %s: …``."""
    found, arguments = {}, record.args
    if not isinstance(record.msg, str) or not isinstance(arguments, tuple):
        return {}
    for name in _ID_IN_MESSAGE.finditer(record.msg):
        number = record.msg[: name.end()].replace("%%", "").count("%")
        text = str(arguments[number]) if number < len(arguments) else ""
        if _ID.fullmatch(text):
            found[f"{name[1]}_id"] = text
    return found


class LoginSecretFilter(logging.Filter):
    """Takes the secret out of a one-time link's path, which Django names where something went wrong (rule 42)."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without secrets."""
        message = record.getMessage()
        if "/login/" in message:
            record.msg, record.args = _redact_login_secret(message), ()
        if "/login/" in str(getattr(record, "request", "")):
            record.request = _redact_login_secret(str(vars(record)["request"]))
        return True


class OutageFilter(logging.Filter):
    """Lets one line pass that says why the database takes nothing, without its traceback, and no more of that outage.

    Whatever loops without a database would log a traceback each time. The worker's processes are forked anew for each
    try, so the time of the last one lies in memory that a process shares with those that are forked from it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shared = mmap.mmap(-1, struct.calcsize("d"))
        self._keep(-OUTAGE_RESET_SECONDS)

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop what repeats itself."""
        now = time.monotonic()
        is_known = now - struct.unpack("d", self._shared[:])[0] < OUTAGE_RESET_SECONDS
        if record.name == "django-q" and record.levelno == logging.CRITICAL:
            return not is_known  # that the process which misses the database was started again
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not _is_outage(error):
            return True
        self._keep(now)
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        record.msg, record.args = f"{record.getMessage()}: {reason}", ()
        record.exc_info = record.exc_text = None
        return not is_known

    def _keep(self, at: float) -> None:
        self._shared[:] = struct.pack("d", at)


def _is_outage(error: BaseException) -> bool:
    if not isinstance(error, Error) or not apps.ready:
        return False
    from sessions_app.models.database_errors import DATABASE_FULL, DATABASE_UNAVAILABLE, classify_error  # noqa: PLC0415 - models come after logging

    return classify_error(error) in (DATABASE_FULL, DATABASE_UNAVAILABLE)


def _redact_login_secret(text: str) -> str:
    return _LOGIN_SECRET.sub(r"\1…", text)
