"""Start scripts at agentctl, follow and cancel them, and read prompt files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.wire.errors import AgentctlRefused, ExecutorError
from executors_app.wire.protocol import Code, Job, JobError, JobState

OUTPUT_TAIL_BYTES: Final = 4_000
"""Bytes of each stream that pages show while a script is running."""
TRUNCATION_MARK: Final = "[The output was truncated: only the last MiB of each stream was kept.]\n"
POLL_WAIT_SECONDS: Final = 0.5
"""Seconds that one request waits for the end of a script, so that a short one needs no second request."""
FILE_LIMIT: Final = 256 << 10
"""Characters of one prompt file."""
_TRANSIENT_CODES: Final = frozenset({Code.BUSY, Code.STALE_GENERATION, Code.NOT_RUNNING, Code.JOURNAL_FULL})
"""Refusals of a script that has not started; the next attempt may succeed."""
_JOB_ERROR_TEXTS: Final = {
    JobError.TIMEOUT: "it took longer than {timeout} s and was stopped",
    JobError.CANCELLED: "it was cancelled",
    JobError.AGENTCTL_ENDED: "its workspace was closed or died while it ran; it is not run again automatically",
    JobError.SPAWN_FAILED: "it could not be started",
    JobError.LOST: "its result is unknown, because its workspace died with it; it is not run again automatically",
}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a script at agentctl. ``result`` is None while it runs, or while agentctl cannot be reached."""

    is_confirmed: bool = False
    tail: str = ""
    result: dict[str, Any] | None = None


async def start_or_poll_job(
    client: AgentctlClient, job_id: str, request: Mapping[str, Any], *, is_confirmed: bool
) -> JobStatus:
    """Start a script, or request its state.

    A script whose start agentctl has confirmed is never started again: if agentctl has lost it, it may have run.
    """
    if is_confirmed:
        poll = partial(client.job, job_id)
    else:
        order = {name: request[name] for name in ("script", "environment", "cwd", "timeout")}
        poll = partial(client.start_job, job_id, order)
    try:
        job = await poll(wait=POLL_WAIT_SECONDS, tail=OUTPUT_TAIL_BYTES)
        if job["state"] == JobState.RUNNING:
            return JobStatus(is_confirmed=True, tail=_output_tail(job))
        # The poll asks for the tail of the output only: if there is more, the whole result is requested now.
        if job["truncated"]:
            job = await client.job(job_id)
        return JobStatus(is_confirmed=True, result=_result(job, request))
    except AgentctlRefused as error:
        if error.refusal in _TRANSIENT_CODES:
            return JobStatus()
        if error.refusal == Code.JOB_UNKNOWN:
            return JobStatus(result=_job_failure(_JOB_ERROR_TEXTS[JobError.LOST]))
        return JobStatus(result=_job_failure(f"the workspace refused the script: {error.message}"))
    except ExecutorError:
        return JobStatus()  # an agentctl that does not answer now may answer the next time


async def cancel_job(client: AgentctlClient, job_id: str) -> None:
    """Stop a script with its child processes. If agentctl does not answer, the script ends with its workspace."""
    with contextlib.suppress(ExecutorError):
        await client.cancel_job(job_id)


def _result(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
    stderr = job["stderr"]
    if job["truncated"]:
        stderr = TRUNCATION_MARK + stderr
    error = _job_error(job, request)
    return {"stdout": job["stdout"], "stderr": stderr, "exitCode": job["exit_code"], "error": error}


def _job_error(job: Job, request: Mapping[str, Any]) -> str:
    error = job["error"]
    if job["state"] == JobState.LOST:
        error = JobError.LOST
    if not error:
        return ""
    message = _JOB_ERROR_TEXTS.get(cast("JobError", error), str(error))
    return message.format(timeout=request.get("timeout"))


def _job_failure(error: str) -> dict[str, Any]:
    return {"stdout": "", "stderr": "", "exitCode": None, "error": error}


def _output_tail(job: Job) -> str:
    streams = (job["stdout"].rstrip(), job["stderr"].rstrip())
    output = "\n".join(filter(None, streams))
    return output[-2 * OUTPUT_TAIL_BYTES :]


class PromptFileUnreadable(Exception):
    """A prompt file cannot be read; users see the message."""


async def prompt_with_files(client: AgentctlClient, request: Mapping[str, Any]) -> str | None:
    """Return the prompt followed by its files; None while agentctl cannot be reached. Raises PromptFileUnreadable."""
    parts = []
    if str(request["prompt"]).strip():
        parts.append(str(request["prompt"]))
    for path in request["promptFiles"]:
        try:
            file = await client.read_file(path)
        except AgentctlRefused as error:
            raise PromptFileUnreadable(f"the prompt file “{path}” cannot be read: {error.message}") from error
        except ExecutorError:
            return None
        if file.get("binary") or file.get("truncated") or len(file["content"]) > FILE_LIMIT:
            raise PromptFileUnreadable(f"the prompt file “{path}” is not a text file of at most {FILE_LIMIT >> 10} KiB")
        parts.append(str(file["content"]).rstrip())
    return "\n\n".join(parts)
