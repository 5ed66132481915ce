"""Every open wait says since when, until when, for whom and why, on the same surfaces, whatever its kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from kandev.metrics import collect_metrics
from sessions_app.accounts.models import TeamRole
from sessions_app.attention.models import open_item
from sessions_app.attention.rules import notices
from sessions_app.board.services.tasks import create_session
from sessions_app.models import BudgetHold, PermissionRequest, Suspension, TaskSession, Turn, WaitKey
from sessions_app.waits import services as waits
from sessions_app.waits.reader import count_waits, list_waits, load_waits
from sessions_app.waits.rules.open_waits import Actor, OpenWaitRecord
from sessions_app.waits.rules.wait_keys import WaitKind
from tests.api.world import PERMISSION, World, client_of, make_world

pytestmark = pytest.mark.django_db
SOON = timedelta(hours=1)


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture
def api(world: World) -> APIClient:
    return client_of(world.member)


def more_sessions(world: World) -> TaskSession:
    return create_session(world.member, world.task, world.profile, world.executor)


def ask_question(world: World) -> PermissionRequest:
    session = more_sessions(world)
    return PermissionRequest.objects.create(
        id="question-1", session=session, kind="question", question={"message": "Which?"}, requested_at=timezone.now()
    )


def wait_for(world: World, kind: str, deadline: datetime | None = None) -> TaskSession:
    session = more_sessions(world)
    waits.open_wait(session.id, "The build of main", deadline, world.member, WaitKind(kind))
    return session


def suspend(world: World, wakes_at: datetime | None = None) -> Suspension:
    session = more_sessions(world)
    turn = Turn.objects.create(
        session=session, message_id="m", state="failed", started_at=timezone.now(), ended_at=timezone.now()
    )
    return Suspension.objects.create(session=session, run=turn, reason="usage_limit", wakes_at=wakes_at)


def hold_by_budget(world: World) -> BudgetHold:
    used = {"scope": "team", "reason": "used_up", "limit": "5 tokens", "used": "9 tokens"}
    return BudgetHold.objects.create(session=more_sessions(world), ends_at=timezone.now() + SOON, **used)


def one_of_each(world: World) -> None:
    """Add a wait of each kind to the permission that the world has."""
    ask_question(world)
    wait_for(world, "external", timezone.now() + SOON)
    wait_for(world, "tool_result")
    suspend(world, timezone.now() + SOON)
    hold_by_budget(world)


def waits_of(user: User, **named: Any) -> dict[str, OpenWaitRecord]:
    return {wait.kind: wait for wait in load_waits(list(list_waits(user, **named)))}


def test_every_kind_says_who_acts_and_what_happens_then(world: World) -> None:
    one_of_each(world)

    found = waits_of(world.member)

    assert list(found) == ["permission", "question", "external", "tool_result", "suspension", "budget"], (
        "the oldest first"
    )
    assert {kind: (wait.actor, wait.actor_name) for kind, wait in found.items()} == {
        "permission": (Actor.PERSON, "member"),
        "question": (Actor.PERSON, "member"),
        "external": (Actor.SYSTEM, ""),
        "tool_result": (Actor.SYSTEM, ""),
        "suspension": (Actor.CLOCK, ""),
        "budget": (Actor.CLOCK, ""),
    }
    assert {kind for kind, wait in found.items() if wait.deadline} == {"external", "suspension", "budget"}
    assert found["external"].reason == "The build of main"
    assert all(wait.reason and wait.wake_up and wait.team == "team" for wait in found.values())


def test_permission_shows_the_deadline_of_its_newest_open_key(world: World) -> None:
    deadline = timezone.now() + SOON
    WaitKey.objects.filter(wait_id=PERMISSION).update(revoked_at=timezone.now(), expires_at=timezone.now())
    key = WaitKey(session=world.session, wait_kind="permission", wait_id=PERMISSION, expires_at=deadline)
    key.seal()
    key.save(force_insert=True)
    assert waits_of(world.member)["permission"].deadline == deadline


def test_suspension_without_a_known_end_waits_for_a_person(world: World) -> None:
    suspend(world)
    wait = waits_of(world.member, kind="suspension")["suspension"]
    assert (wait.actor, wait.deadline) == (Actor.PERSON, None)


@pytest.mark.parametrize(("reason", "words"), [("usage_limit", "usage limit"), ("provider_error", "provider error")])
def test_suspension_says_why_without_an_inbox_item(world: World, reason: str, words: str) -> None:
    Suspension.objects.filter(id=suspend(world).id).update(reason=reason)
    assert words in waits_of(world.member, kind="suspension")["suspension"].reason


@pytest.mark.parametrize("lost", ["left", "viewer", "inactive", "unknown"])
def test_team_acts_where_the_owner_of_the_session_no_longer_can(world: World, lost: str) -> None:
    other = User.objects.create(username="owner", is_active=lost != "inactive")
    if lost != "left":
        other.groups.add(world.team)
    if lost == "viewer":
        TeamRole.objects.create(user=other, team=world.team, role=TeamRole.Role.VIEWER)
    TaskSession.objects.filter(id=world.session.id).update(owner=None if lost == "unknown" else other)

    wait = waits_of(world.member)["permission"]

    assert (wait.actor, wait.actor_text) == (Actor.TEAM, "anybody in team")


def test_ended_waits_are_not_open(world: World) -> None:
    one_of_each(world)
    now = timezone.now()
    PermissionRequest.objects.update(state="cancelled", settled_at=now)
    Suspension.objects.update(ended_at=now, end="reset")
    BudgetHold.objects.update(ended_at=now, end="allowed")
    for turn in Turn.objects.filter(ended_at=None):
        waits.end_wait(turn.session_id, turn.wait_id)
    assert not waits_of(world.member)
    assert [each.count for each in count_waits()] == [0] * 6


def test_reason_is_what_the_inbox_says_of_it(world: World) -> None:
    notice = notices.permission_notice(PERMISSION, {"title": "Push to main"})
    open_item(notice, session=world.session, task=world.task)
    wait = waits_of(world.member)["permission"]
    assert wait.item_key == f"permission:{PERMISSION}"
    assert wait.reason == "It asks to run: Push to main"


def test_waits_of_other_teams_are_not_listed(world: World) -> None:
    one_of_each(world)
    assert client_of(world.stranger).get("/api/v1/waits/").json()["results"] == []
    assert len(client_of(world.member).get("/api/v1/waits/").json()["results"]) == 6


def test_api_tells_all_of_a_wait(world: World, api: APIClient) -> None:
    session = wait_for(world, "external", timezone.now() + SOON)
    Turn.objects.update(started_at=timezone.now() - SOON)

    answer = api.get("/api/v1/waits/?kind=external").json()

    assert answer["count"] == 1
    wait = answer["results"][0]
    assert 3600 <= wait.pop("age_seconds") < 7200
    turn = Turn.objects.get(session=session)
    assert wait == {
        "kind": "external",
        "id": str(turn.id),
        "session_id": str(session.id),
        "task_id": str(world.task.id),
        "task_title": "Mend the fence",
        "team": "team",
        "since": wait["since"],
        "deadline": wait["deadline"],
        "owner": "system",
        "owner_name": "",
        "reason": "The build of main",
        "wake_up": wait["wake_up"],
        "item_key": "",
        "url": f"/tasks/{world.task.id}/sessions/{session.id}/",
    }


def test_metrics_count_waits_and_the_age_of_the_oldest(world: World) -> None:
    wait_for(world, "external")
    wait_for(world, "external")
    first = Turn.objects.order_by("started_at")[0]
    Turn.objects.filter(id=first.id).update(started_at=timezone.now() - SOON)

    found = collect_metrics()

    counts = {labels["wait"]: value for labels, value in found["kandev_waits"]}
    assert counts == {"permission": 1, "question": 0, "external": 2, "tool_result": 0, "suspension": 0, "budget": 0}
    ages = {labels["wait"]: value for labels, value in found["kandev_wait_oldest_age_seconds"]}
    assert 3600 <= ages["external"] < 7200
    assert ages["question"] == 0


def test_page_shows_age_deadline_and_who_is_expected_to_act(world: World) -> None:
    one_of_each(world)
    Turn.objects.filter(wait_kind="external").update(
        started_at=timezone.now() - 3 * SOON, deadline_at=datetime(2031, 5, 1, 12, tzinfo=UTC)
    )
    client = Client()
    client.force_login(world.member)
    page = client.get("/waits/").content.decode()
    for words in ("3\xa0hours", "2031-05-01 12:00", "an outside system", "the clock", "The build of main"):
        assert words in page
    client.force_login(world.stranger)
    assert "Nothing is waiting" in client.get("/waits/").content.decode()


def test_list_has_pages_and_filters(world: World, api: APIClient) -> None:
    one_of_each(world)
    page = api.get("/api/v1/waits/?page_size=2&page=2").json()
    assert (page["count"], [wait["kind"] for wait in page["results"]]) == (6, ["external", "tool_result"])
    assert api.get(f"/api/v1/waits/?session={world.session.id}").json()["count"] == 1
    assert api.get(f"/api/v1/waits/?task={world.task.id}").json()["count"] == 6
    refused = api.get("/api/v1/waits/?kind=lunch")
    assert refused.status_code == 400
    assert "“suspension”" in str(refused.json())


def test_number_of_queries_is_that_of_the_kinds(
    world: World, api: APIClient, django_assert_max_num_queries: Any
) -> None:
    for _ in range(4):
        wait_for(world, "external")
        suspend(world, timezone.now() + SOON)
    for number in range(4):
        PermissionRequest.objects.create(id=f"p{number}", session=world.session, requested_at=timezone.now())
    with django_assert_max_num_queries(8) as captured:
        assert api.get("/api/v1/waits/").json()["count"] == 13
    again = len(captured)
    for _ in range(8):
        suspend(world)
    with django_assert_max_num_queries(again):
        assert api.get("/api/v1/waits/").json()["count"] == 21
