"""The body of ``POST /jobs``, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from executors_app.agentctl.http.server import parse_environment, parse_identifier, parse_seconds, parse_text
from executors_app.wire.protocol import validation_error

MAX_SCRIPT_BYTES: Final = 127 << 10
"""Bytes; Linux limits one argument to 128 KiB."""
DEFAULT_TIMEOUT: Final = 600.0
MAX_TIMEOUT: Final = 86_400.0
DEFAULT_GRACE: Final = 5.0
MAX_GRACE: Final = 60.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A checked job; ``cwd`` is relative to the workspace, times are in seconds."""

    job_id: str
    script: str
    environment: Mapping[str, str]
    cwd: str
    timeout: float
    grace: float

    @property
    def digest(self) -> str:
        """Identifies the request, so that a repetition is recognised without storing secrets of its environment."""
        return hashlib.sha256(orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)).hexdigest()


def parse_job_request(body: Mapping[str, Any]) -> JobRequest:
    """Check the body of ``POST /jobs``; raises ApiError."""
    return JobRequest(
        job_id=_parse_job_id(body),
        script=_parse_script(body),
        environment=parse_environment(body, "environment"),
        cwd=parse_text(body, "cwd", "."),
        timeout=parse_seconds(body, "timeout", DEFAULT_TIMEOUT, MAX_TIMEOUT),
        grace=parse_seconds(body, "grace", DEFAULT_GRACE, MAX_GRACE),
    )


def _parse_job_id(body: Mapping[str, Any]) -> str:
    """Return the id; ``.`` and ``..`` cannot be part of a URL path."""
    job_id = parse_identifier(body, "job_id")
    if job_id in {".", ".."}:
        raise validation_error("job_id must be more than dots", field="job_id")
    return job_id


def _parse_script(body: Mapping[str, Any]) -> str:
    script = parse_text(body, "script")
    if "\0" in script or len(script.encode()) > MAX_SCRIPT_BYTES:
        message = f"script may have at most {MAX_SCRIPT_BYTES >> 10} KiB and no U+0000; put a longer one into a file"
        raise validation_error(message, field="script")
    return script
