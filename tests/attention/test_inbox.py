"""A user's inbox: open items of the user's teams, without those dismissed or of sessions being viewed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.attention.services import inbox
from sessions_app.board.services.tasks import create_session
from sessions_app.models import AttentionItem, Presence, Task, TaskSession
from tests.api.world import World, client_of
from tests.attention.raising import raise_item_of, resolve_items_of

URL = "/api/v1/attention/"


def keys(api: APIClient, query: str = "") -> list[str]:
    return [row["key"] for row in api.get(f"{URL}?{query}").json()["results"]]


def test_item_says_what_happened_why_and_what_to_do(world: World, api: APIClient) -> None:
    item = raise_item_of(world.session)
    (shown,) = api.get(URL).json()["results"]
    assert shown == {
        "id": str(item.id),
        "key": "error:one",
        "kind": "error",
        "session_id": str(world.session.id),
        "task_id": str(world.task.id),
        "workflow_id": None,
        "run_id": None,
        "task_title": "Mend the fence",
        "team": "team",
        "agent_profile": "demo",
        "what": "What one",
        "why": "Why one",
        "next_step": "Next one",
        "detail": "The log",
        "url": f"/tasks/{world.task.id}/sessions/{world.session.id}/",
        "created_at": shown["created_at"],
        "resolved_at": None,
        "resolution": "",
        "acknowledged_at": None,
        "dismissed_at": None,
    }


def test_most_urgent_items_come_first(world: World, api: APIClient) -> None:
    for kind in ("idle", "permission", "receipt", "gave_up", "held"):
        raise_item_of(world.session, kind)
    assert [key.split(":")[0] for key in keys(api)] == ["gave_up", "permission", "held", "receipt", "idle"]


def test_acknowledging_is_per_user_and_idempotent(world: World, api: APIClient) -> None:
    item = raise_item_of(world.session)
    first = api.post(f"{URL}{item.id}/acknowledge/").json()["acknowledged_at"]
    assert first and api.post(f"{URL}{item.id}/acknowledge/").json()["acknowledged_at"] == first
    assert (keys(api), keys(api, "state=news")) == (["error:one"], [])
    assert keys(client_of(world.staff), "state=news") == ["error:one"]


def test_dismissing_hides_the_item_only_for_that_user(world: World, api: APIClient) -> None:
    item = raise_item_of(world.session)
    assert api.post(f"{URL}{item.id}/dismiss/").json()["dismissed_at"]
    assert (keys(api), keys(api, "state=all")) == ([], ["error:one"])
    assert keys(client_of(world.staff)) == ["error:one"]


def test_resolved_items_and_items_of_finished_tasks_are_hidden(world: World, api: APIClient) -> None:
    raise_item_of(world.session)
    resolve_items_of(world.session)
    assert (keys(api), keys(api, "state=all")) == ([], ["error:one"])
    raise_item_of(world.session, name="two")
    assert keys(api) == ["error:two"]
    Task.objects.filter(id=world.task.id).update(archived_at=timezone.now())
    assert keys(api) == []
    Task.objects.filter(id=world.task.id).update(archived_at=None, state="DONE")
    assert keys(api) == []


def test_items_of_another_team_are_not_visible(world: World) -> None:
    item = raise_item_of(world.session)
    stranger = client_of(world.stranger)
    assert keys(stranger, "state=all") == []
    assert stranger.post(f"{URL}{item.id}/acknowledge/").status_code == 404


def test_staff_without_a_team_see_only_owner_left_items(world: World) -> None:
    raise_item_of(world.session)
    raise_item_of(world.session, "owner_left")
    world.staff.groups.clear()
    assert keys(client_of(world.staff)) == ["owner_left:one"]
    found = inbox.visible_items(world.staff).get()
    assert not found.may_open  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("kind=held", ["held:two"]),
        ("mine=true", ["error:one", "held:two"]),
        ("session={session}", ["error:one", "held:two"]),
        ("task=00000000-0000-0000-0000-000000000000", []),
    ],
)
def test_inbox_can_be_filtered(world: World, api: APIClient, query: str, found: list[str]) -> None:
    raise_item_of(world.session)
    raise_item_of(world.session, "held", "two")
    other = create_session(world.staff, world.task, world.profile, world.executor)
    if "mine" in query:
        raise_item_of(other, "error", "of somebody else")
    assert keys(api, query.format(session=world.session.id)) == found


def test_invalid_filter_is_rejected(world: World, api: APIClient) -> None:
    assert {api.get(f"{URL}?{query}").status_code for query in ("kind=x", "state=x", "task=x")} == {400}


def test_query_count_does_not_depend_on_the_number_of_items(
    world: World, api: APIClient, django_assert_num_queries: Any
) -> None:
    raise_item_of(world.session)
    with django_assert_num_queries(2):
        api.get(URL)
    for number in range(20):
        raise_item_of(create_session(world.member, world.task, world.profile, world.executor), name=str(number))
    with django_assert_num_queries(2):
        assert api.get(URL).json()["count"] == 21


def test_items_of_a_session_being_viewed_do_not_count_as_new(world: World, api: APIClient) -> None:
    raise_item_of(world.session, "permission")
    raise_item_of(world.session, "idle")
    assert inbox.count_unseen(world.member) == 2
    inbox.mark_present(world.session, world.member)
    raise_item_of(world.session, "held")
    assert (inbox.count_unseen(world.member), inbox.count_unseen(world.staff)) == (0, 3)
    inbox.mark_absent(world.session, world.member)
    assert sorted(keys(api, "state=news")) == ["held:one", "permission:one"]


def test_presence_expires_and_can_be_renewed(world: World) -> None:
    inbox.mark_present(world.session, world.member)
    inbox.mark_present(world.session, world.member)
    row = Presence.objects.get()
    assert timedelta(seconds=30) < row.expires_at - timezone.now() <= inbox.PRESENCE_LIFETIME
    Presence.objects.update(expires_at=timezone.now())
    inbox.mark_present(world.session, world.member)
    assert Presence.objects.get().expires_at > timezone.now()


def test_status_needs_attention_until_the_user_acknowledges(world: World, api: APIClient) -> None:
    world.session.permissions.all().delete()
    assert api.get(world.url("status/")).json()["needs_attention"] is False
    raise_item_of(world.session, "idle")
    assert api.get(world.url("status/")).json()["needs_attention"] is True
    assert api.post(world.url("acknowledge/")).json()["needs_attention"] is False
    assert client_of(world.staff).get(world.url("status/")).json()["needs_attention"] is True
    assert AttentionItem.objects.get().resolved_at is None


def test_one_call_acknowledges_all_sessions_of_a_task(world: World, api: APIClient) -> None:
    other = TaskSession.objects.create(
        task=world.task, agent_profile=world.profile, executor=world.executor, owner=world.member
    )
    raise_item_of(world.session, "idle")
    raise_item_of(other, "receipt")
    assert api.post(f"/api/v1/tasks/{world.task.id}/acknowledge/").status_code == 200
    mine = {item["session_id"] for item in api.get("/api/v1/attention/").json()["results"] if item["acknowledged_at"]}
    assert mine == {str(world.session.id), str(other.id)}
    assert client_of(world.staff).get(world.url("status/")).json()["needs_attention"] is True
    assert client_of(world.stranger).post(f"/api/v1/tasks/{world.task.id}/acknowledge/").status_code == 404
