"""The MCP servers that a session's agent is given: chosen as it starts, from profile, repository and team."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from django.db.models import Q

from executors_app.agentctl.protocol import LeftOutReason
from executors_app.mcp_servers import merge_servers, resolve_secrets
from executors_app.models import AgentProfile
from sessions_app.models import McpServerList, SessionTransaction, TaskSession

METADATA_KEY: Final = "mcp_servers"
"""Metadata key: ``{"launch_id", "servers": [{"name", "from", "reason", "variables"}]}`` of the last start."""
SECRET_MISSING: Final = "secret_missing"  # noqa: S105  (a reason)
REASONS: Final = (SECRET_MISSING, *map(str, LeftOutReason))
"""Why an agent was not given a server."""


class Level(StrEnum):
    """Where a server is defined. Of two with one name, the agent is given that of the first of these."""

    PROFILE = "profile"
    REPOSITORY = "repository"
    TEAM = "team"


def inherited_servers(team_id: int, repository_id: uuid.UUID | None) -> dict[str, list[Any]]:
    """Return the servers of a repository and its team, by level; one query. They contain no secret."""
    of_task = Q(repository=None) | Q(repository=repository_id)
    rows = McpServerList.objects.filter(of_task, team=team_id).values_list("repository_id", "servers")
    return {Level.REPOSITORY if repository else Level.TEAM: servers for repository, servers in rows if servers}


def choose_servers(
    transaction: SessionTransaction, launch_id: str, profile: AgentProfile, inherited: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the servers for a start, with their secrets, and store under which names they are given.

    A server that refers to a variable which the profile does not have is left out; log and page say so. Raises
    SecretUnreadable.
    """
    levels = ((str(level), inherited.get(level, ())) for level in (Level.REPOSITORY, Level.TEAM))
    chosen: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    for level, server in merge_servers((Level.PROFILE, profile.mcp_servers), *levels):
        resolved, missing = resolve_secrets(server, profile.env)
        if not missing:
            chosen.append(resolved)
        reason = SECRET_MISSING if missing else ""
        told.append({"name": str(server.get("name", "")), "from": str(level), "reason": reason, "variables": missing})
    _store(transaction, {"launch_id": launch_id, "servers": told} if told else None)
    return chosen


def record_left_out(transaction: SessionTransaction, launch_id: str, reported: Any) -> None:
    """Store which servers agentctl could not give to the agent of this start; a report of another start is ignored."""
    known = transaction.session.metadata.get(METADATA_KEY)
    if not isinstance(known, dict) or known.get("launch_id") != launch_id or not isinstance(reported, list):
        return
    reasons = {str(each.get("name")): str(each.get("reason")) for each in reported if isinstance(each, dict)}
    servers = [
        {**each, "reason": reasons[each["name"]]}
        if not each["reason"] and reasons.get(each["name"]) in REASONS
        else each
        for each in known["servers"]
    ]
    _store(transaction, {**known, "servers": servers})


def _store(transaction: SessionTransaction, value: dict[str, Any] | None) -> None:
    metadata = transaction.session.metadata
    if metadata.get(METADATA_KEY) == value:
        return
    before = _left_out(metadata.get(METADATA_KEY), value)
    rest = {name: kept for name, kept in metadata.items() if name != METADATA_KEY}
    transaction.set_fields(metadata=rest if value is None else {**rest, METADATA_KEY: value})
    news = [each for each in _left_out(value, value) if each not in before]
    if value is not None and news:
        transaction.record_event("session.mcp_servers.left_out", launch_id=value["launch_id"], servers=news)


def _left_out(stored: Mapping[str, Any] | None, present: Mapping[str, Any] | None) -> list[Any]:
    """Return the servers of ``stored`` that were left out, if it is about the same start as ``present``."""
    if stored is None or present is None or stored["launch_id"] != present["launch_id"]:
        return []
    return [each for each in stored["servers"] if each["reason"]]


def given_servers(session: TaskSession) -> list[dict[str, Any]]:
    """Return the servers of the last start, ``{"name", "from", "reason", "variables"}``; an empty reason: given."""
    known = session.metadata.get(METADATA_KEY)
    return list(known["servers"]) if isinstance(known, dict) else []
