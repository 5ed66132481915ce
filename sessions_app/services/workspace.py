"""The files of a session's workspace, from its agentctl; no command of the lease, so unfenced (rule 11)."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync

from executors_app.client import AgentctlClient
from executors_app.domain import ExecutorStatus
from executors_app.errors import AgentctlUnreachable
from sessions_app.models import TaskSession
from sessions_app.services.assessment import execution_of


def list_files(session: TaskSession, path: str) -> dict[str, Any]:
    """A directory: ``{path, entries: [{name, type, size}], truncated}``.

    Raises AgentctlUnreachable, AgentctlForeign, AgentctlRefused (``not_found``, ``validation_error``).
    """
    return async_to_sync(_client(session).list_files)(path)


def read_file(session: TaskSession, path: str) -> dict[str, Any]:
    """A file: ``{path, size, encoding: "utf-8" | "base64", content, truncated}``; raises as ``list_files``."""
    return async_to_sync(_client(session).read_file)(path)


def _client(session: TaskSession) -> AgentctlClient:
    execution = execution_of(session)
    if execution is None or not execution.agentctl_url or execution.status == ExecutorStatus.STOPPED:
        raise AgentctlUnreachable("The session's workspace is not open: nothing runs there now.")
    repository = session.task.repository
    return AgentctlClient.of(execution.facts(repository.path if repository else "", session.task.base_branch))
