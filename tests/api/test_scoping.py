"""Access to every route of the API; the table is built from the URL conf."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest
from django.urls import URLPattern
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.accounts.models import ApiToken
from sessions_app.api import urls
from sessions_app.models import Host, RepositoryRemote
from sessions_app.notifications.models import Webhook
from tests.api.world import PERMISSION, World, client_of, make_world, prompt, workflow_run
from tests.attention.raising import raise_item_of

pytestmark = pytest.mark.any_database
METHODS = ("get", "post", "put", "patch", "delete")
PATTERNS = [pattern for pattern in urls.urlpatterns if str(pattern.pattern)]
CALLS = [
    (str(pattern.pattern), method)
    for pattern in PATTERNS
    for view in [getattr(pattern.callback, "view_class")]  # noqa: B009  (REST framework sets it)
    for method in METHODS
    if hasattr(view, method) and method in view.http_method_names
]
WITH_A_KEY = ("runs/resume/", "post")
"""The key of a wait is enough; no account is needed."""
CALLS.remove(WITH_A_KEY)
TEAM_ROUTE = "<uuid:(task|item|webhook|workflow|run|repository|profile)_id>|<int:team_id>"
OF_A_TEAM = [call for call in CALLS if re.search(TEAM_ROUTE, call[0])]
OF_ALL = [call for call in CALLS if call not in OF_A_TEAM]
STAFF_WRITES = {(f"{things}/", "post") for things in ("repositories", "agent-profiles", "executors", "sweeps")}
STAFF_WRITES |= {("executors/<uuid:executor_id>/probe/", "post"), ("executors/<uuid:executor_id>/", "delete")}
STAFF_WRITES |= {("executors/<uuid:executor_id>/", "patch")}
STAFF_WRITES |= {("hosts/clusters/", "get"), ("hosts/clusters/lost/", "post")}
STAFF_WRITES |= {("hosts/", "get"), ("hosts/nodes/", "get"), ("hosts/<int:host_id>/<str:action>/", "post")}
OPERATORS_WRITE = {
    ("tasks/<uuid:task_id>/sessions/<uuid:session_id>/files/content/", "put"),
    ("tasks/<uuid:task_id>/sessions/<uuid:session_id>/logout/", "post"),
}
"""Requires the right to operate where agents are not isolated, as here."""
MANAGERS_WRITE = {("teams/<int:team_id>/policy/", "patch"), ("teams/<int:team_id>/mcp-servers/", "put")}
MANAGERS_WRITE |= {("repositories/<uuid:repository_id>/mcp-servers/", "put")}
MANAGERS_WRITE |= {("teams/<int:team_id>/budget/", "put")}
MANAGERS_WRITE |= {("repositories/<uuid:repository_id>/", method) for method in ("patch", "delete")}
MANAGERS_WRITE |= {("agent-profiles/<uuid:profile_id>/", "patch")}
_REMOTE = "repositories/<uuid:repository_id>/remote/"
MANAGERS_WRITE |= {(_REMOTE, "put"), (_REMOTE, "delete"), (f"{_REMOTE}key/", "put"), (f"{_REMOTE}token/", "put")}
MANAGERS_WRITE |= {(f"{_REMOTE}{part}", "post") for part in ("host-keys/", "test/")}
MANAGERS_WRITE |= {(f"{_REMOTE}host-keys/", "put")}
STRANGERS_GET = {
    ("agent-types/<slug:name>/login/", "get"): 400,
    ("agent-types/<slug:name>/login/", "post"): 400,
    ("agent-types/<slug:name>/logout/", "post"): 400,
    ("notifications/test/", "post"): 409,
    ("sessions/bulk/", "post"): 400,
    ("tasks/", "post"): 400,
    ("tasks/bulk/", "post"): 400,
    ("webhooks/", "post"): 400,
    ("workflows/", "post"): 400,
    ("workflows/check/", "post"): 400,
    ("tokens/", "post"): 400,
    ("tokens/<uuid:token_id>/", "delete"): 404,
}
"""The status if it is not 200."""


@pytest.fixture(scope="module")
def shared_world(shared_rows: None) -> World:
    return make_world()


@pytest.fixture
def world(shared_world: World, db: None) -> World:
    return deepcopy(shared_world)


def call(client: APIClient, world: World, route: str, method: str) -> Any:
    run = workflow_run(world)
    RepositoryRemote.objects.create(repository=world.repository, address="http://127.0.0.1:1/project.git", token="x")
    values = {
        "name": "demo",
        "workflow_id": run.workflow_id,
        "run_id": run.id,
        "task_id": world.task.id,
        "session_id": world.session.id,
        "permission_id": PERMISSION,
        "message_id": "message-1",
        "wait_id": "wait-1",
        "executor_id": world.executor.id,
        "profile_id": world.profile.id,
        "sweep_id": world.sweep.id,
        "request_id": world.sweep_request.id,
        "team_id": world.team.id,
        "repository_id": world.repository.id,
        "item_id": raise_item_of(world.session, "error", "scoping").id,
        "webhook_id": Webhook.objects.create(user=world.member, url="https://hooks.example/").id,
        "sha256": world.session.attachments.create(sha256="a" * 64, media_type="text/plain", content=b"a").sha256,
        "comment_id": world.session.review_comments.create(path="a", first_line=1, last_line=1, text="Why?").id,
        "token_id": ApiToken.mint(world.member, "a program", ApiToken.Scope.WRITE, None)[0].id,
    }
    values |= {"host_id": Host.objects.create(name="host", first_seen_at=timezone.now()).id, "action": "cordon"}
    path = re.sub(r"<\w+:(\w+)>", lambda found: str(values[found[1]]), route)
    return getattr(client, method)(f"/api/v1/{path}", {}, format="json" if method != "get" else None)


def test_table_has_every_route() -> None:
    assert len(PATTERNS) == len(urls.urlpatterns) - 1
    assert all(isinstance(pattern, URLPattern) for pattern in PATTERNS)
    assert len(OF_A_TEAM) > 20


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_anonymous_request_is_refused(world: World, route: str, method: str) -> None:
    answer = call(client_of(None), world, route, method)
    assert answer.status_code == 401
    assert answer.json()["code"] == "not_authenticated"
    assert answer["WWW-Authenticate"] == "Token"


@pytest.mark.parametrize(("route", "method"), OF_A_TEAM)
def test_stranger_finds_nothing_of_the_team(world: World, route: str, method: str) -> None:
    prompt(world.session, "held", "message-1")
    answer = call(client_of(world.stranger), world, route, method)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(("route", "method"), [one for one in OF_ALL if one not in STAFF_WRITES])
def test_shared_routes_reveal_nothing_of_a_team_to_a_stranger(world: World, route: str, method: str) -> None:
    world.mark_running()
    answer = call(client_of(world.stranger), world, route, method)
    assert answer.status_code == STRANGERS_GET.get((route, method), 200)
    text = answer.content.decode()
    for hidden in (world.task.id, world.session.id, world.repository.id, world.profile.id, world.repository.path):
        assert str(hidden) not in text


@pytest.mark.parametrize(("route", "method"), CALLS)
def test_member_is_allowed(world: World, route: str, method: str) -> None:
    prompt(world.session, "held", "message-1")
    answer = call(client_of(world.member), world, route, method)
    refused = (route, method) in STAFF_WRITES | OPERATORS_WRITE | MANAGERS_WRITE
    allowed = {403} if refused else {200, 201, 202, 204, 400, 409, 503}
    assert answer.status_code in allowed, answer.content


def test_former_member_loses_access(world: World, api: APIClient) -> None:
    assert api.get(world.url()).status_code == 200
    world.member.groups.clear()
    assert api.get(world.url()).status_code == 404


def test_session_is_not_found_under_another_task(world: World, api: APIClient) -> None:
    made = api.post("/api/v1/tasks/", {"title": "Another"}, format="json").json()
    assert api.get(f"/api/v1/tasks/{made['id']}/sessions/{world.session.id}/").status_code == 404
