"""Build the snapshot of a session and the list of its keys: what its log does not contain.

Their size is bounded however long the session is: of what the log contains, only the newest rows are repeated.
Neither file has secrets: no tokens of agents or agentctl, and no environments, arguments or MCP servers of profiles.
The MCP servers of teams and repositories have references in place of secrets.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import models
from django.utils import timezone

from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.agents.models import KEPT, changes_to_start_with
from sessions_app.agents.services.mcp_servers import inherited_servers
from sessions_app.kernel.rules.states import UNSETTLED_PROMPT_STATES, PromptState, RunState
from sessions_app.models import Prompt, Task, TaskSession, Turn, WaitKey
from sessions_app.portable.rules.lines import format_time
from sessions_app.review.rules.comments import MAX_PENDING

FORMAT: Final = "kandev/1"
MAX_ROWS: Final = 50
"""Maximum number each of runs, prompts, receipts, sent comments and keys of a session in a snapshot."""
UNFINISHED_STATES: Final = (PromptState.QUEUED, PromptState.HELD, PromptState.INTERRUPTED, *UNSETTLED_PROMPT_STATES)
RUN_FIELDS: Final = (
    "id",
    "message_id",
    "state",
    "has_process",
    "wait_kind",
    "wait_id",
    "wait_reason",
    "deadline_at",
    "waited",
    "reason",
    "since_seq",
    "started_at",
    "ended_at",
)
PROMPT_FIELDS: Final = ("message_id", "text", "attachments", "kind", "state", "created_at")
RECEIPT_FIELDS: Final = (
    "id",
    "kind",
    "verified",
    "strategy",
    "reason",
    "evidence",
    "launch_id",
    "after_seq",
    "created_at",
)
TOKEN_FIELDS: Final = (
    "id",
    "run_id",
    "wait_kind",
    "wait_id",
    "secret_hash",
    "expires_at",
    "consumed_at",
    "revoked_at",
    "expired_at",
    "reason",
    "created_at",
)
COMMENT_FIELDS: Final = (
    "id",
    "author_name",
    "path",
    "side",
    "first_line",
    "last_line",
    "excerpt",
    "version",
    "text",
    "sent_with",
    "created_at",
)
SESSION_FIELDS: Final = (
    "state",
    "desired_state",
    "work_state",
    "policy",
    "continue_prompts",
    "stopped_by_user",
    "error_code",
    "error_message",
    "worktree_id",
    "worktree_path",
    "worktree_branch",
    "has_agent",
    "model",
    "executor_pool",
    "placement_reason",
)
TASK_FIELDS: Final = ("id", "title", "description", "base_branch", "state", "archived_at", "created_at")
PROFILE_FIELDS: Final = (
    "id",
    "name",
    "agent_type",
    "model",
    "permission_mode",
    "supports_session_resume",
    "history_context_injection",
)


def build_snapshot(session_id: uuid.UUID, boot_id: str) -> dict[str, Any] | None:
    """Return the snapshot of a session's current rows; None if it is gone. A constant number of queries."""
    rows = TaskSession.objects.select_related("task__team", "task__repository", "agent_profile__team", "executor")
    session = rows.select_related("owner", "task__created_by").filter(id=session_id).first()
    if session is None:
        return None
    execution = ExecutorRunning.objects.filter(id__in=[session.agent_execution_id]).first()
    newest_runs = list(session.runs.order_by("-started_at", "-id")[:MAX_ROWS])
    newest_receipts = session.receipts.all()[:MAX_ROWS]
    profile = session.agent_profile
    snapshot: dict[str, Any] = {
        "format": FORMAT,
        "id": str(session.id),
        "title": session.task.title,
        "working_dir": _working_dir(session),
        "provider": {"type": profile.agent_type, "model": profile.model},
        "created_at": format_time(session.created_at),
        "updated_at": format_time(timezone.now()),
        "last_seq": session.last_seq,
        "run": _newest_run(newest_runs, execution),
        "recovery": {"last_boot_seen": boot_id, "interruption": _interruption(newest_runs)},
        "epoch": session.epoch,
    }
    snapshot |= _field_values(session, SESSION_FIELDS)
    snapshot |= {
        "shares_worktree_of": _json(session.shares_worktree_of_id),
        "agent_execution_id": _json(session.agent_execution_id),
        "owner": _username(session.owner),
        "task": _task(session.task),
        "agent_profile": _profile(profile),
        "executor": _field_values(session.executor, ("name", "runtime")),
        "runs": [_field_values(run, RUN_FIELDS) for run in reversed(newest_runs)],
        "prompts": _prompts(session),
        "chosen_settings": _chosen_settings(session),
        "review_comments": _review_comments(session),
        "receipts": [_field_values(receipt, RECEIPT_FIELDS) for receipt in reversed(newest_receipts)],
    }
    return snapshot


