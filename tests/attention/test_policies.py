"""The nearest word counts: the session's own, else its team's, else the deployment's."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.domain.policy import Effective, Said, Source, effective
from sessions_app.models import TeamPolicy, TeamRole
from sessions_app.services.policies import policy_of
from sessions_app.supervisor.sweep import looking
from tests.api.world import World, client_of
from tests.supervisor.rows import fresh

S, T, D = Source.SESSION, Source.TEAM, Source.DEPLOYMENT
NOTHING = Said()


@pytest.mark.parametrize(
    ("session", "team", "deployment", "holds"),
    [
        (NOTHING, NOTHING, Said("auto"), Effective("auto", D, True, None)),
        (NOTHING, NOTHING, Said("working"), Effective("working", D, False, None)),
        (NOTHING, Said("manual"), Said("auto"), Effective("manual", T, False, None)),
        (Said("on_open"), Said("manual"), Said("auto"), Effective("on_open", S, False, None)),
        (Said("auto"), Said("manual"), Said("manual"), Effective("auto", S, True, None)),
        (Said("auto"), Said("", False), Said("auto"), Effective("auto", S, False, T)),
        (Said("auto", True), Said("", False), Said("auto", False), Effective("auto", S, True, S)),
        (NOTHING, NOTHING, Said("manual", True), Effective("manual", D, True, D)),
    ],
)
def test_each_of_the_two_is_taken_from_the_nearest_who_says_it(
    session: Said, team: Said, deployment: Said, holds: Effective
) -> None:
    assert effective(session, team, deployment) == holds


def status(api: APIClient, world: World) -> tuple[str, str, bool]:
    said = api.get(world.url("status/")).json()
    return said["policy"], said["policy_source"], said["continues"]


def sweep_sees(world: World) -> str:
    (row,) = looking.read("me", [world.session.id])
    return row.policy


def test_page_api_and_sweep_agree_on_what_holds(world: World, api: APIClient, settings: Any) -> None:
    world.run_it()
    assert (status(api, world), sweep_sees(world)) == (("auto", "deployment", True), "auto")
    settings.KANDEV_RECOVERY_POLICY = "working"
    assert (status(api, world), sweep_sees(world)) == (("working", "deployment", False), "working")
    TeamPolicy.objects.create(team=world.team, policy="on_open", continue_prompts=True)
    assert (status(api, world), sweep_sees(world)) == (("on_open", "team", True), "on_open")
    shown = api.patch(world.url(), {"policy": "manual", "continue_prompts": False}, format="json").json()
    assert (shown["policy"], shown["own_policy"], shown["continue_prompts"]) == ("manual", "manual", False)
    assert (status(api, world), sweep_sees(world)) == (("manual", "session", False), "manual")
    shown = api.patch(world.url(), {"policy": "", "continue_prompts": None}, format="json").json()
    assert (shown["policy"], shown["own_policy"]) == ("on_open", "")
    assert policy_of(fresh(world.session)).source == T


def test_a_change_of_a_session_is_said_in_its_log(world: World, api: APIClient) -> None:
    api.patch(world.url(), {"policy": "manual"}, format="json")
    api.patch(world.url(), {"policy": "manual"}, format="json")
    said = list(world.session.events.filter(name="session.policy_changed").values_list("payload", flat=True))
    assert said == [{"policy": "manual", "source": "session", "continues": False}]


@pytest.mark.parametrize("body", [{"policy": "never"}, {"continue_prompts": "perhaps"}])
def test_a_word_that_is_none_is_refused(world: World, api: APIClient, body: dict[str, Any]) -> None:
    assert api.patch(world.url(), body, format="json").status_code == 400


@pytest.mark.parametrize(
    ("who", "role", "expected"),
    [("member", None, 403), ("member", "viewer", 403), ("member", "admin", 200), ("staff", None, 200)],
)
def test_a_teams_policy_is_set_by_staff_and_its_admins(world: World, who: str, role: str | None, expected: int) -> None:
    user, url = getattr(world, who), f"/api/v1/teams/{world.team.id}/policy/"
    if role:
        TeamRole.objects.create(user=user, team=world.team, role=role)
    assert client_of(user).patch(url, {"policy": "manual"}, format="json").status_code == expected
    said = client_of(world.member).get(url).json()
    holds = "manual" if expected == 200 else "auto"
    assert (said["effective"]["policy"], said["effective"]["policy_source"]) == (
        (holds, "team") if expected == 200 else (holds, "deployment")
    )
    assert client_of(world.stranger).get(url).status_code == 404
