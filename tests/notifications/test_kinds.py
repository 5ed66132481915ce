"""Only staff can choose to be told of the deployment; nobody else is offered that, or can ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from sessions_app.notifications.models import NOTIFIED_KINDS, NotificationSettings
from sessions_app.notifications.user_settings import create_webhook
from tests.api.world import World, client_of, make_world

pytestmark = pytest.mark.django_db
PAGE = "/settings/notifications/"
API = "/api/v1/"


@pytest.fixture
def world(db: None, settings: Any) -> World:
    settings.KANDEV_WEBHOOK_PRIVATE_ADDRESSES = True
    return make_world()


def browser_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_kind_of_the_deployment_is_offered_to_staff_only(world: World) -> None:
    assert 'kinds" value="system"' in browser_of(world.staff).get(PAGE).text
    assert 'kinds" value="system"' not in browser_of(world.member).get(PAGE).text


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}browser/"])
def test_form_refuses_a_kind_that_it_does_not_offer(world: World, path: str) -> None:
    form = {"kinds": ["system"], "browser_kinds": ["system"], "every": 5, "minimum_share": 0}
    assert browser_of(world.member).post(path, form).status_code == 422
    assert browser_of(world.staff).post(path, form).status_code == 302


def test_api_refuses_it_and_takes_back_what_it_has_said(world: World) -> None:
    member, staff = client_of(world.member), client_of(world.staff)
    said = member.get(f"{API}notifications/").json()["kinds"]
    assert "system" not in said
    assert "system" in staff.get(f"{API}notifications/").json()["kinds"]
    assert member.patch(f"{API}notifications/", {"kinds": said}, format="json").json()["kinds"] == said
    refused = member.patch(f"{API}notifications/", {"kinds": ["system"]}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert staff.patch(f"{API}notifications/", {"kinds": ["system"]}, format="json").json()["kinds"] == ["system"]


def test_user_who_becomes_staff_is_told_as_if_always_offered(world: World) -> None:
    client_of(world.member).patch(f"{API}notifications/", {"kinds": ["error"]}, format="json")
    assert NotificationSettings.objects.get(user=world.member).kinds == ["error", "system"]
    world.member.is_staff = True
    world.member.save()
    assert client_of(world.member).get(f"{API}notifications/").json()["kinds"] == ["error", "system"]


def test_webhook_of_a_member_is_not_called_about_the_deployment(world: World) -> None:
    hook = create_webhook(world.member, "https://93.184.216.34/x")
    assert set(NOTIFIED_KINDS) - set(hook.kinds) == {"system"}
    path = f"{API}webhooks/{hook.id}/"
    refused = client_of(world.member).patch(path, {"kinds": ["system"]}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    hook.refresh_from_db()
    assert "system" not in hook.kinds
