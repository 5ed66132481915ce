from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.finish import unfinished
from sessions_app.finish.services import Uncommitted
from sessions_app.models import Intent, Task, TaskSession, session_transaction
from tests.api.world import World, client_of

TASKS = "/api/v1/tasks/"


def one(world: World, tail: str = "") -> str:
    return f"{TASKS}{world.task.id}/{tail}"


def test_task_is_created_in_the_only_team_of_its_creator(world: World, api: APIClient) -> None:
    request = {"title": "Dig", "description": "Deep.", "repository": str(world.repository.id), "base_branch": "main"}
    answer = api.post(TASKS, request, format="json")
    assert answer.status_code == 201
    made = answer.json()
    assert request.items() <= made.items()
    assert (made["team"], made["state"], made["agent_work_state"]) == (world.team.id, "TODO", "idle")
    assert api.get(f"{TASKS}{made['id']}/").json() == made


@pytest.mark.parametrize("by", ["id", "name"])
def test_task_accepts_team_id_or_name_and_repository_path(world: World, api: APIClient, by: str) -> None:
    request = {"title": "Dig", "team": getattr(world.team, by), "repository_path": world.repository.path}
    made = api.post(TASKS, request, format="json").json()
    assert (made["repository"], made["repository_path"]) == (str(world.repository.id), world.repository.path)


def test_user_in_two_teams_must_name_one(world: World, api: APIClient) -> None:
    world.member.groups.add(Group.objects.create(name="second"))
    answer = api.post(TASKS, {"title": "Dig"}, format="json")
    assert answer.status_code == 400
    assert "team" in answer.json()["details"]


def test_repository_of_another_team_is_not_found(world: World) -> None:
    stranger = client_of(world.stranger)
    for fields in ({"repository": str(world.repository.id)}, {"repository_path": world.repository.path}):
        answer = stranger.post(TASKS, {"title": "Dig", **fields}, format="json")
        assert answer.status_code == 400
        assert answer.json()["details"].keys() == fields.keys()


def test_tasks_are_listed_newest_first_in_pages(world: World, api: APIClient) -> None:
    for number in range(3):
        Task.objects.create(title=str(number), team=world.team)
    first = api.get(TASKS, {"page_size": 3}).json()
    assert [task["title"] for task in first["results"]] == ["2", "1", "0"]
    assert (first["count"], first["previous"]) == (4, None)
    second = api.get(first["next"]).json()
    assert [task["title"] for task in second["results"]] == [world.task.title]
    assert second["next"] is None


@pytest.mark.parametrize(("page", "status"), [("7", 404), ("x", 400), ("-1", 400), ("9" * 5000, 404), ("0", 404)])
def test_page_number_is_validated(world: World, api: APIClient, page: str, status: int) -> None:
    assert api.get(TASKS, {"page": page}).status_code == status


def test_title_and_description_can_always_be_changed(world: World, api: APIClient) -> None:
    answer = api.patch(one(world), {"title": "Mend it well", "description": "  two\nlines"}, format="json")
    assert answer.status_code == 200
    assert (answer.json()["title"], answer.json()["description"]) == ("Mend it well", "  two\nlines")


