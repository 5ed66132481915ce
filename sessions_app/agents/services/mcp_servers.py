"""The MCP servers of teams and repositories: who may change them, what they may contain, and which an agent gets."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet

from executors_app.mcp_servers import (
    check_mcp_servers,
    is_program,
    merge_servers,
    named_values,
    referenced_secret,
    resolve_secrets,
    withheld_secrets,
)
from executors_app.models import AgentProfile
from executors_app.wire.protocol import LeftOutReason
from sessions_app.accounts.authorization import may_manage, may_name_programs
from sessions_app.accounts.teams import visible_teams
from sessions_app.agents.events import SECRET_MISSING, SECRET_WITHHELD, ServersLeftOut
from sessions_app.kernel.services.errors import Invalid, ReadOnly
from sessions_app.models import McpServerList, Repository, SessionTransaction, TaskSession
from sessions_app.redaction.redactor import redact

log = logging.getLogger(__name__)

Server = Mapping[str, Any]
_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|auth|credential|cookie|session", re.IGNORECASE)


def visible_repositories(user: User) -> QuerySet[Repository]:
    """Return the repositories of the teams that ``user`` may see; for staff: all."""
    return Repository.objects.filter(team__in=visible_teams(user).values("id")).select_related("team")


def server_list_json(team: Group, repository: Repository | None) -> dict[str, Any]:
    """Return the list of a repository, or of a team if ``repository`` is None, as the API has it."""
    row = McpServerList.objects.filter(team=team, repository=repository).select_related("updated_by").first()
    if row is None:
        return {"servers": [], "updated_by": None, "updated_at": None}
    document = {"servers": row.servers, "updated_by": None, "updated_at": row.updated_at}
    if row.updated_by is not None:
        document["updated_by"] = row.updated_by.get_username()
    return document


def replace_servers(team: Group, repository: Repository | None, servers: Sequence[Server], by: User) -> None:
    """Replace a list. Raises ReadOnly and Invalid as ``_change`` does."""
    _change(team, repository, by, lambda _: list(servers))


def put_server(team: Group, repository: Repository | None, server: Server, by: User) -> None:
    """Add a server, or replace the one of its name. Raises ReadOnly and Invalid."""
    _change(team, repository, by, lambda old: [*_without(old, server.get("name")), server])


def remove_server(team: Group, repository: Repository | None, name: str, by: User) -> None:
    """Remove the server of this name, if there is one. Raises ReadOnly."""
    _change(team, repository, by, lambda old: _without(old, name))


def _without(servers: Sequence[Server], name: Any) -> list[Server]:
    return [server for server in servers if server.get("name") != name]


def _change(
    team: Group, repository: Repository | None, by: User, change: Callable[[Sequence[Server]], list[Server]]
) -> None:
    """Apply a change to a list, one after the other.

    Raises ReadOnly unless ``by`` is staff or an admin of the team, and for a new program that ``by`` may not add.
    Raises Invalid for a list that is not valid, or if a new server contains a secret.
    """
    if not may_manage(by, team):
        raise ReadOnly("Only staff and the team’s admins can change its MCP servers.")
    # New servers are searched for secrets before the transaction: others would wait for as long as that takes. They
    # are the same in the transaction, whatever has happened to the other servers meanwhile.
    stored = McpServerList.objects.filter(team=team, repository=repository).values_list("servers", flat=True).first()
    wanted = change(stored or [])
    _check(wanted, searched=lambda server: server not in (stored or ()))
    with transaction.atomic():
        McpServerList.objects.get_or_create(team=team, repository=repository)
        row = McpServerList.objects.select_for_update().get(team=team, repository=repository)
        before, after = list(row.servers), change(row.servers)
        _check(after)
        if not may_name_programs(by, team) and any(is_program(each) and each not in before for each in after):
            raise ReadOnly(
                "A program runs where agents run. Only staff, and admins of a team that may operate agents without "
                "isolation, can add or change one."
            )
        row.servers, row.updated_by_id = after, by.pk
        row.save()
    names = {
        "written": sorted(str(each["name"]) for each in after if each not in before),
        "removed": sorted({str(each["name"]) for each in before} - {str(each["name"]) for each in after}),
    }
    repository_id = repository and str(repository.pk)
    about = {"team_id": team.pk, "repository_id": repository_id, "user_id": by.pk}
    log.info("MCP servers of team %s changed by user %s: %s", team.pk, by.pk, names, extra=about)


def _check(servers: Any, *, searched: Callable[[Server], bool] = lambda server: False) -> None:
    """Raise Invalid for a list that is not valid, or if a server that is to be searched contains a secret."""
    try:
        check_mcp_servers(servers)
        _refuse_secrets(list(filter(searched, servers)))
    except ValidationError as error:
        raise Invalid("; ".join(error.messages), field="servers") from None


def check_server_list(servers: Any) -> None:
    """Raise ValidationError for a list that is not valid, or that contains a secret instead of a reference to one."""
    check_mcp_servers(servers)
    _refuse_secrets(servers)


def _refuse_secrets(servers: Sequence[Server]) -> None:
    for server in servers:
        for name, value in named_values(server):
            if referenced_secret(value):
                continue
            if (_SECRET_NAME.search(name) and value) or _looks_secret(value):
                raise ValidationError(
                    f"{name} of “{server['name']}” looks like a secret. Store it in the environment of the agent "
                    f"profile, and refer to it as secret:VARIABLE."
                )
        texts = (str(server.get("url", "")), str(server.get("command", "")), " ".join(server.get("args", [])))
        if any(map(_looks_secret, texts)):
            raise ValidationError(
                f"“{server['name']}” seems to contain a secret. Pass it in a header or variable, as secret:VARIABLE."
            )


def _looks_secret(text: str) -> bool:
    named = parse_qsl(_query_of(text))
    return redact(text)[1] > 0 or any(_SECRET_NAME.search(name) and value for name, value in named)


def _query_of(text: str) -> str:
    """Return the query of an address; empty for any other text, whatever it contains."""
    try:
        if "://" in text:
            return urlsplit(text).query
        return ""
    except ValueError:
        return ""


METADATA_KEY: Final = "mcp_servers"
"""Metadata key: ``{"launch_id", "servers": [{"name", "from", "reason", "variables"}]}`` of the last start."""
REASONS: Final = (SECRET_MISSING, SECRET_WITHHELD, *map(str, LeftOutReason))
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
    lists: dict[str, list[Any]] = {}
    for repository, servers in rows:
        level = Level.TEAM
        if repository is not None:
            level = Level.REPOSITORY
        if servers:
            lists[level] = servers
    return lists


def choose_servers(
    transaction: SessionTransaction, launch_id: str, profile: AgentProfile, inherited: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the servers for a start, with their secrets, and store under which names they are given.

    A server that refers to a variable which the profile does not have, or does not give to its host, is left out, as
    log and page show. Raises SecretUnreadable.
    """
    levels = ((str(level), inherited.get(level, ())) for level in (Level.REPOSITORY, Level.TEAM))
    chosen: list[dict[str, Any]] = []
    given: list[dict[str, Any]] = []
    for level, server in merge_servers((Level.PROFILE, profile.mcp_servers), *levels):
        resolved, missing = resolve_secrets(server, profile.env)
        if level == Level.PROFILE:
            withheld = []
        else:
            withheld = withheld_secrets(server, profile.secret_hosts)
        reason = ""
        if missing:
            reason = SECRET_MISSING
        elif withheld:
            reason = SECRET_WITHHELD
        else:
            chosen.append(resolved)
        name = str(server.get("name", ""))
        given.append({"name": name, "from": str(level), "reason": reason, "variables": missing or withheld})
    if given:
        _store(transaction, {"launch_id": launch_id, "servers": given})
    else:
        _store(transaction, None)
    return chosen


