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

from django.db import models
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.agents.models import KEPT, changes_to_start_with
from sessions_app.agents.services.mcp_servers import inherited_servers
from sessions_app.kernel.rules.states import UNSETTLED_PROMPT_STATES, PromptState, RunState
from sessions_app.models import Prompt, ResumeToken, Task, TaskSession, Turn
from sessions_app.portable.rules.portable_lines import format_time

FORMAT: Final = "kandev/1"
MAX_ROWS: Final = 50
"""Maximum number each of runs, prompts, receipts and keys of a session in a snapshot."""
UNFINISHED_STATES: Final = (PromptState.QUEUED, PromptState.HELD, PromptState.INTERRUPTED, *UNSETTLED_PROMPT_STATES)
RUN_FIELDS: Final = (
    *("id", "message_id", "state", "has_process", "wait_kind", "wait_id", "wait_reason", "deadline_at"),
    *("waited", "reason", "since_seq", "started_at", "ended_at"),
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
    *("id", "run_id", "wait_kind", "wait_id", "secret_hash", "expires_at"),
    *("consumed_at", "revoked_at", "expired_at", "reason", "created_at"),
)


def build_snapshot(session_id: uuid.UUID, boot_id: str) -> dict[str, Any] | None:
    """Return the snapshot of a session's current rows; None if it is gone. A constant number of queries."""
    rows = TaskSession.objects.select_related("task__team", "task__repository", "agent_profile__team", "executor")
    session = rows.select_related("owner", "task__created_by").filter(id=session_id).first()
    if session is None:
        return None
    execution = ExecutorRunning.objects.filter(id__in=[session.agent_execution_id]).first()
    runs = list(session.runs.order_by("-started_at", "-id")[:MAX_ROWS])
    receipts = session.receipts.all()[:MAX_ROWS]
    profile, task = session.agent_profile, session.task
    return {
        "format": FORMAT,
        "id": str(session.id),
        "title": task.title,
        "working_dir": session.worktree_path or (task.repository.path if task.repository else ""),
        "provider": {"type": profile.agent_type, "model": profile.model},
        "created_at": format_time(session.created_at),
        "updated_at": format_time(timezone.now()),
        "last_seq": session.last_seq,
        "run": _newest_run(runs, execution),
        "recovery": {"last_boot_seen": boot_id, "interruption": _interruption(runs)},
        "epoch": session.epoch,
        **_plain(session, ("state", "desired_state", "work_state", "policy", "continue_prompts", "stopped_by_user")),
        **_plain(session, ("error_code", "error_message", "worktree_id", "worktree_path", "worktree_branch")),
        **_plain(session, ("has_agent", "model")),
        "shares_worktree_of": _json(session.shares_worktree_of_id),
        "agent_execution_id": _json(session.agent_execution_id),
        "owner": session.owner.get_username() if session.owner else None,
        "task": _task(task),
        "agent_profile": {
            **_plain(profile, ("id", "name", "agent_type", "model", "permission_mode")),
            **_plain(profile, ("supports_session_resume", "history_context_injection")),
            "team": profile.team.name if profile.team else None,
        },
        "executor": _plain(session.executor, ("name", "runtime")),
        "runs": [_plain(run, RUN_FIELDS) for run in reversed(runs)],
        "prompts": _prompts(session),
        "chosen_settings": _chosen_settings(session),
        "receipts": [_plain(one, RECEIPT_FIELDS) for one in reversed(receipts)],
    }


def token_rows(session_id: uuid.UUID) -> dict[str, Any]:
    """Return the keys of a session's waits, newest last: ids, kinds, times and hashes, never secrets."""
    rows = ResumeToken.objects.filter(session_id=session_id).order_by("-created_at", "-id")[:MAX_ROWS]
    now = timezone.now()
    return {
        "format": FORMAT,
        "session_id": str(session_id),
        "tokens": [{**_plain(one, TOKEN_FIELDS), "state": str(one.state(now))} for one in reversed(rows)],
    }


def _task(task: Task) -> dict[str, Any]:
    repository = task.repository
    return {
        **_plain(task, ("id", "title", "description", "base_branch", "state", "archived_at", "created_at")),
        "team": task.team.name,
        "repository": _plain(repository, ("name", "path")) if repository else None,
        "created_by": task.created_by.get_username() if task.created_by else None,
        "mcp_servers": inherited_servers(task.team_id, task.repository_id),
    }


def _newest_run(runs: Sequence[Turn], execution: ExecutorRunning | None) -> dict[str, Any] | None:
    if not runs:
        return None
    run, wait = runs[0], None
    if run.state == RunState.WAITING:
        token = ResumeToken.objects.filter(run=run, wait_id=run.wait_id).order_by("-created_at").first()
        wait = {
            "kind": run.wait_kind,
            "since_seq": run.since_seq,
            "resume_token_id": str(token.id) if token else None,
            "deadline_at": _json(run.deadline_at),
        }
    return {
        "run_id": str(run.id),
        "boot_id": execution.boot_id if execution else "",
        "started_at": _json(run.started_at),
        "ended_at": _json(run.ended_at),
        "wait": wait,
    }


def _interruption(runs: Iterable[Turn]) -> dict[str, Any] | None:
    newest = next(iter(runs), None)
    if newest is None or newest.state != RunState.INTERRUPTED:
        return None
    return {"run_id": str(newest.id), "reason": newest.reason, "at": _json(newest.ended_at)}


def _prompts(session: TaskSession) -> list[dict[str, Any]]:
    """Return all unfinished prompts and the newest of the others."""
    rows = Prompt.objects.filter(session=session).select_related("by", "resent_as", "continued_by")
    newest = list(rows.exclude(state__in=UNFINISHED_STATES).order_by("-id")[:MAX_ROWS])
    found = sorted([*rows.filter(state__in=UNFINISHED_STATES), *newest], key=lambda row: int(row.pk))
    return [
        {
            **_plain(row, PROMPT_FIELDS),
            "by": row.by.get_username() if row.by else None,
            "resent_as": row.resent_as.message_id if row.resent_as else None,
            "continued_by": row.continued_by.message_id if row.continued_by else None,
        }
        for row in found
    ]


def _chosen_settings(session: TaskSession) -> list[dict[str, Any]]:
    """Return the settings of the agent that users chose: those that it accepted, and the pending changes."""
    return [
        {"setting": change["setting"], "value": change["value"], "accepted": str(change["change_id"]).startswith(KEPT)}
        for change in changes_to_start_with(session)
    ]


def _plain(row: models.Model, names: Iterable[str]) -> dict[str, Any]:
    return {name: _json(getattr(row, name)) for name in names}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    return value
