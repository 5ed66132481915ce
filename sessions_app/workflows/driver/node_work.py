"""Carry out the work of nodes: scripts and files at agentctl, functions, and the sessions and prompts of agents."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

from django.db import transaction

from executors_app.client import AgentctlClient
from executors_app.wire.errors import AgentctlRefused, ExecutorError
from executors_app.wire.protocol import Code, Job, JobError, JobState
from sessions_app.agents.services.profiles import profiles_for
from sessions_app.board.services import tasks
from sessions_app.confined.admission import Admission
from sessions_app.kernel.rules.parsers import parse_uuid
from sessions_app.kernel.rules.states import ENDED_STATES, DesiredState, PromptState
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import TaskSession
from sessions_app.prompts.services import prompts
from sessions_app.recovery.rules.resumability import Mode
from sessions_app.sessions.services import intents
from sessions_app.workflows.driver import run_snapshot
from sessions_app.workflows.language import sandbox
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services import assignment as runners

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
    order = {name: request[name] for name in ("script", "environment", "cwd", "timeout")}
    if is_confirmed:
        ask = partial(client.job, job_id)
    else:
        ask = partial(client.start_job, job_id, order)
    try:
        found = await ask(wait=POLL_WAIT_SECONDS, tail=OUTPUT_TAIL_BYTES)
        if found["state"] == JobState.RUNNING:
            return JobStatus(is_confirmed=True, tail=_output_tail(found))
        # The poll asks for the tail of the output only: if there is more, the whole result is requested now.
        whole = await client.job(job_id) if found["truncated"] else found
        return JobStatus(is_confirmed=True, result=_result(whole, request))
    except AgentctlRefused as error:
        if error.refusal in _TRANSIENT_CODES:
            return JobStatus()
        lost = error.refusal == Code.JOB_UNKNOWN
        if lost:
            message = _JOB_ERROR_TEXTS[JobError.LOST]
        else:
            message = f"the workspace refused the script: {error.message}"
        return JobStatus(result=_job_failure(message))
    except ExecutorError:
        return JobStatus()  # an agentctl that does not answer now may answer the next time


async def cancel_job(client: AgentctlClient, job_id: str) -> None:
    """Stop a script with its child processes. If agentctl does not answer, the script ends with its workspace."""
    with contextlib.suppress(ExecutorError):
        await client.cancel_job(job_id)


def _result(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
    error = JobError.LOST if job["state"] == JobState.LOST else job["error"]
    if error:
        message = _JOB_ERROR_TEXTS.get(cast("JobError", error), str(error)).format(timeout=request.get("timeout"))
    else:
        message = ""
    stderr = (TRUNCATION_MARK if job["truncated"] else "") + job["stderr"]
    return {"stdout": job["stdout"], "stderr": stderr, "exitCode": job["exit_code"], "error": message}


def _job_failure(error: str) -> dict[str, Any]:
    return {"stdout": "", "stderr": "", "exitCode": None, "error": error}


def _output_tail(job: Job) -> str:
    return "\n".join(filter(None, (job["stdout"].rstrip(), job["stderr"].rstrip())))[-2 * OUTPUT_TAIL_BYTES :]


_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST_CALLS: Final = 8
_MOST_CALLS_PER_TEAM: Final = 4
_RESERVED_CALLS: Final = 3
"""Calls that are kept for teams without one: however long those of two or three teams take, others begin at once."""
_SANDBOX_THREADS: Final = ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="sandbox")
"""What users wrote decides how long a call takes: it must not take the threads that the whole supervisor works in."""
_turns: Final = Admission(
    running=_MOST_CALLS,
    running_per_owner=_MOST_CALLS_PER_TEAM,
    waiting_per_owner=None,
    reserved=_RESERVED_CALLS,
)
"""Teams take turns, so that the functions of some delay those of another by one call at most."""


async def in_sandbox_thread(team_id: int, function: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """Call a function that waits for the sandbox, or for a text to be loaded, in one of a few threads.

    A team has a limited number of calls at once; more of them wait, and teams that wait take turns.
    """
    call = partial(contextvars.copy_context().run, partial(function, *arguments, **options))
    ticket = _turns.enter(str(team_id))
    try:
        await asyncio.wrap_future(ticket.admitted)
        running = _SANDBOX_THREADS.submit(call)
    except BaseException:
        _turns.leave(ticket)
        raise
    # If this coroutine is cancelled, the thread continues, and keeps the turn until it has ended.
    running.add_done_callback(lambda _: _turns.leave(ticket))
    return await asyncio.wrap_future(running)


async def call_function(team_id: int, request: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function in the sandbox process. It has no side effects, so a second call after a crash does no harm."""
    wanted = {name: request[name] for name in ("operation", "code", "inputs")}
    try:
        return {"value": (await in_sandbox_thread(team_id, sandbox.run_in_sandbox, [wanted]))[0]}
    except sandbox.SandboxError as error:
        return {"error": str(error)}


