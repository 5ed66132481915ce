"""The setup page of an agent type: install, log in or store a key, test, choose a repository, start a first task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from executors_app.agents import AgentType
from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.accounts.authorization import may_operate, may_operate_in, may_write, writable_teams
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.team_scope import teams_of
from sessions_app.agents.services import agent_login, agent_setup
from sessions_app.agents.services.agent_setup import AgentPlace, ProgramState
from sessions_app.agents.services.profiles import enabled, profiles_of
from sessions_app.agents.views.agent_settings import login_progress
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.catalogue.services.offers import default_executor, offered_executors
from sessions_app.catalogue.services.repositories import add_repository, without_scratch
from sessions_app.kernel.rules.parsers import parse_number, parse_uuid
from sessions_app.kernel.services.errors import Invalid, ReadOnly, SessionsError
from sessions_app.models import Repository
from sessions_app.pages.shortcuts import part_response
from sessions_app.prompts.services import validate_prompt_text
from sessions_app.sessions.rules.situation_facts import Label

TITLE_LIMIT: Final = 80
"""Characters of the prompt's first line that become the title of the first task."""
_PROGRAM_LABELS: Final[Mapping[ProgramState, Label]] = {
    ProgramState.INCLUDED: Label("Included with Kandev", "good"),
    ProgramState.INSTALLED: Label("Installed", "good"),
    ProgramState.MISSING: Label("Not installed", "bad"),
    ProgramState.BY_PROFILE: Label("Command set in the profile", "off"),
    ProgramState.UNKNOWN: Label("Not checked yet", "off"),
}
_LOGGED_OUT_LABEL: Final = Label("Not logged in", "bad")
_WORKS_LABEL: Final = Label("Works", "good")
_RESULT_LABELS: Final[Mapping[str, Label]] = {
    "running": Label("Running", "busy"),
    "passed": Label("Passed", "good"),
    "failed": Label("Failed", "bad"),
    "stopped": Label("Stopped before it ended", "off"),
}


def place_label(place: AgentPlace) -> Label:
    """Return what is known of an agent on an executor in a word or two."""
    if place.program is ProgramState.MISSING:
        return _PROGRAM_LABELS[place.program]
    if place.logged_out is not None:
        return _LOGGED_OUT_LABEL
    if place.needs_version and place.reported is not None:
        return Label(f"Outdated: {place.reported.version}, needs {place.needs_version}", "ask")
    if place.worked_at:
        return _WORKS_LABEL
    return _PROGRAM_LABELS[place.program]


@dataclass(frozen=True)
class _Setup:
    """Whose agent is set up, and where."""

    kind: AgentType
    team: Group
    executor: Executor
    chosen_profile: AgentProfile | None = None
    """The profile that the page is about; None: the one with which the team runs this type."""

    @cached_property
    def profile(self) -> AgentProfile | None:
        """The profile that is tested, and that the first task gets; None: there is none yet."""
        return self.chosen_profile or agent_setup.profile_for(self.kind, self.team)

    @property
    def query(self) -> str:
        """This choice as parameters of an address."""
        values = {"team": self.team.pk, "executor": self.executor.pk}
        if self.chosen_profile is not None:
            values["profile"] = self.chosen_profile.pk
        return urlencode(values)

    @property
    def url(self) -> str:
        """The page of this choice."""
        return f"{reverse('agent-setup', args=[self.kind.name])}?{self.query}"


def _find_kind(name: str) -> AgentType:
    try:
        return agent_type(name)
    except UnknownPlugin as error:
        raise Http404(name) from error


def _chosen(request: UserHttpRequest, name: str) -> _Setup | None:
    """Return the choice of the request, else the first team and the default executor; None if one is missing.

    Raises Http404 for a team that is not the user's, an unknown executor, and a profile that the team cannot use.
    """
    kind = _find_kind(name)
    values = request.POST
    if request.method == "GET":
        values = request.GET
    team = _chosen_team(request.user, values.get("team", ""))
    executor = _chosen_executor(values.get("executor", ""))
    if team is None or executor is None:
        return None
    profile = None
    if values.get("profile"):
        profiles = enabled(profiles_of(team.pk)).filter(agent_type=kind.name)
        profile = get_object_or_404(profiles, pk=parse_uuid(values["profile"]))
    return _Setup(kind, team, executor, profile)


def _chosen_team(user: User, team_id: str) -> Group | None:
    """Return the team with this id; without one the first in which the user may write, or else the first."""
    if team_id:
        # A text that is no id becomes None, which matches no row.
        return get_object_or_404(teams_of(user), pk=parse_number(team_id, 9))
    return writable_teams(user).order_by("name").first() or teams_of(user).order_by("name").first()


def _chosen_executor(executor_id: str) -> Executor | None:
    """Return the executor with this id; without one the default."""
    if executor_id:
        return get_object_or_404(Executor, pk=parse_uuid(executor_id))
    return default_executor()


@never_cache
@require_safe
def show_agent_setup(request: UserHttpRequest, name: str) -> HttpResponse:
    """Show the steps from an agent type to its first task, with what is known of each."""
    chosen = _chosen(request, name)
    context: dict[str, Any] = {"kind": _find_kind(name), "is_staff": request.user.is_staff, "chosen": chosen}
    if chosen is not None:
        context |= _steps_context(request.user, chosen)
        context |= _login_context(request.user, chosen)
        context |= _test_context(chosen)
    return render(request, "agents/agent_setup.html", context)


