"""Carry out what nodes ask for: scripts, functions and files at agentctl, and the sessions and prompts of agents."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from django.db import transaction

from executors_app.agentctl.protocol import Code, Job, JobError, JobState
from executors_app.errors import AgentctlRefused, ExecutorError, JobsUnsupported
from sessions_app.domain.resumability import Mode
from sessions_app.domain.states import ENDED_STATES, DesiredState, PromptState
from sessions_app.models import TaskSession
from sessions_app.services import intents, prompts, tasks
from sessions_app.services.catalogue import profiles_for
from sessions_app.services.errors import SessionsError
from sessions_app.workflows.driver import run_snapshot
from sessions_app.workflows.language import sandbox
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import assignment as runners

OUTPUT_TAIL_BYTES: Final = 4_000
"""Bytes of each stream that pages see of a script that still runs."""
TRUNCATION_MARK: Final = "[Not all of the output was kept: of each stream the last MiB is.]\n"
POLL_WAIT_SECONDS: Final = 0.5
"""Seconds for which one question waits for the end of a script, so that a short one is over with its first answer."""
FILE_LIMIT: Final = 256 << 10
"""Characters of one prompt file."""
_TRANSIENT_CODES: Final = frozenset({Code.BUSY, Code.STALE_GENERATION, Code.NOT_RUNNING, Code.JOURNAL_FULL})
"""Refusals of a script that has not begun, and may the next time."""
_JOB_ERROR_TEXTS: Final = {
    JobError.TIMEOUT: "it took longer than {timeout} s and was ended",
    JobError.CANCELLED: "it was cancelled",
    JobError.AGENTCTL_ENDED: "its workspace was closed or died while it ran, which ended it; nothing runs it again",
    JobError.SPAWN_FAILED: "it could not be started",
    JobError.LOST: "nobody can know how it ended: its workspace died with it; nothing runs it again",
}


class JobClient(Protocol):
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
class JobStatus:
    """What agentctl says of a script. ``result`` is None while it runs, or while nobody can be asked."""

    is_confirmed: bool = False
    tail: str = ""
    result: dict[str, Any] | None = None


async def start_or_poll_job(
    client: JobClient, job_id: str, request: Mapping[str, Any], *, is_confirmed: bool
) -> JobStatus:
    """Start a script, or ask how far it has come; one that was confirmed once is never started again."""
    try:
        if not is_confirmed:
            await client.start_job(job_id, _job_request(request))
        found = await client.job(job_id, wait=POLL_WAIT_SECONDS, tail=OUTPUT_TAIL_BYTES)
        if found["state"] == JobState.RUNNING:
            return JobStatus(is_confirmed=True, tail=_output_tail(found))
        return JobStatus(is_confirmed=True, result=_result(await client.job(job_id), request))
    except JobsUnsupported as error:
        return JobStatus(result=_job_failure(error.message))
    except AgentctlRefused as error:
        if error.refusal in _TRANSIENT_CODES:
            return JobStatus()
        lost = error.refusal == Code.JOB_UNKNOWN
        words = _JOB_ERROR_TEXTS[JobError.LOST] if lost else f"the workspace refused the script: {error.message}"
        return JobStatus(result=_job_failure(words))
    except ExecutorError:
        return JobStatus()  # who does not answer now may answer the next time


async def cancel_job(client: JobClient, job_id: str) -> None:
    """End a script and all that it started; where nobody answers it ends with its workspace."""
    try:
        await client.cancel_job(job_id)
    except ExecutorError:
        return


def _job_request(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: request[name] for name in ("script", "environment", "cwd", "timeout")}


def _result(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
    error = JobError.LOST if job["state"] == JobState.LOST else job["error"]
    words = (
        _JOB_ERROR_TEXTS.get(cast("JobError", error), str(error)).format(timeout=request.get("timeout"))
        if error
        else ""
    )
    stderr = (TRUNCATION_MARK if job["truncated"] else "") + job["stderr"]
    return {"stdout": job["stdout"], "stderr": stderr, "exitCode": job["exit_code"], "error": words}


def _job_failure(error: str) -> dict[str, Any]:
    return {"stdout": "", "stderr": "", "exitCode": None, "error": error}


def _output_tail(job: Job) -> str:
    return "\n".join(filter(None, (job["stdout"].rstrip(), job["stderr"].rstrip())))[-2 * OUTPUT_TAIL_BYTES :]


async def call_function(request: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a function, in the limited process: it has no effects, so a second time does no harm."""
    wanted = {name: request[name] for name in ("operation", "code", "inputs")}
    try:
        return {"value": (await asyncio.to_thread(sandbox.run_in_sandbox, [wanted]))[0]}
    except sandbox.SandboxError as error:
        return {"error": str(error)}


class PromptFileUnreadable(Exception):
    """A prompt file cannot be read; the message is for people."""


