"""How log lines look: one JSON object each for ``KANDEV_LOG_FORMAT=json``, and never a login secret."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

_LOGIN_SECRET = re.compile(r"(/login/)[^/\s'\"?]+")
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, whatever ``extra`` held, and the traceback if there is one."""

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
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


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
