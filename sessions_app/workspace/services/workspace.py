"""A session's workspace: files and git through its agentctl, and whether its snapshots have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.repositories import recovery_refs
from executors_app.repositories.recovery_refs import SavedWork
from executors_app.runtimes import SupportsPush
from executors_app.wire.errors import AgentctlUnreachable, NotKept
from executors_app.wire.executions import ExecutorStatus
from sessions_app.models import TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of, execution_of

OVERDUE_AFTER: Final = timedelta(seconds=30)
"""A transfer usually takes seconds; people are notified of one that takes longer or has failed."""


def push_runtimes() -> list[str]:
    """Names of the runtimes whose workspaces have their own repository."""
    return [name for name, place in runtimes().items() if isinstance(place, SupportsPush)]


def is_transfer_due(execution: ExecutorRunning) -> bool:
    """Return True while the newest snapshot that was announced has not arrived."""
    return execution.snapshot_announced != execution.snapshot_arrived


def is_transfer_overdue(execution: ExecutorRunning, now: datetime) -> bool:
    """Return True if people should be notified: the transfer has failed, or has taken ``OVERDUE_AFTER``."""
    since = execution.snapshot_due_since
    return is_transfer_due(execution) and bool(
        execution.snapshot_error_code or (since is not None and now - since > OVERDUE_AFTER)
    )


def transfer_json(execution: ExecutorRunning | None) -> dict[str, Any] | None:
    """Return what has not arrived, since when, and the last error; None if everything has."""
    if execution is None or not is_transfer_due(execution):
        return None
    if not isinstance(runtimes().get(execution.runtime), SupportsPush):
        return None  # its workspace is a worktree of the team's repository, so nothing needs to arrive
    since = execution.snapshot_due_since
    return {
        "commit": execution.snapshot_announced,
        "since": since.isoformat() if since else None,
        "overdue": is_transfer_overdue(execution, timezone.now()),
        "error_code": execution.snapshot_error_code,
        "error_message": execution.snapshot_error,
    }


_SHARE: Final = 0.45
"""Share of ``KANDEV_SWEEP_TIMEOUT``: the longest silence before a health check, and the longest health check."""


def find_saved_work(session: TaskSession) -> SavedWork:
    """Return the work in the repository's refs, for a session whose workspace is closed or gone. Raises NotKept."""
    repository, execution = session.task.repository, execution_of(session)
    branch = session.worktree_branch
    if not branch and execution:
        branch = execution.worktree_branch
    if repository is None:
        raise NotKept("The task of this session names no repository.")
    return recovery_refs.find_saved_work(Path(repository.path), str(session.worktree_owner_id), branch)


def git_commit(session: TaskSession, user: User, message: str, paths: Sequence[str] = ()) -> dict[str, Any]:
    """Commit all changes, or some paths, with ``user`` as the author; return ``{commit, branch, subject}``."""
    order = {"message": message, "paths": list(paths), **author_of_commit(user)}
    return ask_agentctl(session, lambda client: client.commit(order))


def author_of_commit(user: User) -> dict[str, str]:
    """Return how agentctl's requests name the author of a commit."""
    name = _plain(user.get_full_name()) or _plain(user.get_username())
    email = _plain(user.email) or f"{_plain(user.get_username())}@localhost"
    return {"author_name": name, "author_email": email}


def _plain(text: str) -> str:
    """Return the text without what git does not allow in a commit's author."""
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip()[:150]


def agentctl_client(session: TaskSession) -> AgentctlClient:
    """Return a client for the session's agentctl. Raises AgentctlUnreachable if none is running."""
    execution = execution_of(session)
    if execution is None or not execution.agentctl_url or execution.status == ExecutorStatus.STOPPED:
        raise AgentctlUnreachable("The session's workspace is not open: nothing runs there now.")
    return AgentctlClient.of(execution_facts_of(execution, session))


def ask_agentctl(session: TaskSession, call: Callable[[AgentctlClient], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the session's agentctl answers to ``call``. Raises ExecutorError."""
    return async_to_sync(_while_it_answers)(agentctl_client(session), call)


async def _while_it_answers(
    client: AgentctlClient, call: Callable[[AgentctlClient], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """Return the result of ``call``, waiting as long as agentctl answers health checks meanwhile."""
    limit = settings.KANDEV_SWEEP_TIMEOUT * _SHARE
    answer = asyncio.ensure_future(call(client))
    try:
        while not (await asyncio.wait({answer}, timeout=limit))[0]:
            await client.health(limit)
        return await answer
    finally:
        answer.cancel()
        await asyncio.wait({answer})