async def prompt_with_files(client: JobClient, request: Mapping[str, Any]) -> str | None:
    """The prompt with its files behind it; None while nobody can be asked. Raises Unreadable."""
    parts = [str(request["prompt"])] if str(request["prompt"]).strip() else []
    for path in request["promptFiles"]:
        try:
            found = await client.read_file(path)
        except AgentctlRefused as error:
            raise PromptFileUnreadable(f"the prompt file “{path}” cannot be read: {error.message}") from error
        except ExecutorError:
            return None
        if found.get("binary") or found.get("truncated") or len(found["content"]) > FILE_LIMIT:
            raise PromptFileUnreadable(f"the prompt file “{path}” is no text of at most {FILE_LIMIT >> 10} KiB")
        parts.append(str(found["content"]).rstrip())
    return "\n\n".join(parts)


class WorkNotPossible(Exception):
    """The work of a node cannot be asked for; the message is for people."""


def work_id(run: WorkflowRun, row: NodeRun) -> str:
    """The message_id or job_id of what a node asks: the same however often this attempt is written."""
    return str(uuid.uuid5(run.id, f"{run.round}:{row.path}:{row.attempt}"))


def workspace_session(run: WorkflowRun) -> TaskSession:
    """The session in whose worktree all nodes work, wanted to be open. Raises CannotAsk."""
    if run.workspace is None:
        profile = run.agent_profile or profiles_for(run.task).order_by("name", "id").first()
        if profile is None:
            raise WorkNotPossible("there is no agent profile yet; staff can add one")
        mark = {"idempotency_key": f"workflow:{run.id}"}
        with transaction.atomic():
            made = tasks.create_session(
                run.started_by, run.task, profile, run.executor, policy="auto", has_agent=False, mark=mark
            )
            WorkflowRun.objects.filter(id=run.id).update(workspace=made)
        run.workspace = made
    elif run.workspace.desired_state == DesiredState.STOPPED:
        intents.request_resume(run.workspace.id, run.started_by, Mode.AUTO)
        run.workspace.refresh_from_db()
    return run.workspace


def send_node_prompt(run: WorkflowRun, row: NodeRun, prompt: str) -> None:
    """Put a node's prompt into the ledger of its session, a new one where it names none; in the caller's transaction.

    Raises CannotAsk.
    """
    wanted = str(row.request.get("sessionId") or "")
    try:
        session = _find_session(run, wanted) if wanted else _create_session(run, row)
        message_id = work_id(run, row)
        intents.queue_prompt(session.id, message_id, prompt, run.started_by)
    except SessionsError as error:
        raise WorkNotPossible(error.message) from error
    row.session, row.message_id = session, message_id


def _find_session(run: WorkflowRun, wanted: str) -> TaskSession:
    """A session of the run, or one of its team that the run was given by whoever started it."""
    key = _parse_uuid(wanted)
    session = TaskSession.objects.select_related("task").filter(id=key).first() if key else None
    own = session is not None and session.task_id == run.task_id and session.id != run.workspace_id
    given = session is not None and session.task.team_id == run.team_id and wanted in _texts_in(run.inputs)
    if session is None or not (own or given):
        raise WorkNotPossible(f"“{wanted[:80]}” is no session of this run, and none that the run was given")
    return session


def _parse_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _texts_in(value: Any) -> Iterator[str]:
    """Every text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def _create_session(run: WorkflowRun, row: NodeRun) -> TaskSession:
    chosen = _choose_agent(run, str(row.request.get("runner") or ""), str(row.request.get("model") or ""))
    return tasks.create_session(
        run.started_by,
        run.task,
        chosen.profile,
        run.executor,
        policy="auto",
        model=chosen.model,
        shares_worktree_of=workspace_session(run),
        mark={"idempotency_key": work_id(run, row)},
    )


def _choose_agent(run: WorkflowRun, runner: str, model: str) -> runners.AgentChoice:
    try:
        return runners.choose_agent(
            list(profiles_for(run.task).order_by("name", "id")), run.agent_profile, runner, model
        )
    except runners.NoMatchingAgent as error:
        raise WorkNotPossible(str(error)) from error


def withdraw_prompt(row: NodeRun) -> None:
    """End what a node has asked of its agent: a prompt that waits is withdrawn, a turn cancelled."""
    if row.session is None or not row.message_id:
        return
    asked = row.session.prompts.filter(message_id=row.message_id).first()
    if asked is None:
        return
    last = run_snapshot.last_prompt_of_chain(asked)
    if last.state == PromptState.QUEUED:
        prompts.withdraw_prompt(row.session.id, last.message_id)
    elif row.session.runs.filter(message_id=last.message_id, ended_at=None).exists():
        intents.request_cancel(row.session.id, None)


def stop_run_sessions(run: WorkflowRun) -> None:
    """The run is over: none of its sessions is wanted any more, and nothing starts them again."""
    for session in run.task.sessions.exclude(state__in=ENDED_STATES).order_by("id"):
        if session.desired_state == DesiredState.RUNNING:
            intents.request_stop(session.id, None)
