"""``POST /jobs`` as agentctl takes it: every field is checked, unknown ones are left alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from executors_app.agentctl.bodies import environment, identifier, seconds, text
from executors_app.agentctl.refusals import invalid

LONGEST_SCRIPT: Final = 127 << 10
"""Bytes; a system takes 128 KiB in one argument."""
TIMEOUT: Final = 600.0
LONGEST_TIMEOUT: Final = 86_400.0
GRACE: Final = 5.0
LONGEST_GRACE: Final = 60.0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A script and what it is to be run with; ``cwd`` is relative to the workspace, times are seconds."""

    job_id: str
    script: str
    environment: Mapping[str, str]
    cwd: str
    timeout: float
    grace: float

    @property
    def digest(self) -> str:
        """What two requests of one job have in common; the environment, which may hold secrets, is not kept."""
        return hashlib.sha256(orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)).hexdigest()


def job_request(body: Mapping[str, Any]) -> JobRequest:
    """The body of ``POST /jobs``; Refused."""
    return JobRequest(
        job_id=_id(body),
        script=_script(body),
        environment=environment(body, "environment"),
        cwd=text(body, "cwd", "."),
        timeout=seconds(body, "timeout", TIMEOUT, LONGEST_TIMEOUT),
        grace=seconds(body, "grace", GRACE, LONGEST_GRACE),
    )


def _id(body: Mapping[str, Any]) -> str:
    """Any id but those that the path of an address cannot hold."""
    job_id = identifier(body, "job_id")
    if job_id in {".", ".."}:
        raise invalid("job_id must be more than dots", field="job_id")
    return job_id


def _script(body: Mapping[str, Any]) -> str:
    script = text(body, "script")
    if "\0" in script or len(script.encode()) > LONGEST_SCRIPT:
        message = f"script must have {LONGEST_SCRIPT >> 10} KiB at most, and no U+0000: keep a longer one in a file"
        raise invalid(message, field="script")
    return script
