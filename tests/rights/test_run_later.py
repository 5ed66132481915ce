"""Stored work that runs later: whose rights it has, and that nobody can give it more than their own.

The table *What is stored and runs later* of docs/security.md names a test for each row; most are here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from executors_app.models import AgentProfile
from sessions_app.accounts.models import ApiToken, TeamRole
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.kernel.services.errors import ReadOnly, TokenRevoked
from sessions_app.models import Intent, Prompt, Repository, TaskSession
from sessions_app.notifications import delivery
from sessions_app.notifications.models import Delivery, NotificationSettings, Webhook
from sessions_app.notifications.user_settings import change_webhook, create_webhook
from sessions_app.prompts import services as prompts
from sessions_app.waits import services as waits
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services.runs import rerun, retry_run, start_saved_run
from sessions_app.workflows.services.schedules import start_due_runs
from sessions_app.workflows.services.workflows import save_workflow
from tests.admin.everything import superuser
from tests.api.world import World, make_world
from tests.attention.raising import raise_item_of
from tests.rights.world import Cast, browsers, make_cast
from tests.supervisor.rows import change, fresh
from tests.workflows.run_world import World as RunWorld
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db
NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)
SHELL = workflow([node("say", "shell", script="cat secret.key")])
CLOCK = workflow([node("clock", "trigger", triggerType="cron", cron="* * * * *"), node("say", "constant", value=1)])
CLOCK_AND_SHELL = workflow(
    [node("clock", "trigger", triggerType="cron", cron="* * * * *"), node("say", "shell", script="cat secret.key")]
)
TWO_SHELLS = workflow(
    [node("first", "shell", script="echo 1"), node("second", "shell", script="echo 2")],
    ["first.output > second.input"],
)


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def cast(db: None) -> Cast:
    return make_cast()


def leave_team(user: User, world: World) -> None:
    user.groups.remove(world.team)


def become_viewer(user: User, world: World) -> None:
    TeamRole.objects.update_or_create(user=user, team=world.team, defaults={"role": TeamRole.Role.VIEWER})


def become_inactive(user: User, world: World) -> None:
    change(user, is_active=False)


LOSSES: list[Callable[[User, World], None]] = [leave_team, become_viewer, become_inactive]


def kept(world: World, text: str, **values: Any) -> Workflow:
    places = {"repository": world.repository, "executor": world.executor}
    return save_workflow(world.staff, {"team": world.team, "name": "it", "text": text, **places, **values})[0]


def session_of_other_team(world: World) -> TaskSession:
    """Return a session of the stranger's team, to which the member also belongs."""
    team = world.stranger.groups.get()
    world.member.groups.add(team)
    repository = Repository.objects.create(name="other", team=team, path="/srv/other")
    task = create_task(world.stranger, {"title": "Elsewhere", "team": team, "repository": repository})
    profile = AgentProfile.objects.create(name="shared", agent_type="demo")
    return create_session(world.stranger, task, profile, world.executor)


class TestWorkflows:
    def test_trigger_never_runs_a_members_script_as_staff(self, world: World) -> None:
        row = kept(world, CLOCK, triggers_enabled=True)
        save_workflow(world.member, {"text": CLOCK_AND_SHELL}, row)
        Workflow.objects.update(next_run_at=NOON)
        assert start_due_runs(NOON) == 0
        assert not WorkflowRun.objects.exists()
        assert not fresh(row).triggers_enabled

    def test_manual_run_has_the_rights_of_its_starter(self, world: World) -> None:
        row = kept(world, SHELL)
        with pytest.raises(ReadOnly):
            start_saved_run(world.member, row, {})
        assert start_saved_run(world.staff, row, {})[0].started_by == world.staff

    def test_resumed_run_has_the_rights_of_its_resumer(self, world: World) -> None:
        run, _ = start_saved_run(world.staff, kept(world, SHELL), {})
        run = change(run, state="failed")
        run.node_runs.create(path="say", node="say", kind="shell", state="failed", position=0)
        for again in (retry_run, rerun):
            with pytest.raises(ReadOnly):
                again(world.member, run)
        plain, _ = start_saved_run(world.staff, kept(world, CLOCK, name="plain"), {})
        plain.node_runs.create(path="say", node="say", kind="constant", state="failed", position=0)
        assert retry_run(world.member, change(plain, state="failed")).started_by == world.member
        assert rerun(world.member, plain).started_by == world.member

    @pytest.mark.parametrize("loss", ["team", "role", "is_active", "is_staff"])
    def test_run_starts_no_script_after_its_user_lost_the_right(self, loss: str) -> None:
        running = RunWorld(TWO_SHELLS)
        running.scripts.answer = lambda script: None
        running.drive(2)
        assert running.states == {"first": "running"}
        person, team = running.user, running.run.team
        if loss == "team":
            person.groups.clear()
        elif loss == "role":
            TeamRole.objects.create(user=person, team=team, role=TeamRole.Role.VIEWER)
        else:
            change(person, **{loss: False})
        running.scripts.answer = lambda script: {"exit_code": 0, "stdout": "1"}
        running.drive(6)
        assert running.states == {"first": "succeeded", "second": "failed"}
        assert "the user whose rights this run has may no longer run it" in running["second"].error
        assert [script["script"] for script in running.scripts.begun.values()] == ["echo 1"]

    def test_example_runs_only_after_it_is_saved_and_started(self, cast: Cast) -> None:
        before = WorkflowRun.objects.count()
        for role in ("viewer", "member"):
            answer = browsers(cast)[role].get("/workflows/new/?example=review-until-approved")
            assert answer.status_code == 200
        assert (WorkflowRun.objects.count(), Workflow.objects.count()) == (before, 1)


