""""""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from executors_app.models import AgentProfile, ExecutorRunning
from sessions_app.models import Intent, Prompt, Task, TaskSession, Turn
from sessions_app.sessions.api.serializers import STATUS_FIELDS, plain_field
from tests.api.world import World, client_of
from tests.attention.raising import raise_item_of


def sessions_of(world: World) -> str:
    return f"/api/v1/tasks/{world.task.id}/sessions/"


def new_session(world: World, **more: Any) -> dict[str, Any]:
    return {"agent_profile": str(world.profile.id), "executor": str(world.executor.id), **more}


def test_new_session_has_its_first_prompt_and_starts_in_the_background(world: World, api: APIClient) -> None:
    answer = api.post(sessions_of(world), new_session(world, prompt="  Go\n", policy="manual"), format="json")
    assert answer.status_code == 201
    made = answer.json()
    assert (made["state"], made["desired_state"], made["policy"]) == ("CREATED", "running", "manual")
    assert (made["agent_type"], made["runtime"], made["executor_status"]) == ("demo", "local_standalone", "stopped")
    session = TaskSession.objects.get(id=made["id"])
    assert session.prompts.get().text == "  Go\n"
    assert session.intents.get().kind == "start"
    assert api.get(f"{sessions_of(world)}{made['id']}/").json() == made
    assert [row["id"] for row in api.get(sessions_of(world)).json()["results"]] == [made["id"], str(world.session.id)]


