"""Settings of repositories: who changes them, what they do, and what removing one leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from sessions_app.accounts.audit import recent_changes
from sessions_app.board.forms import TaskCreateForm
from sessions_app.board.services.tasks import change_task, create_session, create_task
from sessions_app.catalogue.services.repositories import add_repository, without_scratch
from sessions_app.catalogue.services.repository_settings import (
    change_repository,
    find_uses,
    remove_repository,
    repository_version,
)
from sessions_app.kernel.services.errors import Invalid, NotFound, ReadOnly, RepositoryChanged, RepositoryInUse
from sessions_app.mcp_server import acting
from sessions_app.models import Repository
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.services.trigger_confirmation import current_parts
from tests.executors.repositories import run_git
from tests.pages.world import World
from tests.supervisor.rows import fresh


def preselected(world: World) -> object:
    return TaskCreateForm(world.ada).initial["repository"]


def test_new_tasks_start_from_the_chosen_base_and_old_ones_keep_theirs(
    world: World, on_disk: Repository, manager: User
) -> None:
    run_git(Path(on_disk.path), "branch", "next")
    before = create_task(world.ada, {"title": "Before", "team": world.team, "repository": on_disk})
    row = change_repository(on_disk, {"default_base": "next"}, manager)
    values = {"title": "After", "team": world.team, "repository": row}
    bases = [create_task(world.ada, {**values, **more}).base_branch for more in ({}, {"base_branch": "main"})]
    assert (fresh(before).base_branch, *bases) == ("", "next", "main")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"default_branch": "gone"}, "default_branch"),
        ({"default_branch": "HEAD"}, "default_branch"),
        ({"default_base": "gone"}, "default_base"),
    ],
)
def test_branches_that_do_not_exist_are_refused(
    on_disk: Repository, manager: User, values: dict[str, str], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        change_repository(on_disk, values, manager)
    assert refused.value.details["field"] == field
    assert fresh(on_disk).default_branch == "main"


def test_repository_that_is_gone_can_still_be_renamed_and_forget_its_branch(world: World, manager: User) -> None:
    Repository.objects.update(default_branch="main")
    row = change_repository(fresh(world.repository), {"name": "motor", "default_branch": "main"}, manager)
    change_repository(row, {"default_branch": ""}, manager)
    row = fresh(row)
    assert (row.name, row.default_branch) == ("motor", "")
    with pytest.raises(Invalid, match="cannot be looked up"):
        change_repository(row, {"default_branch": "main"}, manager)


def test_settings_are_saved_only_over_the_version_that_was_seen(world: World, manager: User) -> None:
    seen = repository_version(world.repository)
    change_repository(world.repository, {"name": "first"}, manager, seen)
    with pytest.raises(RepositoryChanged) as refused:
        change_repository(world.repository, {"name": "second"}, manager, seen)
    assert (refused.value.details["name"], fresh(world.repository).name) == ("first", "first")
    change_repository(world.repository, {"name": "first"}, manager, seen)  # a repeated request
    assert [change.get_change_message() for change in recent_changes(world.repository)] == ["Name: first"]


@pytest.mark.parametrize("who", ["ada", "bob"])
def test_members_without_the_right_change_and_remove_nothing(world: World, who: str) -> None:
    user = getattr(world, who)
    with pytest.raises(ReadOnly):
        change_repository(world.repository, {"name": "x"}, user)
    with pytest.raises(ReadOnly):
        remove_repository(world.repository, user)
    assert (fresh(world.repository).name, fresh(world.repository).removed_at) == ("engine", None)


def test_team_has_one_default_which_forms_and_programs_begin_with(world: World, manager: User) -> None:
    second = Repository.objects.create(name="zebra", team=world.team, path="/srv/zebra")
    assert preselected(world) is None
    assert acting._usual_repository(world.team, "a key") is None
    change_repository(world.repository, {"is_default": True}, manager)
    change_repository(second, {"is_default": True}, manager)
    assert [row.name for row in Repository.objects.filter(is_default=True)] == ["zebra"]
    assert preselected(world) == second.pk
    assert acting._usual_repository(world.team, "a key") == second
    create_session(world.ada, world.task(), world.profile, world.executor)
    assert preselected(world) == second.pk, "the team's choice wins over what was used last"
    change_repository(second, {"is_default": False}, manager)
    assert preselected(world) == world.repository.pk


def test_removed_repository_is_offered_nowhere_and_keeps_its_tasks(world: World, manager: User) -> None:
    task = world.task()
    change_repository(world.repository, {"is_default": True}, manager)
    remove_repository(fresh(world.repository), manager, repository_version(fresh(world.repository)))
    row = fresh(world.repository)
    assert row.removed_at is not None
    assert not row.is_default
    assert not without_scratch(Repository.objects.all()).exists()
    with pytest.raises(Invalid, match="was removed"):
        create_task(world.ada, {"title": "New", "team": world.team, "repository": row})
    other = create_task(world.ada, {"title": "Other", "team": world.team})
    with pytest.raises(Invalid, match="was removed"):
        change_task(other, {"repository": row})
    assert create_session(world.ada, fresh(task), world.profile, world.executor).task == task
    with pytest.raises(NotFound):
        change_repository(row, {"name": "x"}, manager)
    with pytest.raises(NotFound):
        remove_repository(row, manager)


def test_repository_of_a_workflow_is_not_removed(world: World, manager: User) -> None:
    workflow = Workflow.objects.create(team=world.team, name="Nightly", text="", repository=world.repository)
    with pytest.raises(RepositoryInUse, match="“Nightly”"):
        remove_repository(world.repository, manager)
    Workflow.objects.filter(pk=workflow.pk).update(archived_at=workflow.created_at)
    remove_repository(world.repository, manager)


def test_what_depends_on_a_repository_is_counted(world: World) -> None:
    world.running_session()
    world.task("Idle")
    Workflow.objects.create(team=world.team, name="A", text="", repository=world.repository, triggers_enabled=True)
    uses = find_uses(world.repository)
    assert (uses.tasks, uses.open_tasks, uses.running_sessions, uses.workflows, uses.schedules) == (2, 2, 1, ("A",), 1)


def test_removed_repository_returns_when_its_path_is_added_again(
    world: World, on_disk: Repository, manager: User
) -> None:
    create_task(world.ada, {"title": "Old", "team": world.team, "repository": on_disk})
    remove_repository(on_disk, manager)
    values = {"name": "again", "team": world.team, "path": on_disk.path}
    row = add_repository(values, manager)
    assert (row.pk, row.name, row.removed_at, row.store_id) == (on_disk.pk, "again", None, on_disk.store_id)
    with pytest.raises(Invalid, match="already open"):
        add_repository(values, manager)


def test_changed_base_is_part_of_what_schedules_confirm(world: World) -> None:
    workflow = Workflow(team=world.team, name="Nightly", text="", repository=world.repository)
    before = current_parts(workflow, None)["repository"]
    world.repository.default_base = "next"
    assert current_parts(workflow, None)["repository"] == f"{before}\nbase of new tasks: next"
