"""Which executor and agent profile are used if nobody chooses, and what a disabled one means."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.models import AgentProfile, Executor
from sessions_app.agents.services import agent_setup
from sessions_app.board.forms import SessionCreateForm, TaskCreateForm
from sessions_app.board.services.tasks import create_session, default_choice, usual_choice
from sessions_app.catalogue.services.offers import default_executor
from sessions_app.catalogue.services.repositories import scratch_root
from sessions_app.kernel.services.errors import ExecutorDisabled, ProfileDisabled
from sessions_app.models import Repository, TaskSession
from sessions_app.workflows.services import run_rights
from tests.pages.world import World, make_world

pytestmark = pytest.mark.any_database


@pytest.fixture
def world(db: Any) -> World:
    return make_world()


def chosen_everywhere(world: World) -> set[Any]:
    """Return the executors and profiles that each place uses if nobody chooses."""
    profile, executor = usual_choice(world.ada, world.task())
    forms = TaskCreateForm(world.ada), SessionCreateForm(world.ada, world.task())
    return {
        *(form.initial[name].pk for form in forms for name in ("agent_profile", "executor")),
        *(row.pk for row in (profile, executor, default_executor(), run_rights.default_executor(None)) if row),
    }


def test_new_executor_or_profile_never_becomes_the_default(world: World) -> None:
    defaults = {world.profile.pk, world.executor.pk}
    assert chosen_everywhere(world) == defaults
    Executor.objects.create(name="A first one by name", runtime="local_standalone")
    AgentProfile.objects.create(name="A first one by name", agent_type="demo")
    assert chosen_everywhere(world) == defaults


def test_default_that_staff_chose_is_used(world: World) -> None:
    other = Executor.objects.create(name="Other", runtime="local_standalone", is_default=True)
    assert chosen_everywhere(world) == {world.profile.pk, other.pk}


def test_workflow_without_an_executor_runs_on_this_machine(world: World) -> None:
    Executor.objects.create(name="Containers", runtime="local_docker", is_default=True)
    assert run_rights.default_executor(None) == world.executor


def test_disabled_executor_is_not_offered_and_takes_no_new_session(world: World) -> None:
    session = world.session()
    Executor.objects.filter(pk=world.executor.pk).update(disabled_at=timezone.now())
    world.executor.refresh_from_db()
    other = Executor.objects.create(name="Other", runtime="local_standalone")
    assert world.executor not in TaskCreateForm(world.ada).fields["executor"].queryset  # type: ignore[attr-defined]
    assert default_executor() == other
    assert usual_choice(world.ada, session.task)[1] == other, "not what the user chose last"
    with pytest.raises(ExecutorDisabled):
        create_session(world.ada, world.task(), world.profile, world.executor)


def test_disabled_profile_takes_no_new_session(world: World) -> None:
    world.profile.disabled_at = timezone.now()
    world.profile.save()
    assert world.profile not in TaskCreateForm(world.ada).fields["agent_profile"].queryset  # type: ignore[attr-defined]
    with pytest.raises(ProfileDisabled):
        create_session(world.ada, world.task(), world.profile, world.executor)


def test_what_a_test_ran_with_is_no_choice_of_its_user(world: World) -> None:
    scratch = Repository.objects.create(name="Agent tests", team=world.team, path=f"{scratch_root()}/one")
    session = world.session()
    test = create_session(world.ada, world.task(repository=scratch), world.profile, world.executor)
    TaskSession.objects.filter(pk=test.pk).update(created_at=timezone.now() + timedelta(minutes=1))
    assert default_choice(world.ada).repository == session.task.repository_id
    assert list(agent_setup.test_sessions()) == [test]
