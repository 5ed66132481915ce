"""Subscribers get one notification per new item, in digests and with retries; resolved items are dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.utils import timezone
from django_q.models import OrmQ

from sessions_app.attention.services import inbox
from sessions_app.board.services.tasks import create_session
from sessions_app.kernel.services.errors import Throttled
from sessions_app.models import AttentionItem
from sessions_app.notifications import delivery as notifying
from sessions_app.notifications.models import DeliveredItem, Delivery, NotificationSettings, Webhook
from sessions_app.notifications.round_lock import round_lock
from sessions_app.notifications.user_settings import change_settings, create_webhook, send_test_call, send_test_email
from sessions_app.worker.notifications import give, notify
from tests.api.world import World, client_of
from tests.attention.raising import backdate, raise_item_of, resolve_items_of
from tests.notifications.receiver import Receiver, is_genuine, receiving
from tests.waiting import PATIENCE, eventually


@pytest.fixture(autouse=True)
def mail_server(settings: Any) -> None:
    settings.KANDEV_EMAIL = True
    settings.KANDEV_SITE_URL = "https://kandev.example"


@pytest.fixture
def reader(world: World) -> NotificationSettings:
    """Return the notification settings of a member with e-mail enabled."""
    world.member.email = "member@example.com"
    world.member.save()
    return change_settings(world.member, {"email": True})


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    with receiving() as found:
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = (found.authority,)
        yield found


def later(**more: float) -> None:
    """Date the last e-mails and attempts back."""
    gone = timedelta(**more)
    for row in NotificationSettings.objects.all():
        if row.last_email_at is not None:
            NotificationSettings.objects.filter(pk=row.pk).update(last_email_at=row.last_email_at - gone)
    for delivery in Delivery.objects.all():
        Delivery.objects.filter(id=delivery.id).update(next_attempt_at=delivery.next_attempt_at - gone)


def subjects() -> list[str]:
    return [str(message.subject) for message in mail.outbox]


def test_email_says_what_happened_why_what_next_and_where(world: World, reader: Any) -> None:
    raise_item_of(world.session, "gave_up")
    assert notifying.run_notifications() == {"planned": 1, "given": 1, "forgotten": 0}
    (message,) = mail.outbox
    assert (message.to, message.subject) == (["member@example.com"], "[Kandev] What one: Mend the fence")
    page = f"https://kandev.example/tasks/{world.task.id}/sessions/{world.session.id}/"
    for part in ("What one", "Why one", "Next one", "Mend the fence", page):
        assert part in message.body
    assert "The log" not in message.body  # evidence may contain anything
    assert Delivery.objects.get().state == "sent"


def test_each_item_is_mailed_once_and_after_a_short_delay(world: World, reader: Any) -> None:
    item = raise_item_of(world.session, age=1)
    notifying.run_notifications()
    assert subjects() == []
    backdate(item, 30)
    for _ in range(3):
        notifying.run_notifications()
        later(hours=1)
    assert len(mail.outbox) == 1


def test_items_within_the_pause_are_sent_in_one_email(world: World, reader: Any) -> None:
    raise_item_of(world.session, "gave_up")
    notifying.run_notifications()
    for name in ("two", "three"):
        raise_item_of(world.session, "held", name)
    notifying.run_notifications()
    assert len(mail.outbox) == 1
    later(minutes=16)
    notifying.run_notifications()
    assert subjects()[1:] == ["[Kandev] 2 items need your attention"]


@pytest.mark.parametrize(
    "why", ["settled", "acknowledged", "dismissed", "present", "off", "kind", "old", "left", "inactive"]
)
def test_no_email_for_an_item_the_user_does_not_need(world: World, reader: Any, why: str) -> None:
    item = raise_item_of(world.session)
    match why:
        case "settled":
            resolve_items_of(world.session)
        case "acknowledged":
            inbox.acknowledge_item(item, world.member)
        case "dismissed":
            inbox.dismiss_item(item, world.member)
        case "present":
            inbox.mark_present(world.session, world.member)
        case "off":
            change_settings(world.member, {"email": False})
        case "kind":
            change_settings(world.member, {"kinds": ["permission"]})
        case "old":
            backdate(item, 2 * 86_400)
        case "left":
            world.member.groups.clear()
        case "inactive":
            world.member.is_active = False
            world.member.save()
    notifying.run_notifications()
    assert subjects() == []


def test_viewer_is_notified_of_items_still_open_after_leaving(world: World, reader: Any) -> None:
    raise_item_of(world.session, "permission")
    inbox.mark_present(world.session, world.member)
    notifying.run_notifications()
    inbox.mark_absent(world.session, world.member)
    notifying.run_notifications()
    assert len(mail.outbox) == 1


def test_other_users_sessions_notify_only_those_who_opted_in(world: World, reader: Any) -> None:
    change_settings(world.member, {"only_mine": True})
    theirs = create_session(world.staff, world.task, world.profile, world.executor)
    raise_item_of(theirs)
    notifying.run_notifications()
    assert subjects() == []
    change_settings(world.member, {"only_mine": False})
    notifying.run_notifications()
    assert len(mail.outbox) == 1


def test_notifications_can_wait_for_a_minimum_share_of_sessions(world: World, reader: Any) -> None:
    change_settings(world.member, {"minimum_share": 50})
    others = [create_session(world.member, world.task, world.profile, world.executor) for _ in range(3)]
    raise_item_of(world.session)
    notifying.run_notifications()
    assert subjects() == []
    raise_item_of(others[0], name="two")
    notifying.run_notifications()
    assert len(mail.outbox) == 1


def test_item_resolved_between_planning_and_sending_is_dropped(world: World, reader: Any) -> None:
    raise_item_of(world.session)
    assert notifying.plan_deliveries() == 1
    resolve_items_of(world.session)
    notifying.send_due_deliveries()
    assert (subjects(), Delivery.objects.get().state) == ([], "dropped")


def test_failing_mail_server_is_retried_without_storing_its_error_text(
    world: World, reader: Any, settings: Any
) -> None:
    settings.EMAIL_BACKEND = "tests.notifications.broken_mail.EmailBackend"
    raise_item_of(world.session)
    notifying.run_notifications()
    row = Delivery.objects.get()
    assert (row.state, row.attempts, "password" in row.last_error) == ("pending", 1, False)
    assert notifying.send_due_deliveries() == 0, "it is not due yet"
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    later(minutes=2)
    notifying.run_notifications()
    row.refresh_from_db()
    assert (row.state, row.attempts, len(mail.outbox)) == ("sent", 2, 1)


def test_test_email_is_sent_immediately(world: World, reader: Any) -> None:
    assert give(send_test_email(world.member).id)["given"] == 1
    assert subjects() == ["[Kandev] Test message"]


# --- webhooks ---


def hook_of(world: World, receiver: Receiver, **more: Any) -> Webhook:
    hook = create_webhook(world.member, receiver.url, **more)
    Webhook.objects.filter(id=hook.id).update(created_at=timezone.now() - timedelta(hours=1))
    return hook


def test_webhook_gets_each_item_in_a_signed_request(world: World, receiver: Receiver) -> None:
    hook = hook_of(world, receiver)
    item = raise_item_of(world.session, "permission")
    raise_item_of(world.session, "held")
    notifying.run_notifications()
    notifying.run_notifications()
    assert [call["item"]["kind"] for call in receiver.calls()] == ["permission", "held"]
    first, (headers, body) = receiver.calls()[0], receiver.requests[0]
    assert is_genuine(hook.secret, headers, body)
    assert (first["type"], first["item"]["key"], first["session_id"]) == (
        "attention.raised",
        item.key,
        str(world.session.id),
    )
    assert first["delivery_id"] == headers["x-kandev-delivery"]
    assert first["item"]["url"].startswith("https://kandev.example/tasks/")
    assert "detail" not in first["item"]


def test_team_webhook_gets_only_items_of_its_team(world: World, receiver: Receiver) -> None:
    world.staff.is_staff = True
    hook = create_webhook(world.staff, receiver.url, team=world.team)
    Webhook.objects.filter(id=hook.id).update(created_at=timezone.now() - timedelta(hours=1))
    other = create_webhook(world.staff, receiver.url, team=world.stranger.groups.get())
    Webhook.objects.filter(id=other.id).update(created_at=timezone.now() - timedelta(hours=1))
    raise_item_of(world.session)
    notifying.run_notifications()
    assert [row.webhook_id for row in Delivery.objects.all()] == [hook.id]


def test_failed_webhook_call_is_retried_with_the_same_delivery_id(world: World, receiver: Receiver) -> None:
    hook_of(world, receiver)
    raise_item_of(world.session)
    receiver.status = 503
    notifying.run_notifications()
    notifying.run_notifications()
    row = Delivery.objects.get()
    assert (row.state, row.attempts, row.last_error, len(receiver.requests)) == (
        "pending",
        1,
        "The server answered 503.",
        1,
    )
    receiver.status = 200
    later(hours=1)
    notifying.run_notifications()
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("sent", 2)
    assert len({headers["x-kandev-delivery"] for headers, _ in receiver.requests}) == 1


def test_webhook_call_is_given_up_after_the_maximum_attempts(world: World, receiver: Receiver) -> None:
    hook_of(world, receiver)
    raise_item_of(world.session)
    receiver.status = 500
    for _ in range(notifying.MOST_ATTEMPTS + 2):
        notifying.run_notifications()
        later(hours=2)
    row = Delivery.objects.get()
    assert (row.state, row.attempts, len(receiver.requests)) == ("failed", notifying.MOST_ATTEMPTS, 8)


def test_delivery_of_a_dead_worker_is_sent_by_the_next_one(world: World, receiver: Receiver) -> None:
    hook_of(world, receiver)
    raise_item_of(world.session)
    notifying.plan_deliveries()
    row = Delivery.objects.get()
    row.attempts, row.next_attempt_at = 1, timezone.now() + notifying.CLAIM_TIMEOUT  # as the dead worker left it
    row.save()
    assert notifying.send_due_deliveries() == 0
    later(minutes=6)
    assert (notifying.send_due_deliveries(), len(receiver.requests)) == (1, 1)


def test_disabled_or_disallowed_webhook_is_not_called(world: World, receiver: Receiver, settings: Any) -> None:
    hook = hook_of(world, receiver)
    raise_item_of(world.session)
    notifying.plan_deliveries()
    settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = ()
    notifying.send_due_deliveries()
    row = Delivery.objects.get()
    assert (row.state, receiver.requests) == ("failed", [])
    Webhook.objects.filter(id=hook.id).update(enabled=False)
    raise_item_of(world.session, name="two")
    assert notifying.plan_deliveries() == 0


def test_failed_test_call_is_not_retried(world: World, receiver: Receiver) -> None:
    hook = hook_of(world, receiver)
    receiver.status = 500
    delivery = send_test_call(world.member, hook)
    assert give(delivery.id)["given"] == 1
    delivery.refresh_from_db()
    assert (delivery.state, receiver.calls()[0]["type"]) == ("failed", "ping")


def test_test_calls_are_rate_limited_per_user(world: World, receiver: Receiver) -> None:
    hook = hook_of(world, receiver)
    for _ in range(10):
        send_test_call(world.member, hook)
    with pytest.raises(Throttled) as refused:
        send_test_call(world.member, hook)
    assert 0 < refused.value.retry_after <= 300
    answer = client_of(world.member).post(f"/api/v1/webhooks/{hook.id}/test/")
    assert (answer.status_code, answer.json()["code"], int(answer["Retry-After"]) > 0) == (429, "throttled", True)
    assert Delivery.objects.count() == 10


def test_test_calls_are_rate_limited_per_team(world: World, receiver: Receiver) -> None:
    for member in members_of(world, 3):
        hook = create_webhook(member, receiver.url)
        for _ in range(10):
            send_test_call(member, hook)
    own = hook_of(world, receiver)
    with pytest.raises(Throttled):
        send_test_call(world.member, own)
    send_test_call(world.stranger, create_webhook(world.stranger, receiver.url))
    assert Delivery.objects.count() == 31


def test_test_calls_occupy_one_worker_of_a_machine(world: World, receiver: Receiver) -> None:
    delivery = send_test_call(world.member, hook_of(world, receiver))
    with round_lock() as is_held:
        assert is_held
        assert give(delivery.id) == notify() == {"planned": 0, "given": 0, "forgotten": 0}
        assert receiver.requests == []
    assert give(delivery.id)["given"] == 1
    assert receiver.calls()[0]["type"] == "ping"


def test_round_sends_tests_that_are_requested_meanwhile(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = list[Delivery]()

    def wait_and_request(*arguments: Any) -> Any:
        if not requested:
            hook = create_webhook(world.stranger, receiver.url)
            requested.append(send_test_call(world.stranger, hook))
        return futures.wait(*arguments)

    monkeypatch.setattr(notifying, "wait", wait_and_request)
    assert give(send_test_call(world.member, hook_of(world, receiver)).id)["given"] == 2
    assert len(receiver.requests) == 2


def test_tests_that_a_round_leaves_are_sent_by_another_one(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = send_test_call(world.member, hook_of(world, receiver))
    with monkeypatch.context() as no_time:
        no_time.setattr(notifying, "MAX_ROUND_SECONDS", 0)
        assert give(delivery.id)["given"] == 0
    assert [queued.func() for queued in OrmQ.objects.all()] == [notifying.ROUND_TASK]
    assert notify()["given"] == 1
    assert OrmQ.objects.count() == 1, "nothing is left, so no other round follows"


def test_old_resolved_items_and_deliveries_are_deleted(world: World, reader: Any) -> None:
    raise_item_of(world.session)
    notifying.run_notifications()
    old = timezone.now() - timedelta(days=31)
    resolve_items_of(world.session)
    AttentionItem.objects.update(resolved_at=old)
    Delivery.objects.update(created_at=old)
    notifying.delete_old_deliveries()
    assert (AttentionItem.objects.count(), Delivery.objects.count(), DeliveredItem.objects.count()) == (0, 0, 0)


def test_receivers_that_do_not_answer_delay_no_other_receiver(
    world: World, receiver: Receiver, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "MAX_ROUND_SECONDS", PATIENCE)
    with receiving() as silent:
        silent.hangs = hangs = threading.Event()
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = (receiver.authority, silent.authority)
        hooks = [create_webhook(world.member, silent.url) for _ in range(10)]
        for hook in hooks:
            raise_deliveries(hook, 15)
        raise_deliveries(create_webhook(world.stranger, receiver.url), 1)
        called_at_once = list[int]()

        def answer_later() -> None:
            eventually(lambda: receiver.requests and silent.requests, describe="both are called")
            called_at_once.append(len(silent.requests))
            hangs.set()

        watcher = threading.Thread(target=answer_later)
        watcher.start()
        notifying.send_due_deliveries()
        watcher.join()
    assert (len(receiver.requests), called_at_once) == (1, [1])


def test_each_user_and_team_is_called_once_before_anyone_is_called_twice(world: World, receiver: Receiver) -> None:
    first, second = create_webhook(world.member, receiver.url), create_webhook(world.stranger, receiver.url)
    raise_deliveries(first, notifying.MAX_CONCURRENT_DELIVERIES + 1)
    raise_deliveries(second, 1)
    loaded = notifying._Round(until=0)._waiting.values()
    assert [len(keys) for keys in loaded] == [notifying.MAX_CONCURRENT_DELIVERIES - 1, 1]
    notifying.send_due_deliveries()
    assert Delivery.objects.get(webhook=second).state == "sent"


def test_delivery_that_cannot_be_written_stops_no_other(world: World, receiver: Receiver) -> None:
    damaged, intact = create_webhook(world.member, receiver.url), create_webhook(world.stranger, receiver.url)
    raise_deliveries(damaged, 1)
    raise_deliveries(intact, 1)
    Delivery.objects.filter(webhook=damaged).update(payload={})
    assert notifying.send_due_deliveries() == 2
    assert Delivery.objects.get(webhook=intact).state == "sent"
    assert Delivery.objects.get(webhook=damaged).last_error == "KeyError: the message could not be written."


def test_receiver_whose_message_cannot_be_planned_stops_no_other(
    world: World, reader: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = hook_of(world, receiver)
    raise_item_of(world.session)

    def refuse(items: Any) -> Any:
        raise ValueError(items)

    monkeypatch.setattr(notifying, "render_email", refuse)
    notifying.run_notifications()

    assert Delivery.objects.get().webhook == hook
    assert Delivery.objects.get().state == "sent"


def test_members_of_one_team_leave_calls_to_other_teams(
    world: World, receiver: Receiver, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "MAX_CALLS", 4)
    monkeypatch.setattr(notifying, "MAX_CALLS_PER_TEAM", 2)
    monkeypatch.setattr(notifying, "MAX_ROUND_SECONDS", PATIENCE)
    with receiving() as silent:
        silent.hangs = hangs = threading.Event()
        settings.KANDEV_WEBHOOK_ALLOWED_HOSTS = (receiver.authority, silent.authority)
        for member in members_of(world, 6):
            raise_deliveries(create_webhook(member, silent.url), 1)
        raise_deliveries(create_webhook(world.stranger, receiver.url), 1)
        called_at_once = list[int]()

        def answer_later() -> None:
            try:
                eventually(lambda: receiver.requests and silent.requests, timeout=PATIENCE, describe="both are called")
                called_at_once.append(len(silent.requests))
            finally:
                hangs.set()

        watcher = threading.Thread(target=answer_later)
        watcher.start()
        notifying.send_due_deliveries()
        watcher.join()
    assert len(receiver.requests) == 1
    assert 1 <= called_at_once[0] <= 2


def test_account_waits_for_its_next_turn_behind_all_others(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "MAX_CALLS", 1)
    first, second = create_webhook(world.member, receiver.url), create_webhook(world.stranger, receiver.url)
    raise_deliveries(first, 3)
    raise_deliveries(second, 1)
    notifying.send_due_deliveries()
    order = [headers["x-kandev-delivery"] for headers, _ in receiver.requests]
    assert str(Delivery.objects.get(webhook=second).id) in order[:2]
    assert len(order) == 4


def members_of(world: World, count: int) -> list[User]:
    """Add members to the team."""
    members = [User.objects.create_user(f"member-{number}") for number in range(count)]
    world.team.user_set.add(*members)
    return members


def raise_deliveries(hook: Webhook, count: int) -> None:
    """Add test deliveries to a webhook that are due."""
    due = timezone.now() - timedelta(minutes=1)
    Delivery.objects.bulk_create(
        Delivery(channel="webhook", webhook=hook, is_test=True, payload={"type": "ping"}, next_attempt_at=due)
        for _ in range(count)
    )
