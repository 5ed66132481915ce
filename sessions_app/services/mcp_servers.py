"""The MCP servers of teams and repositories: who may change them, and what a list may contain."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from executors_app.mcp_servers import check_mcp_servers, is_program, named_values, referenced_secret
from sessions_app.accounts.authorization import may_manage, may_name_programs
from sessions_app.accounts.teams import visible_teams
from sessions_app.domain.sanitizing import redact
from sessions_app.models import McpServerList, Repository
from sessions_app.services.errors import Invalid, ReadOnly

log = logging.getLogger(__name__)

Server = Mapping[str, Any]
_SECRET_NAME: Final = re.compile(r"key|token|secret|pass|auth|credential|cookie|session", re.IGNORECASE)


def visible_repositories(user: Any) -> QuerySet[Repository]:
    """Return the repositories of the teams that ``user`` may see; for staff: all."""
    return Repository.objects.filter(team__in=visible_teams(user).values("id")).select_related("team")


def find_server_list(team: Group, repository: Repository | None) -> McpServerList | None:
    """Return the list of a repository, or of a team if ``repository`` is None; None if nobody has made one."""
    return McpServerList.objects.filter(team=team, repository=repository).select_related("updated_by").first()


def server_list_json(team: Group, repository: Repository | None) -> dict[str, Any]:
    """Return the list as the API has it."""
    row = find_server_list(team, repository)
    if row is None:
        return {"servers": [], "updated_by": None, "updated_at": None}
    by = row.updated_by.get_username() if row.updated_by else None
    return {"servers": row.servers, "updated_by": by, "updated_at": row.updated_at}


def replace_servers(team: Group, repository: Repository | None, servers: Sequence[Server], by: Any) -> None:
    """Replace a list. Raises ReadOnly and Invalid as ``_change`` does."""
    _change(team, repository, by, lambda _: list(servers))


def put_server(team: Group, repository: Repository | None, server: Server, by: Any) -> None:
    """Add a server, or replace the one of its name. Raises ReadOnly and Invalid."""
    _change(team, repository, by, lambda old: [*_without(old, server.get("name")), server])


def remove_server(team: Group, repository: Repository | None, name: str, by: Any) -> None:
    """Remove the server of this name, if there is one. Raises ReadOnly."""
    _change(team, repository, by, lambda old: _without(old, name))


def _without(servers: Sequence[Server], name: Any) -> list[Server]:
    return [server for server in servers if server.get("name") != name]


def _change(
    team: Group, repository: Repository | None, by: Any, change: Callable[[Sequence[Server]], list[Server]]
) -> None:
    """Apply a change to a list, one after the other.

    Raises ReadOnly unless ``by`` is staff or an admin of the team, and for a new program if ``by`` may name none.
    Raises Invalid for a list that ``check_server_list`` rejects.
    """
    if not may_manage(by, team):
        raise ReadOnly("Only staff and the team’s admins change its MCP servers.")
    with transaction.atomic():
        McpServerList.objects.get_or_create(team=team, repository=repository)
        row = McpServerList.objects.select_for_update().get(team=team, repository=repository)
        before, after = list(row.servers), change(row.servers)
        try:
            check_server_list(after)
        except ValidationError as error:
            raise Invalid("; ".join(error.messages), field="servers") from None
        if not may_name_programs(by, team) and any(is_program(each) and each not in before for each in after):
            raise ReadOnly(
                "A program runs where agents run. Only staff, and admins of a team that may operate agents without "
                "isolation, add or change one."
            )
        row.servers, row.updated_by_id = after, by.pk
        row.save()
    names = {key: sorted(str(each["name"]) for each in rows) for key, rows in _difference(before, after).items()}
    about = {"team_id": team.pk, "repository_id": str(repository.pk) if repository else None, "user_id": by.pk}
    log.info("MCP servers of team %s changed by user %s: %s", team.pk, by.pk, names, extra=about)


def _difference(before: Sequence[Server], after: Sequence[Server]) -> dict[str, list[Server]]:
    return {
        "written": [each for each in after if each not in before],
        "removed": [each for each in before if each["name"] not in {one["name"] for one in after}],
    }


def check_server_list(servers: Any) -> None:
    """Raise ValidationError for a list that is not valid, or that contains a secret instead of a reference to one."""
    check_mcp_servers(servers)
    for server in servers:
        for name, value in named_values(server):
            if referenced_secret(value):
                continue
            if (_SECRET_NAME.search(name) and value) or _looks_secret(value):
                raise ValidationError(
                    f"{name} of “{server['name']}” looks like a secret. Store it in the environment of the agent "
                    f"profile, and refer to it as secret:VARIABLE."
                )
        if any(map(_looks_secret, _plain_texts(server))):
            raise ValidationError(
                f"“{server['name']}” seems to contain a secret. Pass it in a header or variable, as secret:VARIABLE."
            )


def _plain_texts(server: Server) -> list[str]:
    """Return the texts of a server that are no header or variable."""
    return [str(server.get("url", "")), str(server.get("command", "")), " ".join(server.get("args", []))]


def _looks_secret(text: str) -> bool:
    parts = urlsplit(text) if "://" in text else None
    named = parse_qsl(parts.query) if parts else []
    return redact(text)[1] > 0 or any(_SECRET_NAME.search(name) and value for name, value in named)