def _steps_context(user: User, chosen: _Setup) -> dict[str, Any]:
    [place] = agent_setup.agent_places(user, [chosen.kind], [chosen.executor], chosen.team)
    waiting = place.logged_out.session if place.logged_out else None
    repositories = without_scratch(Repository.objects.visible_to(user).filter(team=chosen.team))
    return {
        "place": place,
        "may_log_in": bool(chosen.kind.login and waiting and may_operate(user, waiting)),
        "program": _PROGRAM_LABELS[place.program],
        "teams": _offered_teams(user, chosen),
        "executors": list(offered_executors()),
        "repositories": list(repositories.order_by("-created_at")),
        "may_write": may_write(user, chosen.team),
    }


def _offered_teams(user: User, chosen: _Setup) -> list[Group]:
    """Return the teams for which the page can be shown: a profile may belong to one alone."""
    if chosen.chosen_profile is not None and chosen.chosen_profile.team_id is not None:
        return [chosen.team]
    return list(writable_teams(user).order_by("name"))


def _login_context(user: User, chosen: _Setup) -> dict[str, Any]:
    """Return the ways to log in that the agent of the newest test published, and no other session's agent."""
    argv = agent_login.profile_argv(chosen.profile, chosen.kind, chosen.executor.runtime)
    may_authenticate = may_operate_in(user, chosen.team, chosen.executor)
    published = agent_login.published_in_test(chosen.kind, chosen.team, chosen.executor, chosen.profile)
    return {
        "methods": agent_login.login_methods(published, argv),
        "reported_at": published.at,
        "may_authenticate": may_authenticate,
        "can_log_out": may_authenticate and published.logs_out,
    }


def _test_context(chosen: _Setup) -> dict[str, Any]:
    result = agent_setup.newest_result(chosen.kind, chosen.team, chosen.executor, chosen.profile)
    if result is None:
        return {"chosen": chosen, "result": None}
    login = agent_login.login_of_test(chosen.kind, chosen.team, chosen.executor, chosen.profile)
    return {
        "chosen": chosen,
        "result": result,
        "result_label": _RESULT_LABELS[result.state],
        "login": login_progress(login),
        "sent": agent_setup.TEST_PROMPT,
    }


@never_cache
@require_GET
def agent_test_updates(request: UserHttpRequest, name: str) -> JsonResponse:
    """Return the current result of the newest test."""
    chosen = _chosen(request, name)
    if chosen is None:
        raise Http404("no team or executor")
    return part_response("test", "agents/agent_test.html", _test_context(chosen))


def _test(request: UserHttpRequest, chosen: _Setup) -> str:
    agent_setup.start_test(request.user, chosen.kind, chosen.team, chosen.executor, profile=chosen.chosen_profile)
    return f"{chosen.url}#test"


def _store_key(request: UserHttpRequest, chosen: _Setup) -> str:
    variable = request.POST.get("variable", "").strip()
    value = request.POST.get("value", "").strip()
    profile = agent_setup.store_key(request.user, chosen.kind, chosen.team, variable, value)
    messages.success(request, f"{variable} is stored, encrypted, in the agent profile “{profile.name}”.")
    return f"{chosen.url}#test"


def _log_in(request: UserHttpRequest, chosen: _Setup) -> str:
    method = request.POST.get("method", "")
    agent_login.log_in_at(request.user, chosen.kind, chosen.team, chosen.executor, method, profile=chosen.profile)
    return f"{chosen.url}#test"


def _log_out(request: UserHttpRequest, chosen: _Setup) -> str:
    agent_login.log_out_at(request.user, chosen.kind, chosen.team, chosen.executor, profile=chosen.profile)
    return f"{chosen.url}#test"


def _add_repository(request: UserHttpRequest, chosen: _Setup) -> str:
    if not request.user.is_staff:
        raise ReadOnly("Only administrators can add repositories.")
    path = request.POST.get("path", "").strip()
    name = path.rstrip("/").rpartition("/")[2][:200]
    row = add_repository({"name": name, "team": chosen.team, "path": path}, request.user)
    messages.success(request, f"{row.name} is available to {chosen.team.name}.")
    return f"{chosen.url}#task"


def _start_task(request: UserHttpRequest, chosen: _Setup) -> str:
    text = request.POST.get("prompt", "").replace("\r\n", "\n")
    validate_prompt_text(text, field="prompt")
    repositories = Repository.objects.visible_to(request.user).filter(team=chosen.team)
    repository = repositories.filter(pk=parse_uuid(request.POST.get("repository", ""))).first()  # type: ignore[misc]
    if repository is None:
        raise Invalid("Choose a repository.", field="repository")
    profile = chosen.chosen_profile or agent_setup.ensure_profile(request.user, chosen.kind, chosen.team)
    title = text.strip().splitlines()[0][:TITLE_LIMIT]
    values = {"title": title, "description": text, "team": chosen.team, "repository": repository}
    task = create_task(request.user, values)
    session = create_session(request.user, task, profile, chosen.executor, prompt=text)
    return reverse("session", args=[task.id, session.id])


_ACTIONS: Final[Mapping[str, Callable[[UserHttpRequest, _Setup], str]]] = {
    "test": _test,
    "login": _log_in,
    "logout": _log_out,
    "key": _store_key,
    "repository": _add_repository,
    "task": _start_task,
}
"""What the forms of the page do; each returns the address of the next page."""


@require_POST
def act_on_agent_setup(request: UserHttpRequest, name: str, action: str) -> HttpResponse:
    """Carry out one of ``_ACTIONS`` for a team in which the user can write; 404 for any other action."""
    if action not in _ACTIONS:
        raise Http404(action)
    chosen = _chosen(request, name)
    if chosen is None:
        raise Http404("no team or executor")
    if not may_write(request.user, chosen.team):
        raise PermissionDenied
    try:
        return redirect(_ACTIONS[action](request, chosen))
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect(chosen.url)
