"""Settings pages for the MCP servers of a team and of its repositories."""

from __future__ import annotations

import shlex
import uuid
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache

from executors_app.mcp_servers import is_program, named_values
from sessions_app.accounts.authorization import may_manage, may_name_programs
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import render_settings
from sessions_app.accounts.views.teams import find_visible_team
from sessions_app.agents.forms import McpServerForm
from sessions_app.agents.services import mcp_servers
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Repository
from sessions_app.pages.shortcuts import READ_METHODS, form_status


@never_cache
def edit_team_servers(request: UserHttpRequest, team_id: int) -> HttpResponse:
    """Show the MCP servers of a team. A POST by a user who manages the team adds or removes one."""
    return _edit(request, find_visible_team(request, team_id), None)


@never_cache
def edit_repository_servers(request: UserHttpRequest, repository_id: uuid.UUID) -> HttpResponse:
    """Show the MCP servers of a repository, and its team's. A POST by a user who manages the team changes them."""
    found: Repository = get_object_or_404(mcp_servers.visible_repositories(request.user), id=repository_id)
    if request.method not in READ_METHODS and not may_manage(request.user, found.team):
        raise PermissionDenied
    return _edit(request, found.team, found)


def _edit(request: UserHttpRequest, team: Group, repository: Repository | None) -> HttpResponse:
    form = McpServerForm()
    if request.method == "POST" and "remove" in request.POST:
        mcp_servers.remove_server(team, repository, request.POST["remove"], request.user)
        messages.success(request, "Removed. It applies from the next start of an agent.")
        return redirect(request.path)
    if request.method == "POST":
        form = McpServerForm(request.POST)
        if form.is_valid() and _save(form, team, repository, request.user):
            messages.success(request, "Saved. It applies from the next start of an agent.")
            return redirect(request.path)
    team_servers: list[dict[str, Any]] = []
    if repository is not None:
        team_servers = _rows(team, None)
    context = {
        "team": team,
        "repository": repository,
        "servers": _rows(team, repository),
        "team_servers": team_servers,
        "form": form,
        "manages": may_manage(request.user, team),
        "names_programs": may_name_programs(request.user, team),
    }
    section = "settings-teams" if repository is None else "settings-repositories"
    return render_settings(request, "agents/mcp_servers.html", section, context, form_status(form))


def _save(form: McpServerForm, team: Group, repository: Repository | None, by: User) -> bool:
    try:
        mcp_servers.put_server(team, repository, form.server(), by)
    except ValueError as error:
        form.add_error("target", f"This is not a valid command: {error}.")
    except SessionsError as error:
        form.add_error(None, error.message)
    return not form.errors


def _rows(team: Group, repository: Repository | None) -> list[dict[str, Any]]:
    rows = []
    for server in mcp_servers.server_list_json(team, repository)["servers"]:
        program = is_program(server)
        if program:
            target = shlex.join([server["command"], *server.get("args", [])])
        else:
            target = server["url"]
        values = [f"{name}={value}" for name, value in named_values(server)]
        rows.append({"name": server["name"], "is_program": program, "target": target, "values": values})
    return rows