class PromptFileUnreadable(Exception):
    """A prompt file cannot be read; users see the message."""


async def prompt_with_files(client: AgentctlClient, request: Mapping[str, Any]) -> str | None:
    """Return the prompt followed by its files; None while agentctl cannot be reached. Raises PromptFileUnreadable."""
    parts = [str(request["prompt"])] if str(request["prompt"]).strip() else []
    for path in request["promptFiles"]:
        try:
            found = await client.read_file(path)
        except AgentctlRefused as error:
            raise PromptFileUnreadable(f"the prompt file “{path}” cannot be read: {error.message}") from error
        except ExecutorError:
            return None
        if found.get("binary") or found.get("truncated") or len(found["content"]) > FILE_LIMIT:
            raise PromptFileUnreadable(f"the prompt file “{path}” is not a text file of at most {FILE_LIMIT >> 10} KiB")
        parts.append(str(found["content"]).rstrip())
    return "\n\n".join(parts)


class WorkNotPossible(Exception):
    """The work of a node cannot be requested; users see the message."""


def work_id(run: WorkflowRun, row: NodeRun) -> str:
    """Return the message_id or job_id of an attempt.

    It is derived, not random: a step that is repeated after a crash asks for the same prompt or job again, and the
    ledger or agentctl recognises it.
    """
    return str(uuid.uuid5(run.id, f"{run.round}:{row.path}:{row.attempt}"))


def workspace_session(run: WorkflowRun) -> TaskSession:
    """Return the session in whose worktree all nodes work, and ask for it to be open. Raises WorkNotPossible."""
    if run.workspace is None:
        profile = run.agent_profile or profiles_for(run.task).order_by("name", "id").first()
        if profile is None:
            raise WorkNotPossible("there is no agent profile yet; ask staff to add one")
        mark = {"idempotency_key": f"workflow:{run.id}"}
        # A savepoint: if the session is refused, nothing of it remains, but the rest of the step commits.
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
    """Queue the prompt of a node in its session, or in a new session if it names none. Raises WorkNotPossible.

    It writes in the caller's transaction: prompt and node run are stored together or not at all.
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
    """Return a session of the run, or a session of its team that was passed in the inputs of the run."""
    key = parse_uuid(wanted)
    if key:
        session = TaskSession.objects.select_related("task").filter(id=key).first()
    else:
        session = None
    own = session is not None and session.task_id == run.task_id and session.id != run.workspace_id
    given = session is not None and session.task.team_id == run.team_id and wanted in _texts_in(run.inputs)
    if session is None or not (own or given):
        raise WorkNotPossible(f"“{wanted[:80]}” is not a session of this run, and was not passed in its inputs")
    return session


def _texts_in(value: Any) -> Iterator[str]:
    """Yield every text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


def _create_session(run: WorkflowRun, row: NodeRun) -> TaskSession:
    runner, model = (str(row.request.get(name) or "") for name in ("runner", "model"))
    profiles = list(profiles_for(run.task).order_by("name", "id"))
    try:
        chosen = runners.choose_agent(profiles, run.agent_profile, runner, model)
    except runners.NoMatchingAgent as error:
        raise WorkNotPossible(str(error)) from error
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


def withdraw_prompt(row: NodeRun) -> None:
    """End the work that a node has requested from its agent: withdraw a queued prompt, or cancel the turn."""
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
    """Stop every session of a run that is over. Nothing restarts them automatically."""
    for session in run.task.sessions.exclude(state__in=ENDED_STATES).order_by("id"):
        if session.desired_state == DesiredState.RUNNING:
            intents.request_stop(session.id, None)
