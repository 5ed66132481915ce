"""What is a member's in a team is counted before the member is removed; what happens then is tested in its topics."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from sessions_app.accounts.belongings import find_belongings
from sessions_app.accounts.models import ApiToken, TeamRole
from sessions_app.models import FinishIntent, TaskPlan, TaskSession, WaitKey
from sessions_app.notifications.models import Webhook
from sessions_app.workflows.models import Workflow, WorkflowRun
from tests.accounts.conftest import browser_of
from tests.pages.world import World


def everything_of(world: World, user: User) -> None:
    """Create one of everything that has the rights of ``user``, or is theirs."""
    session = world.running_session()
    TaskSession.objects.filter(pk=session.pk).update(owner=user)
    session.prompts.update(by=user, state="queued")
    place: dict[str, Any] = {"team": world.team, "name": "Nightly", "text": ""}
    workflow = Workflow.objects.create(**place, triggers_enabled=True, triggers_enabled_by=user)
    WorkflowRun.objects.create(
        **place, workflow=workflow, task=session.task, executor=world.executor, started_by=user, state="running"
    )
    WaitKey.objects.create(session=session, wait_kind="external", wait_id="build", secret_hash="a" * 64, by=user)
    FinishIntent.objects.create(
        session=session,
        kind="push",
        branch_ref="refs/heads/a",
        branch_commit="a" * 40,
        target_ref="refs/heads/a",
        by=user,
    )
    Webhook.objects.create(team=world.team, url="https://hooks.example/", created_by=user)
    TaskPlan.objects.create(task=session.task, assignee=user)
    ApiToken.mint(user, "a program", ApiToken.Scope.WRITE, None)


def test_everything_of_a_member_is_counted_and_nothing_of_others(world: World) -> None:
    everything_of(world, world.ada)
    found = find_belongings(world.team, world.ada)
    assert [getattr(found, name) for name in found.__slots__] == [1] * len(found.__slots__)
    assert find_belongings(world.team, world.bob).is_empty
    assert find_belongings(world.bob.groups.get(), world.ada).is_empty


def test_page_says_what_happens_to_each_before_a_member_is_removed(world: World) -> None:
    everything_of(world, world.ada)
    manager = User.objects.create(username="grace")
    manager.groups.add(world.team)
    TeamRole.objects.create(user=manager, team=world.team, role=TeamRole.Role.ADMIN)
    path = f"/settings/teams/{world.team.pk}/members/{world.ada.pk}/"
    text = browser_of(manager).get(path).text
    for said in (
        "1 running session of theirs goes on, but is not started again after a restart",
        "1 prompt of theirs in queues is still sent",
        "1 workflow schedule with their rights is paused when next due",
        "1 workflow run with their rights fails at the next script or prompt",
        "1 key of waits that they requested is refused",
        "1 requested merge or push is refused",
        "1 webhook of the team that they created is switched off",
        "1 task stays assigned to them",
        "Their API tokens stay valid for their other teams",
    ):
        assert said in text
    own = browser_of(manager).get(f"/settings/teams/{world.team.pk}/members/{manager.pk}/").text
    assert "Nothing that runs in this team has their rights." in own
