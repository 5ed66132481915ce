"""What happens outside of the database for a node: scripts at agentctl, files of the workspace, the limited process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from executors_app.agentctl.protocol import Code, Job, JobError, JobState
from executors_app.errors import AgentctlRefused, ExecutorError, JobsUnsupported
from sessions_app.workflows import limited

TAIL: Final = 4_000
"""Bytes of each stream that pages see of a script that still runs."""
CUT: Final = "[Not all of the output was kept: of each stream the last MiB is.]\n"
PATIENCE: Final = 0.5
"""Seconds for which one question waits for the end of a script, so that a short one is over with its first answer."""
FILE_LIMIT: Final = 256 << 10
"""Characters of one prompt file."""
_PASSING: Final = frozenset({Code.BUSY, Code.STALE_GENERATION, Code.NOT_RUNNING, Code.JOURNAL_FULL})
"""Refusals of a script that has not begun, and may the next time."""
_ENDS: Final = {
    JobError.TIMEOUT: "it took longer than {timeout} s and was ended",
    JobError.CANCELLED: "it was cancelled",
    JobError.AGENTCTL_ENDED: "its workspace was closed or died while it ran, which ended it; nothing runs it again",
    JobError.SPAWN_FAILED: "it could not be started",
    JobError.LOST: "nobody can know how it ended: its workspace died with it; nothing runs it again",
}


class Jobs(Protocol):
    """The part of ``AgentctlClient`` that is used here."""

    async def start_job(self, job_id: str, request: Mapping[str, Any]) -> Job:
        """Have a script run, once."""

    async def job(self, job_id: str, *, wait: float = 0.0, tail: int | None = None) -> Job:
        """How far it has come."""

    async def cancel_job(self, job_id: str) -> Job:
        """End it."""

    async def read_file(self, path: str) -> dict[str, Any]:
        """A file of the workspace."""


@dataclass(frozen=True, slots=True)
class Told:
    """What agentctl says of a script. ``result`` is None while it runs, or while nobody can be asked."""

    is_confirmed: bool = False
    tail: str = ""
    result: dict[str, Any] | None = None


async def go_on(client: Jobs, job_id: str, request: Mapping[str, Any], *, is_confirmed: bool) -> Told:
    """Start a script, or ask how far it has come; one that was confirmed once is never started again."""
    try:
        if not is_confirmed:
            await client.start_job(job_id, _job_request(request))
        found = await client.job(job_id, wait=PATIENCE, tail=TAIL)
        if found["state"] == JobState.RUNNING:
            return Told(is_confirmed=True, tail=_tail(found))
        return Told(is_confirmed=True, result=_result(await client.job(job_id), request))
    except JobsUnsupported as error:
        return Told(result=_broken(error.message))
    except AgentctlRefused as error:
        if error.refusal in _PASSING:
            return Told()
        lost = error.refusal == Code.JOB_UNKNOWN
        words = _ENDS[JobError.LOST] if lost else f"the workspace refused the script: {error.message}"
        return Told(result=_broken(words))
    except ExecutorError:
        return Told()  # who does not answer now may answer the next time


async def end(client: Jobs, job_id: str) -> None:
    """End a script and all that it started; where nobody answers it ends with its workspace."""
    try:
        await client.cancel_job(job_id)
    except ExecutorError:
        return


def _job_request(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in ("script", "environment", "cwd", "timeout")}


def _result(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
    error = JobError.LOST if job["state"] == JobState.LOST else job["error"]
    words = _ENDS.get(cast("JobError", error), str(error)).format(timeout=request.get("timeout")) if error else ""
    stderr = (CUT if job["truncated"] else "") + job["stderr"]
    return {"stdout": job["stdout"], "stderr": stderr, "exitCode": job["exit_code"], "error": words}


def _broken(error: str) -> dict[str, Any]:
    return {"stdout": "", "stderr": "", "exitCode": None, "error": error}


def _tail(job: Job) -> str:
    return "\n".join(filter(None, (job["stdout"].rstrip(), job["stderr"].rstrip())))[-2 * TAIL :]


async def call(request: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a function, in the limited process: it has no effects, so a second time does no harm."""
    wanted = {name: request[name] for name in ("operation", "code", "inputs")}
    try:
        return {"value": (await asyncio.to_thread(limited.run, [wanted]))[0]}
    except limited.LimitedError as error:
        return {"error": str(error)}


class Unreadable(Exception):
    """A prompt file cannot be read; the message is for people."""


async def prompt_of(client: Jobs, request: Mapping[str, Any]) -> str | None:
    """The prompt with its files behind it; None while nobody can be asked. Raises Unreadable."""
    parts = [str(request["prompt"])] if str(request["prompt"]).strip() else []
    for path in request["promptFiles"]:
        try:
            found = await client.read_file(path)
        except AgentctlRefused as error:
            raise Unreadable(f"the prompt file “{path}” cannot be read: {error.message}") from error
        except ExecutorError:
            return None
        if found.get("binary") or found.get("truncated") or len(found["content"]) > FILE_LIMIT:
            raise Unreadable(f"the prompt file “{path}” is no text of at most {FILE_LIMIT >> 10} KiB")
        parts.append(str(found["content"]).rstrip())
    return "\n\n".join(parts)