@pytest.mark.parametrize(
    ("body", "prompts"),
    [({}, ["Dig a hole."]), ({"prompt": ""}, []), ({"prompt": "Go"}, ["Go"])],
    ids=["nothing written", "explicitly none", "written"],
)
def test_first_session_without_a_prompt_gets_the_description(
    world: World, api: APIClient, body: dict[str, str], prompts: list[str]
) -> None:
    task = Task.objects.create(
        team=world.task.team, title="Dig", description="Dig a hole.", repository=world.task.repository
    )
    path = f"/api/v1/tasks/{task.id}/sessions/"
    wanted = new_session(world, idempotency_key="once", **body)
    first, again = (api.post(path, wanted, format="json") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert list(Prompt.objects.filter(session=first.json()["id"]).values_list("text", flat=True)) == prompts

    second = api.post(path, new_session(world), format="json").json()
    assert not Prompt.objects.filter(session=second["id"]).exists()


def test_session_created_as_stopped_is_not_started(world: World, api: APIClient) -> None:
    made = api.post(sessions_of(world), new_session(world, desired_state="stopped", prompt=" "), format="json").json()
    assert not Intent.objects.filter(session=made["id"]).exists()
    assert not Prompt.objects.filter(session=made["id"]).exists()


def test_profile_of_another_team_is_not_found(world: World, api: APIClient) -> None:
    theirs = AgentProfile.objects.create(name="theirs", agent_type="demo", team=world.stranger.groups.get())
    answer = api.post(sessions_of(world), new_session(world, agent_profile=str(theirs.id)), format="json")
    assert (answer.status_code, list(answer.json()["details"])) == (400, ["agent_profile"])


def test_finished_task_gets_no_session(world: World, api: APIClient) -> None:
    api.post(f"/api/v1/tasks/{world.task.id}/done/")
    answer = api.post(sessions_of(world), new_session(world), format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "terminal_state")


def test_status_has_the_documented_fields(world: World, api: APIClient) -> None:
    status = api.get(world.url("status/")).json()
    assert status.keys() == STATUS_FIELDS
    assert status["session_id"] == str(world.session.id)
    assert (status["needs_resume"], status["resume_strategy"]) == (True, "fresh")
    assert status["latest_receipt"]["kind"] == "resumed"
    assert status["pending_permissions"] == 1


@pytest.mark.parametrize(
    ("profile", "is_resumable"),
    [
        ({"supports_session_resume": False}, False),
        ({"supports_session_resume": False, "history_context_injection": True}, True),
        ({}, False),
    ],
)
def test_session_that_cannot_resume_requires_a_new_one(
    world: World, api: APIClient, profile: dict[str, bool], is_resumable: bool
) -> None:
    prompted(world)
    AgentProfile.objects.filter(id=world.profile.id).update(**profile)
    status = api.get(world.url("status/")).json()
    assert (status["is_resumable"], status["requires_new_session"]) == (is_resumable, not is_resumable)


def test_reading_the_status_changes_nothing(world: World, api: APIClient) -> None:
    before = TaskSession.objects.values().get()
    api.get(world.url("status/"))
    assert TaskSession.objects.values().get() == before


def test_resume_is_accepted_and_returns_the_status(world: World, api: APIClient) -> None:
    Intent.objects.all().delete()
    answer = api.post(world.url("resume/"))
    assert answer.status_code == 202
    assert answer.json()["status"]["starting"] is True
    assert Intent.objects.get().payload == {"mode": "auto"}


def test_running_session_is_not_resumed_again(world: World, api: APIClient) -> None:
    world.mark_running()
    answer = api.post(world.url("resume/"), {"mode": "resume"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_running")


def prompted(world: World, **values: Any) -> None:
    """Record a finished turn of the session, whose agent has exited."""
    Turn.objects.create(session=world.session, message_id="m", state="completed", started_at=timezone.now())
    TaskSession.objects.filter(id=world.session.id).update(**{"state": "WAITING_FOR_INPUT", **values})


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({}, "missing_resume_token"),
        ({"context_mismatch": True}, "not_resumable"),
        ({"state": "COMPLETED"}, "terminal_state"),
    ],
)
def test_refused_resume_says_why(world: World, api: APIClient, values: dict[str, Any], code: str) -> None:
    prompted(world, **values)
    answer = api.post(world.url("resume/"), {"mode": "resume"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, code)


def test_prompt_for_a_lost_worktree_is_refused(world: World, api: APIClient) -> None:
    prompted(world, error_code="worktree_missing", state="ERROR")
    answer = api.post(world.url("prompt/"), {"message_id": "m1", "text": "Go on"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "worktree_missing")


def test_repeated_prompt_returns_the_first_answer_and_is_queued_once(world: World, api: APIClient) -> None:
    request = {"message_id": "mine/1", "text": "Go on"}
    first = api.post(world.url("prompt/"), request, format="json")
    Prompt.objects.update(state="delivered")
    second = api.post(world.url("prompt/"), request, format="json")
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json() == second.json()
    assert first.json()["message_id"] == "mine/1"
    assert Prompt.objects.count() == 1


def test_prompt_restarts_a_stopped_session(world: World, api: APIClient) -> None:
    api.post(world.url("stop/"))
    assert not Intent.objects.filter(kind="start", done_at=None).exists()
    api.post(world.url("prompt/"), {"message_id": "1", "text": "Go on"}, format="json")
    assert Intent.objects.filter(kind="start", done_at=None).count() == 1
    assert TaskSession.objects.get().desired_state == "running"


def test_id_of_a_held_prompt_cannot_be_reused(world: World, api: APIClient) -> None:
    request = {"message_id": "1", "text": "Go on"}
    api.post(world.url("prompt/"), request, format="json")
    Prompt.objects.update(state="held")
    answer = api.post(world.url("prompt/"), request, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "prompt_in_doubt")


@pytest.mark.parametrize("open_turn", [True, False])
def test_cancel_ends_an_open_turn(world: World, api: APIClient, open_turn: bool) -> None:
    if open_turn:
        Turn.objects.create(session=world.session, message_id="m", started_at=timezone.now())
    answer = api.post(world.url("cancel/"))
    assert (answer.status_code, answer.json()["cancelling"]) == (202, open_turn)
    assert Intent.objects.filter(kind="cancel", payload__message_id="m").exists() is open_turn


def test_stop_is_idempotent(world: World, api: APIClient) -> None:
    for _ in range(2):
        answer = api.post(world.url("stop/"))
        assert answer.status_code == 202
        assert answer.json()["status"]["desired_state"] == "stopped"
    assert Intent.objects.filter(kind="stop").count() == 1


def test_close_ends_a_session_permanently(world: World, api: APIClient) -> None:
    answer = api.post(world.url("close/"), {"as": "completed"}, format="json")
    assert answer.status_code == 202
    assert Intent.objects.get(kind="close").payload == {"as": "completed"}
    TaskSession.objects.update(state="COMPLETED")
    assert api.post(world.url("close/"), {"as": "completed"}, format="json").json()["code"] == "terminal_state"


def test_only_a_session_without_a_live_execution_is_deleted(world: World, api: APIClient) -> None:
    assert api.delete(world.url()).status_code == 409
    Intent.objects.update(done_at=timezone.now())
    world.mark_running()
    assert api.delete(world.url()).status_code == 409
    ExecutorRunning.objects.update(status="stopped")
    assert api.delete(world.url()).status_code == 204
    assert api.get(world.url()).status_code == 404


def test_running_executions_are_listed_without_secrets(world: World, api: APIClient) -> None:
    assert api.get("/api/v1/executors/running/").json()["count"] == 0
    world.mark_running("unix:/nowhere/agentctl")
    [row] = api.get("/api/v1/executors/running/").json()["results"]
    assert (row["session"], row["status"], row["has_resume_token"]) == (str(world.session.id), "ready", True)
    assert not row.keys() & {"auth_token", "resume_token", "rejected_resume_token", "state"}
    assert api.get("/api/v1/executors/running/", {"status": "stopped"}).json()["count"] == 0
    assert client_of(world.stranger).get("/api/v1/executors/running/").json()["count"] == 0


def test_status_says_why_nothing_is_happening(world: World, api: APIClient) -> None:
    world.session.permissions.all().delete()
    assert api.get(world.url("status/")).json()["stillness"]["reason"] == "no_supervisor"  # its start is ordered
    world.session.intents.all().delete()
    ExecutorRunning.objects.update(status="stopped", status_reason="", resume_token="t")
    TaskSession.objects.update(state="WAITING_FOR_INPUT")
    api.patch(world.url(), {"policy": "manual"}, format="json")
    stillness = api.get(world.url("status/")).json()["stillness"]
    assert (stillness["reason"], "this session’s own choice" in stillness["next_step"]) == ("policy", True)
    raise_item_of(world.session, "owner_left")
    assert api.get(world.url("status/")).json()["stillness"]["reason"] == "owner_left"


@pytest.mark.parametrize(
    ("annotation", "field", "allows_null", "described"),
    [
        (bool, "BooleanField", False, ""),
        (int | None, "IntegerField", True, ""),
        (Annotated[float | None, "What it has cost."], "FloatField", True, "What it has cost."),
        (Annotated[str, "Its name."], "CharField", False, "Its name."),
    ],
)
def test_field_of_the_status_follows_from_its_type(
    annotation: object, field: str, allows_null: bool, described: str
) -> None:
    made = plain_field(annotation)
    assert (type(made).__name__, made.allow_null, made.help_text or "") == (field, allows_null, described)


@pytest.mark.parametrize("annotation", [int | str, Mapping[str, str], list[str] | None])
def test_type_that_needs_a_field_of_its_own_is_refused(annotation: object) -> None:
    with pytest.raises(TypeError, match="needs a field"):
        plain_field(annotation)