def record_left_out(transaction: SessionTransaction, launch_id: str, reported: Any) -> None:
    """Store which servers agentctl could not give to the agent of this start; a report of another start is ignored."""
    known = transaction.session.metadata.get(METADATA_KEY)
    if not isinstance(known, dict) or known.get("launch_id") != launch_id or not isinstance(reported, list):
        return
    reasons = {str(each.get("name")): str(each.get("reason")) for each in reported if isinstance(each, dict)}
    servers = []
    for server in known["servers"]:
        reason = reasons.get(server["name"])
        if not server["reason"] and reason in REASONS:
            servers.append({**server, "reason": reason})
        else:
            servers.append(server)
    _store(transaction, {**known, "servers": servers})


def _store(transaction: SessionTransaction, value: dict[str, Any] | None) -> None:
    metadata = transaction.session.metadata
    if metadata.get(METADATA_KEY) == value:
        return
    before = _left_out(metadata.get(METADATA_KEY), value)
    after = {name: kept for name, kept in metadata.items() if name != METADATA_KEY}
    if value is not None:
        after[METADATA_KEY] = value
    transaction.set_fields(metadata=after)
    news = [each for each in _left_out(value, value) if each not in before]
    if value is not None and news:
        transaction.record_event(ServersLeftOut(launch_id=value["launch_id"], servers=news))


def _left_out(stored: Mapping[str, Any] | None, present: Mapping[str, Any] | None) -> list[Any]:
    """Return the servers of ``stored`` that were left out, if it is about the same start as ``present``."""
    if stored is None or present is None or stored["launch_id"] != present["launch_id"]:
        return []
    return [each for each in stored["servers"] if each["reason"]]


def given_servers(session: TaskSession) -> list[dict[str, Any]]:
    """Return the servers of the last start, ``{"name", "from", "reason", "variables"}``; an empty reason: given."""
    known = session.metadata.get(METADATA_KEY)
    if isinstance(known, dict):
        return list(known["servers"])
    return []