def test_repository_and_branch_are_fixed_by_a_session_that_starts(world: World, api: APIClient) -> None:
    answer = api.patch(one(world), {"base_branch": "other"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    fresh = api.post(TASKS, {"title": "Dig"}, format="json").json()
    request = {"base_branch": "other", "repository": str(world.repository.id)}
    assert request.items() <= api.patch(f"{TASKS}{fresh['id']}/", request, format="json").json().items()


@pytest.mark.parametrize(("verb", "field"), [("archive", "archived_at"), ("done", "state")])
def test_ending_or_archiving_a_task_stops_its_sessions_and_is_idempotent(
    world: World, api: APIClient, verb: str, field: str
) -> None:
    first = api.post(one(world, f"{verb}/"))
    assert first.status_code == 200
    assert first.json()[field] in (Task.objects.get().archived_at and first.json()[field], "DONE")
    assert TaskSession.objects.get().desired_state == "stopped"
    assert Intent.objects.filter(kind="stop", done_at=None).count() == 1
    assert api.post(one(world, f"{verb}/")).json()[field] == first.json()[field]


def test_unarchived_task_is_listed_and_takes_sessions_again(world: World, api: APIClient) -> None:
    api.post(one(world, "archive/"))
    first = api.post(one(world, "unarchive/"))
    assert (first.status_code, first.json()["archived_at"]) == (200, None)
    assert api.post(one(world, "unarchive/")).status_code == 200, "a second request changes nothing"
    assert api.get(TASKS, {"archived": "false"}).json()["count"] == 1
    request = {"agent_profile": str(world.profile.id), "executor": str(world.executor.id)}
    assert api.post(one(world, "sessions/"), request, format="json").status_code == 201


def test_cancelled_task_stops_its_sessions_and_takes_no_prompt(world: World, api: APIClient) -> None:
    assert [api.post(one(world, "cancel/")).json()["state"] for _ in range(2)] == ["CANCELLED", "CANCELLED"]
    assert TaskSession.objects.get().desired_state == "stopped"
    refused = api.post(world.url("prompt/"), {"message_id": "m", "text": "Go on"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "terminal_state")


@pytest.mark.parametrize(("first", "second"), [("done", "cancel"), ("cancel", "done")])
def test_finished_task_is_reopened_before_it_ends_differently(
    world: World, api: APIClient, first: str, second: str
) -> None:
    api.post(one(world, f"{first}/"))
    refused = api.post(one(world, f"{second}/"))
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "Reopen it first" in refused.json()["message"]


@pytest.mark.parametrize("end", ["done", "cancel"])
@pytest.mark.parametrize(
    ("session", "after"), [("COMPLETED", "REVIEW"), ("WAITING_FOR_INPUT", "REVIEW"), ("CREATED", "TODO")]
)
def test_reopened_task_takes_the_state_of_its_sessions(
    world: World, api: APIClient, end: str, session: str, after: str
) -> None:
    api.post(one(world, f"{end}/"))
    TaskSession.objects.update(state=session)
    assert api.post(one(world, "reopen/")).json()["state"] == after
    assert api.post(one(world, "reopen/")).json()["state"] == after, "a second request changes nothing"


def test_closing_the_only_session_leaves_the_task_for_review(world: World) -> None:
    with session_transaction(world.session.id) as transaction:
        transaction.move_session("complete")
    assert Task.objects.get().state == "REVIEW"


def test_archived_tasks_can_be_left_out(world: World, api: APIClient) -> None:
    api.post(one(world, "archive/"))
    assert [api.get(TASKS, query).json()["count"] for query in ({}, {"archived": "false"}, {"archived": "1"})] == [
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("states", "shown"), [(["idle", "working"], "working"), (["done", "idle"], "done"), ([], "idle")]
)
def test_task_shows_the_work_state_of_its_busiest_session(
    world: World, api: APIClient, states: list[str], shown: str
) -> None:
    world.session.delete()
    for state in states:
        TaskSession.objects.create(
            task=world.task, agent_profile=world.profile, executor=world.executor, work_state=state
        )
    assert api.get(one(world)).json()["agent_work_state"] == shown


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "roots" / "repository"
    path.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(path)], check=True)
    return path


def test_staff_adds_a_git_repository_to_a_team(world: World, staff: APIClient, repository: Path) -> None:
    request = {"name": "new", "team": world.team.id, "path": str(repository)}
    answer = staff.post("/api/v1/repositories/", request, format="json")
    assert answer.status_code == 201
    assert (request | {"default_branch": "trunk"}).items() <= answer.json().items()
    assert client_of(world.member).get("/api/v1/repositories/").json()["count"] == 2
    assert staff.post("/api/v1/repositories/", request, format="json").status_code == 400


def test_repository_must_be_inside_the_allowed_folders(
    world: World, staff: APIClient, repository: Path, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(repository)
    settings.KANDEV_REPOSITORY_ROOTS = (tmp_path / "elsewhere",)
    request = {"name": "new", "team": world.team.id, "path": str(tmp_path / "elsewhere" / ".." / "link")}
    refused = staff.post("/api/v1/repositories/", request, format="json")
    assert (refused.status_code, list(refused.json()["details"])) == (400, ["path"])
    settings.KANDEV_REPOSITORY_ROOTS = (tmp_path / "roots",)
    assert staff.post("/api/v1/repositories/", request, format="json").json()["path"] == str(repository)


@pytest.mark.parametrize("path", ["relative", "/nonexistent/x", "/", "/" + "x" * 4000, "/etc/passwd"])
def test_invalid_repository_is_refused(world: World, staff: APIClient, path: str) -> None:
    request = {"name": "new", "team": world.team.id, "path": path}
    answer = staff.post("/api/v1/repositories/", request, format="json")
    assert (answer.status_code, list(answer.json()["details"])) == (400, ["path"])


def test_texts_of_a_task_are_saved_only_over_the_version_that_was_seen(world: World, api: APIClient) -> None:
    seen = api.get(one(world)).json()["version"]
    first = api.patch(one(world), {"title": "First", "version": seen}, format="json")
    assert (first.status_code, first.json()["title"]) == (200, "First")
    late = api.patch(one(world), {"title": "Second", "version": seen}, format="json")
    assert (late.status_code, late.json()["code"]) == (409, "task_changed")
    assert late.json()["details"] == {"version": first.json()["version"], "title": "First", "description": ""}
    assert api.patch(one(world), {"title": "Third"}, format="json").json()["title"] == "Third"


def test_done_says_what_is_left_and_can_be_refused_for_that(
    world: World, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Uncommitted(("src/a.py",), "f" * 40)
    monkeypatch.setattr(unfinished, "read_uncommitted", lambda session: left)
    TaskSession.objects.filter(id=world.session.id).update(worktree_branch="kandev/x")
    found = api.get(one(world, "unfinished/")).json()
    assert found["unread_sessions"] == 0
    (session,) = found["sessions"]
    assert session == {
        "session_id": str(world.session.id),
        "branch": "kandev/x",
        "target": "",
        "unmerged": None,
        "uncommitted": ["src/a.py"],
        "uncommitted_count": 1,
        "saved_at": None,
    }
    refused = api.post(one(world, "done/"), {"only_if_finished": True}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "unfinished_work")
    assert refused.json()["details"] == found
    assert Task.objects.get(id=world.task.id).state != "DONE"
    done = api.post(one(world, "done/")).json()
    assert (done["state"], done["unfinished"]) == ("DONE", found)


def test_task_is_deleted_once_what_it_loses_is_confirmed(world: World, api: APIClient) -> None:
    world.session.intents.update(done_at=timezone.now())
    TaskSession.objects.filter(id=world.session.id).update(worktree_branch="kandev/x")
    refused = api.delete(one(world))
    assert (refused.status_code, refused.json()["code"]) == (409, "unfinished_work")
    version = refused.json()["details"]["version"]
    assert version == api.get(one(world, "unfinished/")).json()["version"]
    assert api.delete(f"{one(world)}?confirmed={version}").status_code == 204
    assert api.delete(one(world)).status_code == 404
