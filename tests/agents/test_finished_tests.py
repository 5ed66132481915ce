"""A test of an agent leaves nothing behind but what it has shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from django.apps import apps
from django.utils import timezone

from executors_app import cleanup
from executors_app.models import AgentProfile
from executors_app.plugins import agent_type
from sessions_app.agents import finished_tests
from sessions_app.agents.services import agent_login, agent_setup
from sessions_app.attention.models import Presence
from sessions_app.board.services.tasks import default_choice
from sessions_app.models import (
    AgentSettings,
    AgentTestResult,
    Leftover,
    Prompt,
    Repository,
    Task,
    TaskSession,
    session_transaction,
)
from sessions_app.navigation.models import SessionMark
from sessions_app.review.models import ReviewComment
from sessions_app.workflows.models import Workflow
from tests.pages.world import World, accepted, first_prompt, ingest_lines, make_world

pytestmark = pytest.mark.any_database

KEPT: Final = {"AgentTestResult", "AttemptCount", "MetricCount", "TurnUsage"}
"""What the test has shown, that its user made one, and what it cost and counted."""


@pytest.fixture
def world(db: Any, settings: Any, tmp_path: Path) -> World:
    settings.KANDEV_DATA_DIR = tmp_path
    return make_world()


def rows() -> Counter[str]:
    """Return how many rows each table has."""
    return Counter(
        {model.__name__: model._default_manager.count() for model in apps.get_models() if model._meta.managed}
    )


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def start(world: World) -> TaskSession:
    return agent_setup.start_test(world.ada, agent_type("demo"), world.team, world.executor)


def finish(session: TaskSession, directory: Path) -> None:
    """Let the agent answer, stop the test, and leave the files that an agent on this machine leaves."""
    session.intents.update(done_at=timezone.now())
    with session_transaction(session.id) as transaction:
        transaction.move_executor("launch")
        transaction.move_executor("ready")
        transaction.move_session("start")
        transaction.move_session("ready")
    ingest_lines(session, accepted(session), {"kind": "message.agent", "text": "Hello there"})
    ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
    stop(session)
    for execution in session.executions.all():
        (directory / "agentctl" / str(execution.id)).mkdir(parents=True)
    for folder in ("worktrees", "agent_homes", "workspaces"):
        place = directory / folder / str(session.id) / "deep"
        place.mkdir(parents=True)
        (place / "file").write_text("of the agent")


def stop(session: TaskSession) -> None:
    assert agent_setup.stop_finished_tests() == 1
    session.intents.update(done_at=timezone.now())
    with session_transaction(session.id) as transaction:
        transaction.move_executor("stop")


def let_time_pass() -> None:
    """Make everything of tests as old as it must be to be deleted."""
    before = timezone.now() - timedelta(hours=1)
    TaskSession.objects.update(updated_at=before)
    Task.objects.update(updated_at=before)
    Repository.objects.update(created_at=before)


def delete_finished() -> None:
    """Do what the job of the supervisor does."""
    for _ in range(2):
        deleted = finished_tests.delete_finished_tests()
        finished_tests.forget_leftovers(finished_tests.remove_files(deleted))


def test_test_leaves_no_row_and_no_file_but_its_result(world: World, tmp_path: Path) -> None:
    default, earlier_rows, earlier_files = default_choice(world.ada), rows(), files(tmp_path)
    finish(start(world), tmp_path)
    assert default_choice(world.ada) == default, "not even for as long as it is there"
    let_time_pass()
    delete_finished()
    left = rows()
    left.subtract(earlier_rows)
    assert {name for name, count in left.items() if count} <= KEPT
    assert {name for name in files(tmp_path) - earlier_files if name.count("/")} == set(), "only empty folders"
    assert default_choice(world.ada) == default
    result = agent_setup.newest_result(agent_type("demo"), world.team, world.executor)
    assert result is not None
    assert (result.session, result.state, result.reply) == (None, "passed", "Hello there")
    [place] = agent_setup.agent_places(world.ada, [agent_type("demo")], [world.executor])
    assert place.worked_at is not None
    assert finished_tests.delete_finished_tests() == finished_tests.DeletedTests()


def test_each_profile_has_its_own_test_and_result(world: World, tmp_path: Path) -> None:
    kind, place = agent_type("demo"), (world.team, world.executor)
    other = AgentProfile.objects.create(name="Another demo", agent_type="demo", team=world.team)
    first, second = start(world), agent_setup.start_test(world.ada, kind, *place, profile=world.profile)
    assert (first.agent_profile, second.agent_profile) == (other, world.profile)
    assert agent_setup.start_test(world.ada, kind, *place, profile=world.profile) == second
    assert agent_setup.newest_test(kind, *place, other) == first
    finish(second, tmp_path)
    let_time_pass()
    delete_finished()
    tested = agent_setup.newest_result(kind, *place, world.profile)
    assert tested is not None
    assert tested.reply == "Hello there"
    assert agent_setup.newest_result(kind, *place, other) == agent_setup.test_result(first)
    finish(first, tmp_path)
    let_time_pass()
    delete_finished()
    assert AgentTestResult.objects.filter(profile__in=(other, world.profile)).count() == 2
    other.delete()
    assert AgentTestResult.objects.count() == 1


def test_test_is_kept_while_it_runs_or_is_looked_at_or_was_just_there(world: World, tmp_path: Path) -> None:
    session = start(world)
    let_time_pass()
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists(), "it runs"
    finish(session, tmp_path)
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists(), "it has just ended"
    let_time_pass()
    seen = Presence.objects.create(session=session, user=world.ada, expires_at=timezone.now() + timedelta(minutes=1))
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists(), "somebody has its page open"
    seen.delete()
    delete_finished()
    assert not TaskSession.objects.filter(pk=session.pk).exists()


def test_session_that_somebody_went_on_with_is_kept(world: World, tmp_path: Path) -> None:
    session = start(world)
    finish(session, tmp_path)
    Prompt.objects.create(session=session, message_id="more", text="Go on.", by=world.ada)
    let_time_pass()
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists()
    assert Repository.objects.filter(name="Agent tests").exists()


def test_ways_to_log_in_are_still_known_and_a_later_failure_keeps_when_it_worked(world: World, tmp_path: Path) -> None:
    kind, place = agent_type("demo"), (world.team, world.executor)
    session = start(world)
    finish(session, tmp_path)
    method = {"id": "account", "name": "Account", "description": "", "type": "agent"}
    AgentSettings.objects.create(session=session, auth_methods=[method], logs_out=True, auth_at=timezone.now())
    before = agent_login.published_in_test(kind, *place)
    let_time_pass()
    delete_finished()
    assert agent_login.published_in_test(kind, *place) == before
    worked_at = AgentTestResult.objects.get().worked_at
    later = start(world)
    later.intents.update(done_at=timezone.now())
    TaskSession.objects.filter(pk=later.pk).update(created_at=timezone.now() - agent_setup.LOGIN_LIMIT * 2)
    with session_transaction(later.id) as transaction:
        transaction.move_executor("launch")
        transaction.move_executor("ready")
        transaction.move_session("start")
        transaction.move_session("fail", error_code="auth_required", error_message="log in first")
    stop(later)
    let_time_pass()
    AgentTestResult.objects.update(started_at=timezone.now() - timedelta(days=1))
    delete_finished()
    row = AgentTestResult.objects.get()
    assert (row.state, row.error_code, row.worked_at) == ("failed", "auth_required", worked_at)


def test_files_that_cannot_be_removed_are_left_to_the_maintenance(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(world)
    finish(session, tmp_path)
    let_time_pass()

    def refuse(session_id: str) -> bool:
        raise OSError(session_id)

    monkeypatch.setattr(cleanup, "remove_home", refuse)
    delete_finished()
    assert Leftover.objects.filter(session_id=session.id).exists()


def test_sessions_that_people_use_do_not_keep_other_tests_from_being_deleted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_tests, "AT_ONCE", 1)
    used = start(world)
    finish(used, tmp_path)
    Prompt.objects.create(session=used, message_id="more", text="Go on.", by=world.ada)
    later = start(world)
    finish(later, tmp_path)
    let_time_pass()
    delete_finished()
    assert list(TaskSession.objects.filter(pk__in=(used.pk, later.pk))) == [used]


def pin(session: TaskSession, user: Any) -> None:
    SessionMark.objects.create(session=session, user=user, pinned_at=timezone.now())


def comment(session: TaskSession, user: Any) -> None:
    ReviewComment.objects.create(session=session, author=user, text="Why?", path="README.md", first_line=1, last_line=1)


def begin_without_a_prompt(session: TaskSession, _user: Any) -> None:
    session.prompts.all().delete()


@pytest.mark.parametrize("use", [pin, comment, begin_without_a_prompt])
def test_session_that_somebody_uses_without_a_prompt_is_kept(
    world: World, tmp_path: Path, use: Callable[[TaskSession, Any], None]
) -> None:
    session = start(world)
    finish(session, tmp_path)
    use(session, world.ada)
    let_time_pass()
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists()


def test_session_that_somebody_goes_on_with_just_before_it_is_deleted_is_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(world)
    finish(session, tmp_path)
    let_time_pass()
    find = finished_tests._find_tests

    def find_and_write() -> list[TaskSession]:
        found = find()
        Prompt.objects.get_or_create(session=session, message_id="more", defaults={"text": "Go on.", "by": world.ada})
        return found

    monkeypatch.setattr(finished_tests, "_find_tests", find_and_write)
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists()
    assert not AgentTestResult.objects.exists()


def test_repository_that_a_workflow_uses_stays_and_hinders_nothing(world: World, tmp_path: Path) -> None:
    finish(start(world), tmp_path)
    repository = Repository.objects.get(name="Agent tests")
    Workflow.objects.create(name="Nightly", team=world.team, repository=repository)
    let_time_pass()
    delete_finished()
    assert Repository.objects.filter(pk=repository.pk).exists()
    assert Path(repository.path).is_dir()
    assert not Task.objects.filter(repository=repository).exists()


def test_repository_stays_after_the_data_directory_was_moved(world: World, tmp_path: Path, settings: Any) -> None:
    session = start(world)
    repository = Repository.objects.get(name="Agent tests")
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / "agent-tests").rename(moved / "agent-tests")
    settings.KANDEV_DATA_DIR = moved
    let_time_pass()
    delete_finished()
    assert TaskSession.objects.filter(pk=session.pk).exists()
    assert (moved / "agent-tests" / Path(repository.path).name).is_dir()


def test_later_test_has_a_task_of_its_own_once_the_task_of_tests_was_renamed(world: World, tmp_path: Path) -> None:
    first = start(world)
    finish(first, tmp_path)
    Task.objects.filter(pk=first.task_id).update(title="My experiments")
    later = start(world)
    assert later.task_id != first.task_id
    finish(later, tmp_path)
    let_time_pass()
    delete_finished()
    assert list(TaskSession.objects.filter(pk__in=(first.pk, later.pk))) == [first]


def test_earlier_test_that_somebody_went_on_with_does_not_hide_what_a_later_one_has_shown(
    world: World, tmp_path: Path
) -> None:
    kind, place = agent_type("demo"), (world.team, world.executor)
    used = start(world)
    finish(used, tmp_path)
    Prompt.objects.create(session=used, message_id="more", text="Go on.", by=world.ada)
    AgentSettings.objects.create(session=used, logs_out=True, auth_at=timezone.now())
    later = start(world)
    finish(later, tmp_path)
    let_time_pass()
    delete_finished()
    result = agent_setup.newest_result(kind, *place)
    assert result is not None
    assert (result.session, result.started_at) == (None, later.created_at)
    assert not agent_login.published_in_test(kind, *place).logs_out
