"""A session's workspace: files and git through its agentctl, and whether its snapshots have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.conf import settings
from django.utils import timezone

from executors_app import recovery_refs
from executors_app.client import AgentctlClient
from executors_app.domain import ExecutorStatus
from executors_app.errors import AgentctlUnreachable, NotKept
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtimes
from executors_app.runtimes import SupportsPush
from sessions_app.models import TaskSession
from sessions_app.services.assessment import execution_of

OVERDUE_AFTER: Final = timedelta(seconds=30)
"""A transfer usually takes seconds; people are told of one that takes longer, or that has failed."""


def push_runtimes() -> list[str]:
    """Names of the runtimes whose workspaces have a repository of their own."""
    return [name for name, place in runtimes().items() if isinstance(place, SupportsPush)]


def is_transfer_due(execution: ExecutorRunning) -> bool:
    """Return True while the newest snapshot that was announced has not arrived."""
    return execution.snapshot_announced != execution.snapshot_arrived


def is_transfer_overdue(execution: ExecutorRunning, now: datetime) -> bool:
    """Return True if people should be told: the transfer has failed, or has taken ``OVERDUE_AFTER``."""
    since = execution.snapshot_due_since
    return is_transfer_due(execution) and bool(
        execution.snapshot_error_code or (since is not None and now - since > OVERDUE_AFTER)
    )


def transfer_json(execution: ExecutorRunning | None) -> dict[str, Any] | None:
    """Return what has not arrived, since when, and the last error; None if everything has."""
    if execution is None or not is_transfer_due(execution):
        return None
    if not isinstance(runtimes().get(execution.runtime), SupportsPush):
        return None  # its work is in the team's repository anyway
    since = execution.snapshot_due_since
    return {
        "commit": execution.snapshot_announced,
        "since": since.isoformat() if since else None,
        "overdue": is_transfer_overdue(execution, timezone.now()),
        "error_code": execution.snapshot_error_code,
        "error_message": execution.snapshot_error,
    }


_SHARE: Final = 0.45
"""Of ``KANDEV_SWEEP_TIMEOUT``: until one that has not answered is asked whether it is there, and for that answer."""


def list_files(session: TaskSession, path: str) -> dict[str, Any]:
    """A directory: ``{path, entries: [{name, type, size}], truncated}``."""
    return _request(session, lambda client: client.list_files(path))


def read_file(session: TaskSession, path: str) -> dict[str, Any]:
    """A file: ``{path, size, encoding: "utf-8" | "base64", binary, content, truncated, hash}``."""
    return _request(session, lambda client: client.read_file(path))


def write_file(session: TaskSession, path: str, content: bytes, expected: str | None) -> dict[str, Any]:
    """Write over what has the hash ``expected``: ``{path, size, hash, created}``.

    ``*`` stands for whatever is there, None for nothing.
    """
    return _request(session, lambda client: client.write_file(path, content, expected))


def git_status(session: TaskSession) -> dict[str, Any]:
    """``{branch, head, clean, staged, unstaged, untracked, conflicted, truncated}``."""
    return _request(session, lambda client: client.git("status"))


def git_diff(session: TaskSession, path: str = "") -> dict[str, Any]:
    """``{path, staged, unstaged, truncated}``: of one file, or of all."""
    return _request(session, lambda client: client.git("diff", {"path": path}))


def git_log(session: TaskSession, limit: int, skip: int, ref: str) -> dict[str, Any]:
    """``{commits: [{id, parents, author, email, at, subject, body}], more, truncated}``."""
    params = {"limit": str(limit), "skip": str(skip), "ref": ref}
    return _request(session, lambda client: client.git("log", params))


class StoredWorkspace:
    """The same, read only, as the repository keeps it: for a session whose workspace is not open, or gone.

    Its methods raise NotKept; each answer says with ``kept`` what it is from.
    """

    def __init__(self, session: TaskSession):
        repository, execution = session.task.repository, execution_of(session)
        branch = session.worktree_branch or (execution.worktree_branch if execution else "")
        if repository is None:
            raise NotKept("The task of this session names no repository.")
        self._kept = recovery_refs.find_saved_work(Path(repository.path), str(session.worktree_owner_id), branch)

    def list_files(self, path: str) -> dict[str, Any]:
        """A directory."""
        return recovery_refs.list_saved_directory(self._kept, path)

    def read_file(self, path: str) -> dict[str, Any]:
        """A file."""
        return recovery_refs.read_saved_content(self._kept, path)

    def git_status(self) -> dict[str, Any]:
        """What was not committed when it was kept."""
        return recovery_refs.saved_status(self._kept)

    def git_diff(self, path: str) -> dict[str, Any]:
        """Both differences, as they were kept."""
        return recovery_refs.saved_diff(self._kept, path)

    def git_log(self, limit: int, skip: int) -> dict[str, Any]:
        """The branch's history."""
        return recovery_refs.saved_log(self._kept, limit, skip)


def git_commit(session: TaskSession, user: Any, message: str, paths: Sequence[str] = ()) -> dict[str, Any]:
    """Commit all, or some paths, in the name of ``user``: ``{commit, branch, subject}``."""
    name = _plain(user.get_full_name()) or _plain(user.get_username())
    email = _plain(user.email) or f"{_plain(user.get_username())}@localhost"
    order = {"message": message, "paths": list(paths), "author_name": name, "author_email": email}
    return _request(session, lambda client: client.commit(order))


def _plain(text: str) -> str:
    """What may stand in a commit's author."""
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip()[:150]


def agentctl_client(session: TaskSession) -> AgentctlClient:
    """The way to the session's agentctl; raises AgentctlUnreachable where none is up."""
    execution = execution_of(session)
    if execution is None or not execution.agentctl_url or execution.status == ExecutorStatus.STOPPED:
        raise AgentctlUnreachable("The session's workspace is not open: nothing runs there now.")
    repository = session.task.repository
    return AgentctlClient.of(execution.facts(repository.path if repository else "", session.task.base_branch))


def _request(session: TaskSession, call: Callable[[AgentctlClient], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    return async_to_sync(_while_it_answers)(agentctl_client(session), call)


async def _while_it_answers(
    client: AgentctlClient, call: Callable[[AgentctlClient], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """The answer to ``call``, however long it takes as long as agentctl says that it is there."""
    limit = settings.KANDEV_SWEEP_TIMEOUT * _SHARE
    asked = asyncio.ensure_future(call(client))
    try:
        while not (await asyncio.wait({asked}, timeout=limit))[0]:
            await client.health(limit)
        return await asked
    finally:
        asked.cancel()
        await asyncio.wait({asked})
