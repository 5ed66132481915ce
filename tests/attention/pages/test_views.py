"""The inbox, its count in every page's header, marks on the board, and notification settings."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client

from sessions_app.accounts.models import TeamRole
from sessions_app.models import TaskSession, TeamPolicy
from sessions_app.notifications import webhooks
from sessions_app.notifications.models import Delivery, NotificationSettings, Webhook
from tests.attention.raising import raise_item_of, resolve_items_of
from tests.pages.world import World, path_of


@pytest.fixture
def session(world: World) -> TaskSession:
    return world.running_session()


def badge(client: Client) -> str:
    """Return the inbox count in the page header."""
    found = re.search(r'id="attention-count"[^>]*?( hidden)?>(\d*)<', client.get("/").text)
    assert found is not None
    return found[2] if not found[1] else ""


def test_empty_inbox_says_so(ada: Client) -> None:
    text = ada.get("/attention/").text
    assert "Nothing needs you" in text and badge(ada) == ""


def test_inbox_groups_items_by_task_with_a_next_step(ada: Client, bob: Client, session: TaskSession) -> None:
    raise_item_of(session, "permission")
    raise_item_of(session, "gave_up", "two")
    text = ada.get("/attention/").text
    assert text.count('class="card needs"') == 1
    assert text.index("What two") < text.index("What one")  # the more urgent one comes first
    for words in ("Given up", "Asks for permission", "Why one", "Next one", "The log", path_of(session)):
        assert words in text
    assert (badge(ada), badge(bob)) == ("2", "")
    assert "What one" not in bob.get("/attention/").text


@pytest.mark.parametrize(("what", "news", "seen"), [("acknowledge", "1", True), ("dismiss", "1", False)])
def test_marked_item_is_no_longer_counted_as_new(
    ada: Client, session: TaskSession, what: str, news: str, seen: bool
) -> None:
    item = raise_item_of(session)
    raise_item_of(session, name="two")
    assert ada.post(f"/attention/{item.id}/{what}/").status_code == 302
    text = ada.get("/attention/").text
    assert (badge(ada), "What one" in text, "Seen, still open" in text) == (news, seen, seen)
    assert ada.post(f"/attention/{item.id}/{what}/", {"quiet": "1"}).status_code == 204


def test_mark_all_as_seen_ignores_external_redirects(ada: Client, session: TaskSession) -> None:
    raise_item_of(session)
    raise_item_of(session, name="two")
    answer = ada.post("/attention/seen/", {"next": "https://elsewhere.example/"})
    assert (answer.headers["Location"], badge(ada)) == ("/attention/", "")


def test_live_inbox_returns_items_and_count(ada: Client, session: TaskSession) -> None:
    raise_item_of(session)
    body = ada.get("/attention/live/").json()
    assert ("What one" in body["parts"]["attention"], body["count"]) == (True, 1)
    resolve_items_of(session)
    assert ada.get("/attention/count/").json().items() >= {"count": 0, "notices": []}.items()


def test_inbox_can_be_limited_to_own_sessions(ada: Client, world: World, session: TaskSession) -> None:
    raise_item_of(session)
    TaskSession.objects.filter(id=session.id).update(owner=world.bob)
    assert "What one" not in ada.get("/attention/?mine=1").text
    assert "What one" in ada.get("/attention/").text


@pytest.mark.parametrize(("kind", "mark"), [("idle", "Review needed"), ("receipt", "Memory lost")])
def test_board_marks_a_session_until_its_item_is_acknowledged(
    ada: Client, session: TaskSession, kind: str, mark: str
) -> None:
    item = raise_item_of(session, kind)
    assert f">{mark}<" in ada.get("/").text
    ada.post(f"/attention/{item.id}/acknowledge/")
    assert f">{mark}<" not in ada.get("/").text


def test_agent_text_is_escaped_in_the_inbox(ada: Client, session: TaskSession) -> None:
    item = raise_item_of(session)
    item.why = "<script>alert(1)</script>"
    item.save()
    assert "<script>alert(1)" not in ada.get("/attention/").text


def test_commands_in_an_item_are_shown_as_code(ada: Client, session: TaskSession) -> None:
    item = raise_item_of(session)
    item.why = "Its program `codex` was not found."
    item.save()
    assert "Its program <code>codex</code> was not found." in ada.get("/attention/").text


# --- the page of a session ---


def test_member_can_change_the_recovery_policy_shown_for_a_session(
    ada: Client, world: World, session: TaskSession
) -> None:
    assert "Default for this installation" in ada.get(path_of(session)).text
    TeamPolicy.objects.create(team=session.task.team, policy="manual")
    assert "Default of the team" in ada.get(path_of(session)).text
    ada.post(path_of(session) + "policy/", {"policy": "on_open"})
    text = ada.get(path_of(session)).text
    assert "Chosen for this session" in text and "When someone opens the session" in text


def test_session_explains_why_it_is_idle_and_what_to_do(ada: Client, world: World) -> None:
    session = world.resting_session(resume_token="t")
    TaskSession.objects.filter(id=session.id).update(desired_state="stopped", stopped_by_user=True)
    text = ada.get(path_of(session)).text
    assert "This agent was stopped. It does not start automatically." in text and "Press “Resume session”" in text


# --- notification settings ---

PAGE = "/settings/notifications/"


def test_email_notifications_require_mail_server_and_address(ada: Client, world: World, settings: Any) -> None:
    chosen = {"email": "on", "kinds": ["gave_up"], "every": 60, "minimum_share": 0}
    assert "E-mail is not configured" in ada.post(PAGE, chosen).text
    settings.KANDEV_EMAIL = True
    world.ada.email = ""
    world.ada.save()
    assert "no e-mail address" in ada.post(PAGE, chosen).text
    world.ada.email = "ada@example.com"
    world.ada.save()
    assert ada.post(PAGE, chosen).status_code == 302
    row = NotificationSettings.objects.get(user=world.ada)
    # That of the deployment is not offered to her, so it stays as it is.
    assert (row.email, row.kinds, row.every) == (True, ["gave_up", "system"], 60)
    assert ada.post(PAGE + "test/").status_code == 302
    assert Delivery.objects.get().is_test


def test_webhook_secret_is_shown_once(ada: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "check_address", lambda url: None)
    made = ada.post(PAGE + "webhooks/", {"url": "https://hooks.example/x", "owner": "", "kinds": ["held"]})
    hook = Webhook.objects.get()
    assert (made.status_code, hook.user, hook.kinds) == (201, world.ada, ["held"])
    assert hook.secret in made.text and hook.secret not in ada.get(PAGE).text
    assert "no-store" in made.headers["Cache-Control"]
    before = hook.secret
    rotated = ada.post(f"{PAGE}webhooks/{hook.id}/rotate/").text
    hook.refresh_from_db()
    assert hook.secret != before and hook.secret in rotated
    ada.post(f"{PAGE}webhooks/{hook.id}/remove/")
    assert not Webhook.objects.exists()


@pytest.mark.parametrize("url", ["http://hooks.example/", "https://127.0.0.1/", "https://169.254.169.254/", "nonsense"])
def test_webhook_to_an_internal_address_is_refused_with_a_reason(ada: Client, url: str) -> None:
    answer = ada.post(PAGE + "webhooks/", {"url": url, "owner": "", "kinds": ["held"]})
    assert (answer.status_code, Webhook.objects.count(), 'class="errors"' in answer.text) == (422, 0, True)


def test_team_webhook_and_policy_require_team_admin(ada: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "check_address", lambda url: None)
    team = Group.objects.get(user=world.ada)
    request = {"url": "https://hooks.example/x", "owner": str(team.pk), "kinds": ["held"]}
    policy = f"/settings/teams/{team.pk}/policy/"
    assert ada.post(PAGE + "webhooks/", request).status_code == 422
    assert (ada.get(policy).status_code, ada.post(policy, {"policy": "manual"}).status_code) == (200, 403)
    TeamRole.objects.update_or_create(user=world.ada, team=team, defaults={"role": "admin"})
    assert ada.post(PAGE + "webhooks/", request).status_code == 201
    assert Webhook.objects.get().team == team
    assert ada.post(policy, {"policy": "manual", "continues": "on"}).status_code == 302
    row = TeamPolicy.objects.get()
    assert (row.policy, row.continue_prompts, row.updated_by) == ("manual", True, world.ada)
    assert "Only manually" in ada.get(policy).text
