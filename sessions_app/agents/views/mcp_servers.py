"""Settings pages for the MCP servers of a team and of its repositories."""

from __future__ import annotations

import shlex
import uuid
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache

from executors_app.mcp_servers import is_program, named_values
from sessions_app.accounts.authorization import may_manage, may_name_programs
from sessions_app.accounts.pages.settings import render_settings
from sessions_app.accounts.pages.teams import find_visible_team
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.agents.services import mcp_servers
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Repository
from sessions_app.pages.shortcuts import READ_METHODS

_PROGRAM: Final = "program"
_HTTP: Final = "http"


class McpServerForm(forms.Form):
    """The form for one server."""

    name = forms.CharField(max_length=64)
    kind = forms.ChoiceField(
        choices=[(_HTTP, "Address (HTTP)"), (_PROGRAM, "Program that the agent starts")], label="Connection"
    )
    target = forms.CharField(
        max_length=10_000, label="Address or command", help_text="https://tools.example/mcp, or npx -y some-server"
    )
    values = forms.CharField(
        required=False,
        max_length=100_000,
        widget=forms.Textarea(attrs={"rows": 3}),
        label="Headers or variables",
        help_text="One per line, as NAME=value. In place of a secret, write secret:VARIABLE or Bearer secret:VARIABLE: "
        "the value comes from the environment of the agent profile.",
    )

    def clean_values(self) -> dict[str, str]:
        """Return names and values. Raises ValidationError for a line without ``=``."""
        pairs = {}
        for line in filter(None, map(str.strip, self.cleaned_data["values"].splitlines())):
            name, equals, value = line.partition("=")
            if not equals:
                raise forms.ValidationError("Write each as NAME=value, one per line.")
            pairs[name.strip()] = value.strip()
        return pairs

    def server(self) -> dict[str, Any]:
        """Return the server of a valid form. Raises ValueError for a command with an open quote."""
        told = self.cleaned_data
        if told["kind"] == _HTTP:
            return {"name": told["name"], "type": "http", "url": told["target"], "headers": told["values"]}
        command, *args = shlex.split(told["target"])
        return {"name": told["name"], "command": command, "args": args, "env": told["values"]}


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
    context = {
        "team": team,
        "repository": repository,
        "servers": _rows(team, repository),
        "team_servers": _rows(team, None) if repository else [],
        "form": form,
        "manages": may_manage(request.user, team),
        "names_programs": may_name_programs(request.user, team),
    }
    status = 422 if form.errors else 200
    return render_settings(request, "settings/mcp_servers.html", "settings-teams", context, status)


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
