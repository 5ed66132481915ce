"""A kind of wait is declared once, and pages, API, mail, webhooks and metrics show it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.db.models import F
from django.test import Client
from django.utils import timezone

from kandev.metrics import CATALOGUE, collect_metrics, render_metrics
from sessions_app import open_waits
from sessions_app.attention.rules.notices import AttentionKind, Notice
from sessions_app.board.services.tasks import create_session
from sessions_app.models import AttentionItem, PermissionRequest, Turn, raise_item, session_transaction
from sessions_app.notifications import delivery
from sessions_app.notifications.models import Delivery, Webhook
from sessions_app.notifications.user_settings import change_settings, create_webhook
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.waits import services as waits
from sessions_app.waits.reader import waits_of_items
from sessions_app.waits.rules.open_waits import Actor, WaitDetails
from sessions_app.waits.sources import WaitSource
from tests.api.world import PERMISSION, World, client_of, make_world
from tests.attention.raising import backdate, raise_item_of

pytestmark = pytest.mark.django_db
DEADLINE = datetime(2031, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def world(settings: Any) -> World:
    settings.KANDEV_EMAIL = True
    made = make_world()
    made.member.email = "member@example.com"
    made.member.save()
    change_settings(made.member, {"email": True})
    return made


def declare_kind(monkeypatch: pytest.MonkeyPatch, item_prefix: str) -> None:
    """Declare a further kind of wait, whose rows are turns that wait with this kind."""
    source = WaitSource(
        kind="review",
        label=Label("Review of a change"),
        rows=lambda: Turn.objects.filter(ended_at=None, wait_kind="review"),
        describe=lambda row: WaitDetails(Actor.TEAM, row.wait_reason, "The verdict goes to the agent, once."),
        since="started_at",
        deadline=F("deadline_at"),
        item_prefix=item_prefix,
    )
    monkeypatch.setattr(open_waits, "WAIT_SOURCES", (*open_waits.WAIT_SOURCES, source))


def open_review(world: World) -> Turn:
    return Turn.objects.create(
        session=world.session,
        message_id="review",
        state="waiting",
        has_process=False,
        wait_kind="review",
        wait_reason="Somebody has to read the parser",
        started_at=timezone.now() - timedelta(hours=3),
        deadline_at=DEADLINE,
    )


def raise_review(world: World, turn: Turn) -> AttentionItem:
    notice = Notice(AttentionKind.HELD, f"review:{turn.id}", "A review is needed", "Read the parser", "Open it")
    with session_transaction(world.session.id) as transaction:
        raise_item(transaction, notice)
    return backdate(AttentionItem.objects.get(key=notice.key), 60)


def page(world: World, path: str) -> str:
    client = Client()
    client.force_login(world.member)
    return client.get(path).content.decode()


def session_path(world: World) -> str:
    return f"/tasks/{world.task.id}/sessions/{world.session.id}/"


@pytest.mark.parametrize("path", ["/waits/", "/attention/", "session"])
def test_page_shows_a_kind_that_was_declared(world: World, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    declare_kind(monkeypatch, "")
    open_review(world)
    shown = page(world, session_path(world) if path == "session" else path)
    for words in ("Review of a change", "read the parser", "2031-05-01 12:00", "anybody in team", "The verdict goes"):
        assert words in shown


def test_inbox_item_says_until_when_its_wait_is_open_and_for_whom(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_kind(monkeypatch, "review:")
    raise_review(world, open_review(world))
    shown = page(world, "/attention/")
    assert "of waiting, until <time" in shown
    assert "Expected to act: anybody in team." in shown
    assert "Waits that need no action" not in shown, "the item tells of it already"


def test_api_and_metrics_have_a_kind_that_was_declared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_kind(monkeypatch, "")
    open_review(world)
    (wait,) = client_of(world.member).get("/api/v1/waits/?kind=review").json()["results"]
    assert (wait["owner"], wait["owner_name"], wait["reason"]) == ("team", "team", "Somebody has to read the parser")
    assert 'kandev_waits{wait="review"} 1.0' in render_metrics(collect_metrics()).decode()
    assert {"kandev_waits", "kandev_wait_oldest_age_seconds"} <= set(CATALOGUE)


def test_mail_and_webhook_tell_the_wait_of_an_item(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_kind(monkeypatch, "review:")
    turn = open_review(world)
    item = raise_review(world, turn)

    text = delivery.render_email([item])["text"]
    payload = delivery.webhook_payload(item, "1", waits_of_items([item])[item.key])

    assert "until 2031-05-01 12:00 UTC; expected to act: anybody in team. The verdict goes to the agent, once." in text
    assert payload["wait"] == {
        "kind": "review",
        "id": str(turn.id),
        "since": turn.started_at.isoformat(),
        "deadline": DEADLINE.isoformat(),
        "owner": "team",
        "owner_name": "team",
        "wake_up": "The verdict goes to the agent, once.",
    }


def test_planned_webhook_carries_the_wait_and_an_item_without_one_null(world: World, settings: Any) -> None:
    settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = ("127.0.0.1:9",)
    create_webhook(world.member, "http://127.0.0.1:9/")
    Webhook.objects.update(created_at=timezone.now() - timedelta(hours=1))
    PermissionRequest.objects.filter(id=PERMISSION).update(id="one")
    raise_item_of(world.session, "permission", "one")
    raise_item_of(world.session, "gave_up", "two")
    delivery.plan_deliveries()
    told = {row.payload["item"]["kind"]: row.payload["wait"] for row in Delivery.objects.filter(channel="webhook")}
    assert told["gave_up"] is None
    assert (told["permission"]["kind"], told["permission"]["owner"]) == ("permission", "person")


def test_mail_names_waits_that_need_nobody(world: World) -> None:
    other = create_session(world.member, world.task, world.profile, world.executor)
    waits.open_wait(other.id, "The build of main", DEADLINE, world.member)
    raise_item_of(world.session, "gave_up")
    delivery.run_notifications()
    (message,) = mail.outbox
    assert "Open waits that need no action:\n- Mend the fence: The build of main (open since" in message.body
    assert "because you enabled notifications" in message.body.splitlines()[-1]


def test_mail_names_no_waits_of_a_team_that_its_reader_has_left(world: World) -> None:
    other = create_session(world.member, world.task, world.profile, world.executor)
    waits.open_wait(other.id, "The build of main", DEADLINE, world.member)
    raise_item_of(world.session, "gave_up")
    delivery.plan_deliveries()
    world.member.groups.clear()
    delivery.send_due_deliveries()
    assert not mail.outbox