class TestRepositoriesAndProfiles:
    """The right to write them is a row of ``matrix`` and ``admin_matrix`` each: for paths and commands, staff."""

    def test_profile_never_moves_to_another_team(self, world: World) -> None:
        other = world.stranger.groups.get()
        browser = Client()
        browser.force_login(superuser())
        form = {"name": "renamed", "agent_type": "demo", "permission_mode": "ask", "command": "", "args": ""}
        form |= {"additional_directories": "", "team": str(other.pk)}
        url = reverse("admin:executors_app_agentprofile_change", args=[world.profile.pk])
        assert browser.post(url, form).status_code == 302
        profile = fresh(world.profile)
        assert (profile.name, profile.team) == ("renamed", world.team)

    def test_repository_never_changes_its_team_or_path(self, world: World) -> None:
        browser = Client()
        browser.force_login(superuser())
        url = reverse("admin:sessions_app_repository_change", args=[world.repository.pk])
        form = {"name": "renamed", "team": str(world.stranger.groups.get().pk), "path": "/etc", "default_branch": "x"}
        assert browser.post(url, form).status_code == 302
        row = fresh(world.repository)
        assert (row.name, row.team, row.path) == ("renamed", world.team, "/srv/repository")


class TestRequests:
    def test_intents_and_prompts_name_their_requester(self, world: World) -> None:
        prompts.queue_prompt(world.session.id, "m", "Go on", world.member)
        assert Prompt.objects.get(message_id="m").by == world.member
        assert set(Intent.objects.filter(session=world.session).values_list("by", flat=True)) == {world.member.pk}

    @pytest.mark.parametrize("loss", LOSSES)
    def test_wait_key_has_the_rights_of_its_requester(self, world: World, loss: Callable[[User, World], None]) -> None:
        world.mark_running()
        opened = waits.open_wait(world.session.id, "The build", None, world.member)
        loss(world.member, world)
        with pytest.raises(TokenRevoked):
            waits.resume_wait(str(opened.resume_token), "Built", "")
        assert not Prompt.objects.filter(kind="wait").exists()
        again = waits.rotate_wait_key(world.session.id, opened.wait_id, world.staff)
        waits.resume_wait(str(again.resume_token), "Built", "")
        assert Prompt.objects.get(kind="wait").text == "Built"

    @pytest.mark.parametrize(("loss", "status"), [(leave_team, 404), (become_viewer, 403), (become_inactive, 401)])
    def test_token_has_the_current_rights_of_its_user(
        self, world: World, loss: Callable[[User, World], None], status: int
    ) -> None:
        _, secret = ApiToken.mint(world.member, "a program", ApiToken.Scope.WRITE, None)
        loss(world.member, world)
        answer = Client().post(world.url("stop/"), headers={"authorization": f"Token {secret}"})
        assert answer.status_code == status


class TestNotifications:
    @pytest.fixture(autouse=True)
    def _hosts(self, settings: Any) -> None:
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = ("127.0.0.1:9",)
        settings.KANDEV_EMAIL = True

    def hook(self, user: User, **more: Any) -> Webhook:
        made = create_webhook(user, "http://127.0.0.1:9/", **more)
        return change(made, created_at=timezone.now() - timedelta(hours=1))

    def test_webhook_of_a_user_gets_what_the_user_may_see_now(self, world: World) -> None:
        self.hook(world.member)
        leave_team(world.member, world)
        raise_item_of(world.session)
        assert delivery.plan_deliveries() == 0

    @pytest.mark.parametrize("loss", LOSSES)
    def test_team_webhook_ends_with_the_rights_of_its_creator(
        self, world: World, loss: Callable[[User, World], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        TeamRole.objects.create(user=world.member, team=world.team, role=TeamRole.Role.ADMIN)
        hook = self.hook(world.member, team=world.team)
        raise_item_of(world.session, name="first")
        assert delivery.plan_deliveries() == 1
        loss(world.member, world)
        raise_item_of(world.session, name="second")
        delivery.send_due_deliveries()
        assert (delivery.plan_deliveries(), Delivery.objects.get().state) == (0, "dropped")
        assert not fresh(hook).enabled
        assert "was disabled" in caplog.text
        change_webhook(world.staff, fresh(hook), {"enabled": True})
        assert delivery.plan_deliveries() == 1

    def test_email_omits_what_its_reader_may_no_longer_see(self, world: World, mailoutbox: list[Any]) -> None:
        other = session_of_other_team(world)
        change(world.member, email="member@example.com")
        NotificationSettings.objects.create(user=world.member, email=True)
        raise_item_of(world.session, name="of the first team")
        raise_item_of(other, name="of the second team")
        assert delivery.plan_deliveries() == 1
        leave_team(world.member, world)
        delivery.send_due_deliveries()
        (sent,) = mailoutbox
        assert "What of the second team" in sent.body
        assert "What of the first team" not in sent.body
