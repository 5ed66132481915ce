"""What is named by a path or a number is never found again by a team that gets the same one later."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from executors_app.models import ExecutorRunning
from executors_app.repositories import workspace_store
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import LaunchSources
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.catalogue.services.repositories import add_repository, scratch_repository
from sessions_app.models import Repository, TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.recovery.sweep.candidates import load_candidates
from sessions_app.supervisor.executions import launch_spec_of
from sessions_app.supervisor.leases import TakeoverRequest, take_over_executions
from tests.api.world import World, make_world
from tests.executors.repositories import commit, run_git


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_REPOSITORY_ROOTS = ()
    return tmp_path / "data"


@pytest.fixture
def world(db: None) -> World:
    return make_world()


def session_in(repository: Repository, world: World) -> TaskSession:
    task = create_task(world.member, {"title": "One", "team": repository.team, "repository": repository})
    return create_session(world.member, task, world.profile, world.executor)


def execution_of(session: TaskSession) -> ExecutorRunning:
    return ExecutorRunning.objects.get(session=session)


def named_by_path(repository: Path) -> str:
    """Return the name that release 1.0.0 gave the store of a repository."""
    return hashlib.sha256(os.fsencode(repository / ".git") + b"\0sha1").hexdigest()[:32]


def test_team_that_gets_a_path_later_sees_no_earlier_objects(world: World, repository: Path) -> None:
    world.member.groups.add(world.stranger.groups.get())
    first = add_repository({"name": "one", "team": world.team, "path": str(repository)})
    session = session_in(first, world)
    secret = commit(repository, "plans", "of the first team")
    sources = LaunchSources.of(launch_spec_of(execution_of(session), session))
    sources.store.update()
    run_git(repository, "reset", "--quiet", "--hard", "HEAD~1")
    session.task.delete()
    first.delete()
    second = add_repository({"name": "two", "team": world.stranger.groups.get(), "path": str(repository)})
    session = session_in(second, world)
    store = LaunchSources.of(launch_spec_of(execution_of(session), session)).store
    store.update()
    assert secret not in run_git(store.path, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")


def test_every_way_to_an_execution_names_the_same_store(world: World, repository: Path) -> None:
    row = add_repository({"name": "one", "team": world.team, "path": str(repository)})
    session = session_in(row, world)
    execution = execution_of(session)
    ExecutorRunning.objects.filter(id=execution.id).update(agentctl_url="http://127.0.0.1:1", status="ready")
    (taken,) = take_over_executions("me", [TakeoverRequest(session.id, 0)])
    (candidate,) = load_candidates("me", [session.id])[0]
    assert taken
    ways = (
        launch_spec_of(execution, session),
        execution_facts_of(execution, session),
        taken.facts,
        candidate.place,
    )
    stores = {workspace_store.object_store_directory(one) for one in ways}
    assert [store.name for store in stores] == [f"{row.store_id}-sha1"]


def test_repository_of_release_1_0_keeps_its_store(world: World, repository: Path, data: Path) -> None:
    added = Repository.objects.create(name="one", team=world.team, path="/elsewhere")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO repositories (id, name, team_id, path, default_branch, created_at) "
            "SELECT %s, name, team_id, %s, default_branch, created_at FROM repositories WHERE path = %s",
            [uuid.uuid4().hex, str(repository), added.path],
        )
    session = session_in(Repository.objects.get(path=str(repository)), world)
    store = workspace_store.object_store_directory(launch_spec_of(execution_of(session), session))
    assert store == data / "repositories" / named_by_path(repository)


@pytest.mark.parametrize("name", ["../other", "a/b", "12345678-90ab-4def-9234-567890abcdef/.."])
def test_name_of_a_store_leads_nowhere_else(name: str, repository: Path, data: Path) -> None:
    with pytest.raises(RepositoryUnusable):
        ObjectStore.of(data, TeamRepository.open(repository), name)


def test_scratch_repository_is_the_teams_own_although_its_number_was_another_teams(world: World) -> None:
    first = scratch_repository(world.team)
    assert scratch_repository(world.team) == first
    number, other = world.team.pk, Group.objects.create(name="later")
    first.delete()
    commit(Path(first.path), "plans", "of the first team")
    second = scratch_repository(Group.objects.get(pk=number))  # as if a restored backup had numbered teams again
    assert not (Path(second.path) / "plans").exists()
    assert scratch_repository(other).path not in {first.path, second.path}
