"""The nearest setting wins: the session's own, else its team's, else the deployment's."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from sessions_app.accounts.models import TeamRole
from sessions_app.models import TeamPolicy
from sessions_app.recovery.rules.resumability import EffectivePolicy, PolicyChoice, PolicySource, effective_policy
from sessions_app.recovery.services.assessment import effective_policy_of
from sessions_app.recovery.sweep import candidates
from tests.api.world import World, client_of
from tests.supervisor.rows import fresh

S, T, D = PolicySource.SESSION, PolicySource.TEAM, PolicySource.DEPLOYMENT
NOTHING = PolicyChoice()


@pytest.mark.parametrize(
    ("session", "team", "deployment", "holds"),
    [
        (NOTHING, NOTHING, PolicyChoice("auto"), EffectivePolicy("auto", D, True, None)),
        (NOTHING, NOTHING, PolicyChoice("working"), EffectivePolicy("working", D, False, None)),
        (NOTHING, PolicyChoice("manual"), PolicyChoice("auto"), EffectivePolicy("manual", T, False, None)),
        (
            PolicyChoice("on_open"),
            PolicyChoice("manual"),
            PolicyChoice("auto"),
            EffectivePolicy("on_open", S, False, None),
        ),
        (PolicyChoice("auto"), PolicyChoice("manual"), PolicyChoice("manual"), EffectivePolicy("auto", S, True, None)),
        (PolicyChoice("auto"), PolicyChoice("", False), PolicyChoice("auto"), EffectivePolicy("auto", S, False, T)),
        (
            PolicyChoice("auto", True),
            PolicyChoice("", False),
            PolicyChoice("auto", False),
            EffectivePolicy("auto", S, True, S),
        ),
        (NOTHING, NOTHING, PolicyChoice("manual", True), EffectivePolicy("manual", D, True, D)),
    ],
)
def test_policy_and_continue_setting_come_from_the_nearest_level(
    session: PolicyChoice, team: PolicyChoice, deployment: PolicyChoice, holds: EffectivePolicy
) -> None:
    assert effective_policy(session, team, deployment) == holds


def status(api: APIClient, world: World) -> tuple[str, str, bool]:
    body = api.get(world.url("status/")).json()
    return body["policy"], body["policy_source"], body["continues"]


def policy_in_sweep(world: World) -> str:
    (row,) = candidates.load_candidates("me", [world.session.id])[0]
    return row.policy


def test_page_api_and_sweep_agree_on_the_effective_policy(world: World, api: APIClient, settings: Any) -> None:
    world.mark_running()
    assert (status(api, world), policy_in_sweep(world)) == (("auto", "deployment", True), "auto")
    settings.KANDEV_RECOVERY_POLICY = "working"
    assert (status(api, world), policy_in_sweep(world)) == (("working", "deployment", False), "working")
    TeamPolicy.objects.create(team=world.team, policy="on_open", continue_prompts=True)
    assert (status(api, world), policy_in_sweep(world)) == (("on_open", "team", True), "on_open")
    shown = api.patch(world.url(), {"policy": "manual", "continue_prompts": False}, format="json").json()
    assert (shown["policy"], shown["own_policy"], shown["continue_prompts"]) == ("manual", "manual", False)
    assert (status(api, world), policy_in_sweep(world)) == (("manual", "session", False), "manual")
    shown = api.patch(world.url(), {"policy": "", "continue_prompts": None}, format="json").json()
    assert (shown["policy"], shown["own_policy"]) == ("on_open", "")
    assert effective_policy_of(fresh(world.session)).source == T


def test_policy_change_of_a_session_is_logged_once(world: World, api: APIClient) -> None:
    api.patch(world.url(), {"policy": "manual"}, format="json")
    api.patch(world.url(), {"policy": "manual"}, format="json")
    payloads = list(world.session.events.filter(name="session.policy_changed").values_list("payload", flat=True))
    assert payloads == [{"policy": "manual", "source": "session", "continues": False}]


@pytest.mark.parametrize("body", [{"policy": "never"}, {"continue_prompts": "perhaps"}])
def test_invalid_policy_values_are_rejected(world: World, api: APIClient, body: dict[str, Any]) -> None:
    assert api.patch(world.url(), body, format="json").status_code == 400


@pytest.mark.parametrize(
    ("who", "role", "expected"),
    [("member", None, 403), ("member", "viewer", 403), ("member", "admin", 200), ("staff", None, 200)],
)
def test_only_staff_and_team_admins_can_set_a_team_policy(
    world: World, who: str, role: str | None, expected: int
) -> None:
    user, url = getattr(world, who), f"/api/v1/teams/{world.team.id}/policy/"
    if role:
        TeamRole.objects.create(user=user, team=world.team, role=role)
    assert client_of(user).patch(url, {"policy": "manual"}, format="json").status_code == expected
    body = client_of(world.member).get(url).json()
    holds = "manual" if expected == 200 else "auto"
    assert (body["effective"]["policy"], body["effective"]["policy_source"]) == (
        (holds, "team") if expected == 200 else (holds, "deployment")
    )
    assert client_of(world.stranger).get(url).status_code == 404
