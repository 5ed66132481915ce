"""One repository in the API: its settings, and its removal from the team."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from sessions_app.accounts.models import ApiToken, TeamRole
from sessions_app.models import Repository
from sessions_app.workflows.models import Workflow
from tests.api.world import World, client_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager(world: World) -> APIClient:
    """Return the client of a member who is an admin of the team."""
    TeamRole.objects.create(user=world.member, team=world.team, role=TeamRole.Role.ADMIN)
    return client_of(world.member)


def path_of(world: World) -> str:
    return f"/api/v1/repositories/{world.repository.pk}/"


def test_settings_are_read_and_changed_over_the_version_that_was_seen(world: World, manager: APIClient) -> None:
    before = manager.get(path_of(world)).json()
    assert (before["name"], before["default_base"], before["is_default"]) == (world.repository.name, "", False)
    change = {"name": "motor", "is_default": True, "version": before["version"]}
    after = manager.patch(path_of(world), change, format="json").json()
    assert (after["name"], after["is_default"]) == ("motor", True)
    answer = manager.patch(path_of(world), {**change, "name": "other"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "repository_changed")
    assert answer.json()["details"]["version"] == after["version"]
    for body, field in (({"path": "/etc"}, "path"), ({"default_base": "a..b"}, "default_base"), ({"name": ""}, "name")):
        answer = manager.patch(path_of(world), body, format="json")
        assert (answer.status_code, list(answer.json()["details"])) == (400, [field])


def test_removed_repository_is_not_found_and_takes_no_task(world: World, manager: APIClient) -> None:
    workflow = Workflow.objects.create(team=world.team, name="Nightly", text="", repository=world.repository)
    answer = manager.delete(path_of(world))
    assert (answer.status_code, answer.json()["code"], answer.json()["details"]) == (
        409,
        "repository_in_use",
        {"workflows": 1},
    )
    workflow.delete()
    assert manager.delete(path_of(world)).status_code == 204
    assert manager.get(path_of(world)).status_code == 404
    assert manager.get("/api/v1/repositories/").json()["count"] == 0
    task = {"title": "New", "team": world.team.pk, "repository": str(world.repository.pk)}
    answer = manager.post("/api/v1/tasks/", task, format="json")
    assert (answer.status_code, list(answer.json()["details"])) == (400, ["repository"])
    assert Repository.objects.count() == 1


def test_read_only_token_of_an_admin_changes_nothing(world: World, manager: APIClient) -> None:
    _, key = ApiToken.mint(world.member, "reader", ApiToken.Scope.READ, None)
    reader = APIClient()
    reader.credentials(HTTP_AUTHORIZATION=f"Token {key}")
    assert reader.get(path_of(world)).status_code == 200
    assert reader.patch(path_of(world), {"name": "x"}, format="json").status_code == 403
    assert reader.delete(path_of(world)).status_code == 403
