"""A session's workspace, from its agentctl: files and git; no command of the lease, so unfenced (rule 11).

All raise AgentctlUnreachable, AgentctlForeign, and AgentctlRefused with agentctl's own word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asgiref.sync import async_to_sync

from executors_app import kept_work
from executors_app.client import AgentctlClient
from executors_app.domain import ExecutorStatus
from executors_app.errors import AgentctlUnreachable, NotKept
from sessions_app.models import TaskSession
from sessions_app.services.assessment import execution_of


def list_files(session: TaskSession, path: str) -> dict[str, Any]:
    """A directory: ``{path, entries: [{name, type, size}], truncated}``."""
    return async_to_sync(client_of(session).list_files)(path)


def read_file(session: TaskSession, path: str) -> dict[str, Any]:
    """A file: ``{path, size, encoding: "utf-8" | "base64", binary, content, truncated, hash}``."""
    return async_to_sync(client_of(session).read_file)(path)


def write_file(session: TaskSession, path: str, content: bytes, expected: str | None) -> dict[str, Any]:
    """Write over what has the hash ``expected``: ``{path, size, hash, created}``.

    ``*`` stands for whatever is there, None for nothing.
    """
    return async_to_sync(client_of(session).write_file)(path, content, expected)


def git_status(session: TaskSession) -> dict[str, Any]:
    """``{branch, head, clean, staged, unstaged, untracked, conflicted, truncated}``."""
    return async_to_sync(client_of(session).git)("status")


def git_diff(session: TaskSession, path: str = "") -> dict[str, Any]:
    """``{path, staged, unstaged, truncated}``: of one file, or of all."""
    return async_to_sync(client_of(session).git)("diff", {"path": path})


def git_log(session: TaskSession, limit: int, skip: int, ref: str) -> dict[str, Any]:
    """``{commits: [{id, parents, author, email, at, subject, body}], more, truncated}``."""
    return async_to_sync(client_of(session).git)("log", {"limit": str(limit), "skip": str(skip), "ref": ref})


class KeptWorkspace:
    """The same, read only, as the repository keeps it: for a session whose workspace is not open, or gone.

    Its methods raise NotKept; each answer says with ``kept`` what it is from.
    """

    def __init__(self, session: TaskSession):
        repository, execution = session.task.repository, execution_of(session)
        branch = session.worktree_branch or (execution.worktree_branch if execution else "")
        if repository is None:
            raise NotKept("The task of this session names no repository.")
        self._kept = kept_work.find(Path(repository.path), str(session.worktree_owner_id), branch)

    def list_files(self, path: str) -> dict[str, Any]:
        """A directory."""
        return kept_work.list_directory(self._kept, path)

    def read_file(self, path: str) -> dict[str, Any]:
        """A file."""
        return kept_work.read_content(self._kept, path)

    def git_status(self) -> dict[str, Any]:
        """What was not committed when it was kept."""
        return kept_work.status(self._kept)

    def git_diff(self, path: str) -> dict[str, Any]:
        """Both differences, as they were kept."""
        return kept_work.diff(self._kept, path)

    def git_log(self, limit: int, skip: int) -> dict[str, Any]:
        """The branch's history."""
        return kept_work.log(self._kept, limit, skip)


def git_commit(session: TaskSession, user: Any, message: str, paths: Sequence[str] = ()) -> dict[str, Any]:
    """Commit all, or some paths, in the name of ``user``: ``{commit, branch, subject}``."""
    name = _plain(user.get_full_name()) or _plain(user.get_username())
    email = _plain(user.email) or f"{_plain(user.get_username())}@localhost"
    order = {"message": message, "paths": list(paths), "author_name": name, "author_email": email}
    return async_to_sync(client_of(session).commit)(order)


def _plain(text: str) -> str:
    """What may stand in a commit's author."""
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip()[:150]


def client_of(session: TaskSession) -> AgentctlClient:
    """The way to the session's agentctl; raises AgentctlUnreachable where none is up."""
    execution = execution_of(session)
    if execution is None or not execution.agentctl_url or execution.status == ExecutorStatus.STOPPED:
        raise AgentctlUnreachable("The session's workspace is not open: nothing runs there now.")
    repository = session.task.repository
    return AgentctlClient.of(execution.facts(repository.path if repository else "", session.task.base_branch))