def token_rows(session_id: uuid.UUID) -> dict[str, Any]:
    """Return the keys of a session's waits, newest last: ids, kinds, times and hashes, never secrets."""
    newest = WaitKey.objects.filter(session_id=session_id).order_by("-created_at", "-id")[:MAX_ROWS]
    now = timezone.now()
    tokens = []
    for token in reversed(newest):
        values = _field_values(token, TOKEN_FIELDS)
        values["state"] = str(token.state(now))
        tokens.append(values)
    return {"format": FORMAT, "session_id": str(session_id), "tokens": tokens}


def _working_dir(session: TaskSession) -> str:
    if session.worktree_path:
        return session.worktree_path
    if session.task.repository:
        return session.task.repository.path
    return ""


def _username(user: User | None) -> str | None:
    if user is None:
        return None
    return user.get_username()


def _task(task: Task) -> dict[str, Any]:
    values = _field_values(task, TASK_FIELDS)
    values["team"] = task.team.name
    values["repository"] = _field_values(task.repository, ("name", "path")) if task.repository else None
    values["created_by"] = _username(task.created_by)
    values["mcp_servers"] = inherited_servers(task.team_id, task.repository_id)
    return values


def _profile(profile: AgentProfile) -> dict[str, Any]:
    values = _field_values(profile, PROFILE_FIELDS)
    values["team"] = profile.team.name if profile.team else None
    return values


def _newest_run(newest_runs: Sequence[Turn], execution: ExecutorRunning | None) -> dict[str, Any] | None:
    if not newest_runs:
        return None
    run = newest_runs[0]
    return {
        "run_id": str(run.id),
        "boot_id": execution.boot_id if execution else "",
        "started_at": _json(run.started_at),
        "ended_at": _json(run.ended_at),
        "wait": _wait(run),
    }


def _wait(run: Turn) -> dict[str, Any] | None:
    if run.state != RunState.WAITING:
        return None
    token = WaitKey.objects.filter(run=run, wait_id=run.wait_id).order_by("-created_at").first()
    return {
        "kind": run.wait_kind,
        "since_seq": run.since_seq,
        "resume_token_id": str(token.id) if token else None,
        "deadline_at": _json(run.deadline_at),
    }


def _interruption(newest_runs: Sequence[Turn]) -> dict[str, Any] | None:
    if not newest_runs or newest_runs[0].state != RunState.INTERRUPTED:
        return None
    run = newest_runs[0]
    return {"run_id": str(run.id), "reason": run.reason, "at": _json(run.ended_at)}


def _prompts(session: TaskSession) -> list[dict[str, Any]]:
    """Return all unfinished prompts and the newest of the others."""
    rows = Prompt.objects.filter(session=session).select_related("by", "resent_as", "continued_by")
    unfinished = rows.filter(state__in=UNFINISHED_STATES)
    others = rows.exclude(state__in=UNFINISHED_STATES).order_by("-id")[:MAX_ROWS]
    shown = sorted([*others, *unfinished], key=lambda row: int(row.pk))
    return [_prompt(row) for row in shown]


def _prompt(row: Prompt) -> dict[str, Any]:
    values = _field_values(row, PROMPT_FIELDS)
    values["by"] = _username(row.by)
    values["version"], values["place"] = row.text_version, row.queue_place
    values["edited_by"], values["first_digest"] = row.edited_by, row.first_digest
    values["resent_as"] = row.resent_as.message_id if row.resent_as else None
    values["continued_by"] = row.continued_by.message_id if row.continued_by else None
    return values


def _review_comments(session: TaskSession) -> list[dict[str, Any]]:
    """Return the comments that wait, of which there are few, and the newest of those that were sent.

    Comments are in no log: the snapshot has them as they were at the newest line of it.
    """
    rows = session.review_comments.select_related("author")
    sent = rows.exclude(sent_with="").order_by("-created_at", "-id")[:MAX_ROWS]
    shown = sorted([*sent, *rows.filter(sent_with="")[:MAX_PENDING]], key=lambda row: (row.created_at, str(row.id)))
    return [{**_field_values(row, COMMENT_FIELDS), "author": _username(row.author)} for row in shown]


def _chosen_settings(session: TaskSession) -> list[dict[str, Any]]:
    """Return the settings of the agent that users chose: those that it accepted, and the pending changes."""
    chosen = []
    for change in changes_to_start_with(session):
        is_accepted = str(change["change_id"]).startswith(KEPT)
        chosen.append({"setting": change["setting"], "value": change["value"], "accepted": is_accepted})
    return chosen


def _field_values(row: models.Model, names: Iterable[str]) -> dict[str, Any]:
    return {name: _json(getattr(row, name)) for name in names}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    return value
