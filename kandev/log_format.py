"""How log lines look: one JSON object each for ``KANDEV_LOG_FORMAT=json``, and never a login secret."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Final

from sessions_app.domain import acting

_LOGIN_SECRET: Final = re.compile(r"(/login/)[^/\s'\"?]+")
_ORDINARY: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NAMED: Final = re.compile(r"\b(session|task|execution|sweep) (?=%s)")
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
        line.update({name: value for name, value in vars(record).items() if name not in _ORDINARY})
        if record.exc_info:
            line["exception"] = _hide(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


class WithWhatIsKnown(logging.Filter):
    """Adds ``session_id``, ``execution_id``, ``sweep_id``, ``cause`` … wherever they are known.

    They are known from who acts, and from messages that name a session by its id; what a line says itself counts.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, with more in it."""
        for name, value in {**acting.known(), **_named(record)}.items():
            if value and not hasattr(record, name):
                setattr(record, name, value)
        return True


def _named(record: logging.LogRecord) -> dict[str, str]:
    """The ids that a message names by its arguments, as in ``session %s: …``."""
    found, arguments = {}, record.args
    if not isinstance(record.msg, str) or not isinstance(arguments, tuple):
        return {}
    for name in _NAMED.finditer(record.msg):
        number = record.msg[: name.end()].replace("%%", "").count("%")
        text = str(arguments[number]) if number < len(arguments) else ""
        if _ID.fullmatch(text):
            found[f"{name[1]}_id"] = text
    return found


class WithoutLoginSecrets(logging.Filter):
    """Takes the secret out of a one-time link's path, which Django names where something went wrong (rule 42)."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without secrets."""
        message = record.getMessage()
        if "/login/" in message:
            record.msg, record.args = _hide(message), ()
        if "/login/" in str(getattr(record, "request", "")):
            record.request = _hide(str(vars(record)["request"]))
        return True


def _hide(text: str) -> str:
    return _LOGIN_SECRET.sub(r"\1…", text)
