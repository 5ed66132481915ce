"""Plan deliveries of what is new, render their e-mails and webhook payloads, and send them until they arrive."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from sessions_app.accounts.authorization import may_manage
from sessions_app.domain.states import ENDED_STATES, DesiredState
from sessions_app.models import AttentionItem, TaskSession
from sessions_app.notifications import webhooks
from sessions_app.notifications.models import DeliveredItem, Delivery, NotificationSettings, Webhook
from sessions_app.services.attention import open_items_for, own_items, team_items, unseen_items_for, visible_items

EMAIL_FOOTER = "You get this e-mail because you enabled notifications. To change this, go to {link}"
LINK_FALLBACK = "your notification settings"


def render_email(items: Sequence[AttentionItem]) -> dict[str, str]:
    """Return subject and text of one e-mail about all these items."""
    if len(items) == 1:
        subject = f"{items[0].what}: {items[0].title}"
    else:
        words = "tasks" if all(item.task_id for item in items) else "tasks and workflows"
        count = len({item.about.pk for item in items})
        subject = f"{len(items)} items need your attention" + (f" in {count} {words}" if count > 1 else "")
    parts = [_render_item(item) for item in items]
    parts.append(EMAIL_FOOTER.format(link=absolute_url("/settings/notifications/") or LINK_FALLBACK))
    return {"subject": _one_line(f"[Kandev] {subject}"), "text": "\n\n".join(parts) + "\n"}


def render_test_email() -> dict[str, str]:
    """Return subject and text of a test e-mail."""
    text = f"E-mail from Kandev works. You will get an e-mail when an agent needs you.\n\n{EMAIL_FOOTER}\n"
    where = absolute_url("/settings/notifications/") or LINK_FALLBACK
    return {"subject": "[Kandev] Test message", "text": text.format(link=where)}


def _render_item(item: AttentionItem) -> str:
    title = f"{'Task' if item.workflow is None else 'Workflow'}: {_one_line(item.title)}"
    lines = [item.what, f"{title} (team {item.about.team.name})", f"Why: {item.why}", f"Next: {item.next_step}"]
    where = absolute_url(item.path)
    return "\n".join([*lines, where] if where else lines)


def webhook_payload(item: AttentionItem, delivery_id: str) -> dict[str, Any]:
    """Return the body of a webhook request about one item.

    ``session_id`` and ``task`` are null if the item is about a workflow.
    """
    task, workflow = item.task, item.workflow
    return {
        "type": "attention.raised",
        "delivery_id": delivery_id,
        "item": {
            "id": str(item.id),
            "key": item.key,
            "kind": item.kind,
            "what": item.what,
            "why": item.why,
            "next_step": item.next_step,
            "created_at": item.created_at.isoformat(),
            "url": absolute_url(item.path) or item.path,
        },
        "session_id": str(item.session_id) if item.session_id else None,
        "task": {"id": str(task.id), "title": task.title} if task else None,
        "workflow": {"id": str(workflow.id), "name": workflow.name} if workflow else None,
        "team": item.about.team.name,
    }


def absolute_url(path: str) -> str:
    """Return the absolute URL of a path; empty if the site's URL is not configured."""
    base = settings.KANDEV_SITE_URL or next(iter(settings.CSRF_TRUSTED_ORIGINS), "")
    return f"{base.rstrip('/')}{path}" if base else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


log = logging.getLogger(__name__)
PLAN_DELAY: Final = timedelta(seconds=20)
"""Items that are resolved sooner are not sent."""
MAX_DELIVERY_AGE: Final = timedelta(days=1)
"""Older items are not sent, for example when someone enables notifications."""
MOST_ATTEMPTS: Final = 8
FIRST_RETRY_DELAY: Final = timedelta(seconds=30)
MAX_RETRY_DELAY: Final = timedelta(hours=1)
CLAIM_TIMEOUT: Final = timedelta(minutes=5)
"""After this time an attempt whose result is unknown is repeated: its worker may have died."""
MAX_CONCURRENT_DELIVERIES: Final = 100
"""Maximum number of items in one e-mail, and of deliveries in one round."""
MAX_ROUND_SECONDS: Final = 120.0
"""Seconds after which a round starts no other delivery, because the worker kills tasks that take too long."""
RETENTION: Final = timedelta(days=30)


def run_notifications() -> dict[str, int]:
    """Plan new deliveries, send those that are due and delete old ones; return the number of each."""
    planned = plan_deliveries()
    return {"planned": planned, "given": send_due_deliveries(), "forgotten": delete_old_deliveries()}


def plan_deliveries() -> int:
    """Create deliveries for all items that receivers have enabled and that were not sent; return their number."""
    people = NotificationSettings.objects.filter(email=True, user__is_active=True).select_related("user")
    made = [_plan_email(choice) for choice in people if choice.is_due()]
    hooks = Webhook.objects.filter(enabled=True).filter(Q(user=None) | Q(user__is_active=True))
    made += [
        _plan_webhook(hook)
        for hook in hooks.select_related("user", "team", "created_by")
        if _may_still_notify_team(hook)
    ]
    return sum(made)


def _may_still_notify_team(hook: Webhook) -> bool:
    """Return whether the creator of a team's webhook still manages the team; otherwise disable it.

    The requests go to a URL of that person's choice. A user's own webhook gets only what the user may see now.
    """
    if hook.team is None or (hook.created_by is not None and may_manage(hook.created_by, hook.team)):
        return True
    Webhook.objects.filter(id=hook.id).update(enabled=False)
    log.warning("webhook %s was disabled: its creator no longer manages the team", hook.id)
    return False


def _plan_email(choice: NotificationSettings) -> int:
    user = choice.user
    rows = _undelivered_items(unseen_items_for(user), f"user:{user.pk}", choice.kinds)
    if choice.only_mine:
        rows = rows.filter(own_items(user))
    items = list(rows[:MAX_CONCURRENT_DELIVERIES])
    if not items or not user.email or not _has_enough_items(choice):
        return 0
    now = timezone.now()
    # Time of the last e-mail, delivery and its items commit together. After a crash before the commit, the next round
    # plans the same items again; after it, they are assigned and no other e-mail contains them.
    with transaction.atomic():
        unchanged = NotificationSettings.objects.filter(pk=choice.pk, last_email_at=choice.last_email_at)
        if not unchanged.update(last_email_at=now):
            return 0  # another worker has just planned an e-mail to this user
        delivery = Delivery.objects.create(channel="email", user=user, payload=render_email(items))
        _add_delivered_items(delivery, items, f"user:{user.pk}")
    return 1


def _has_enough_items(choice: NotificationSettings) -> bool:
    """Return whether enough of the user's agents are waiting (``minimum_share``)."""
    if not choice.minimum_share:
        return True
    running = TaskSession.objects.visible_to(choice.user).filter(desired_state=DesiredState.RUNNING)
    running = running.exclude(state__in=ENDED_STATES)
    if choice.only_mine:
        running = running.filter(owner_id=choice.user.pk)
    total = running.count()
    waiting = open_items_for(choice.user).filter(session__in=running).order_by().values("session").distinct().count()
    return total == 0 or waiting * 100 >= choice.minimum_share * total


def _plan_webhook(hook: Webhook) -> int:
    target = f"webhook:{hook.id}"
    rows = unseen_items_for(hook.user) if hook.user is not None else team_items(hook.team)
    made = 0
    for item in _undelivered_items(rows, target, hook.kinds).filter(created_at__gte=hook.created_at)[
        :MAX_CONCURRENT_DELIVERIES
    ]:
        with transaction.atomic():
            delivery = Delivery(channel="webhook", webhook=hook)
            delivery.payload = webhook_payload(item, str(delivery.id))
            delivery.save(force_insert=True)
            made += _add_delivered_items(delivery, [item], target)
    return made


def _undelivered_items(rows: QuerySet[AttentionItem], target: str, kinds: Sequence[str]) -> QuerySet[AttentionItem]:
    now = timezone.now()
    told = DeliveredItem.objects.filter(item=OuterRef("pk"), target=target)
    return rows.filter(
        ~Exists(told), kind__in=kinds, created_at__lte=now - PLAN_DELAY, created_at__gte=now - MAX_DELIVERY_AGE
    ).order_by("created_at", "id")


def _add_delivered_items(delivery: Delivery, items: Iterable[AttentionItem], target: str) -> int:
    """Assign items to a delivery, except those that another delivery has; delete a delivery without items."""
    rows = [DeliveredItem(delivery=delivery, item=item, target=target) for item in items]
    # Two workers may plan the same item. The constraint on (item, target) leaves it to the first.
    DeliveredItem.objects.bulk_create(rows, ignore_conflicts=True)
    if DeliveredItem.objects.filter(delivery=delivery).exists():
        return 1
    delivery.delete()
    return 0


def send_due_deliveries() -> int:
    """Send every due delivery; return the number of attempts."""
    due = Delivery.objects.filter(state=Delivery.State.PENDING, next_attempt_at__lte=timezone.now())
    given, until = 0, time.monotonic() + MAX_ROUND_SECONDS
    for key in list(due.order_by("next_attempt_at").values_list("id", flat=True)[:MAX_CONCURRENT_DELIVERIES]):
        if time.monotonic() > until:
            break  # the next round continues
        given += send_delivery(key)
    return given


def send_delivery(delivery_id: Any) -> bool:
    """Send one delivery, unless another worker does; return False if it is not due."""
    now = timezone.now()
    # The UPDATE claims the delivery, because it is no longer due for other workers. If this worker dies while sending,
    # the delivery is due again after CLAIM_TIMEOUT: it may then arrive twice, but is never lost.
    due = Delivery.objects.filter(id=delivery_id, state=Delivery.State.PENDING, next_attempt_at__lte=now)
    if not due.update(attempts=F("attempts") + 1, next_attempt_at=now + CLAIM_TIMEOUT):
        return False
    row = Delivery.objects.select_related("user", "webhook__user", "webhook__team", "webhook__created_by").get(
        id=delivery_id
    )
    if not _is_wanted(row):
        _finish_delivery(row, Delivery.State.DROPPED)
        return True
    try:
        _send(row)
    except webhooks.WebhookFailed as error:
        _record_failure(row, str(error), permanent=error.permanent)
    except Exception as error:  # noqa: BLE001 - each mail backend has errors of its own
        log.warning("delivery %s failed: %s", row.id, type(error).__name__)
        _record_failure(row, f"{type(error).__name__}: the mail server did not accept the message.")
    else:
        _finish_delivery(row, Delivery.State.SENT)
    return True


def _is_wanted(row: Delivery) -> bool:
    """Return whether the receiver may still see it and any of its items is still open."""
    user = row.user or (row.webhook.user if row.webhook else None)
    if user is not None and not (user.is_active and (row.webhook or user.email)):
        return False
    if row.is_test:
        return True
    if row.webhook is not None and not (row.webhook.enabled and _may_still_notify_team(row.webhook)):
        return False
    rows = open_items_for(user) if user is not None else AttentionItem.objects.filter(resolved_at=None)
    return bool(rows.filter(deliveries=row).exists())


def _send(row: Delivery) -> None:
    if row.channel == "email":
        assert row.user is not None  # noqa: S101
        told = row.payload if row.is_test else _visible_items_only(row)
        EmailMessage(told["subject"], told["text"], None, [row.user.email]).send()
        return
    assert row.webhook is not None  # noqa: S101
    body = json.dumps(row.payload, ensure_ascii=False, separators=(",", ":")).encode()
    hook = row.webhook
    webhooks.send_webhook(webhooks.WebhookRequest(hook.url, hook.secret, body, str(row.id), str(row.payload["type"])))


def _visible_items_only(row: Delivery) -> dict[str, str]:
    """Render an e-mail again without items that its reader can no longer see, after leaving a team."""
    seen = list(visible_items(row.user).filter(deliveries=row).order_by("created_at", "id"))
    payload: dict[str, str] = row.payload
    return payload if len(seen) == row.items.count() else render_email(seen)


def _record_failure(row: Delivery, error: str, *, permanent: bool = False) -> None:
    if permanent or row.is_test or row.attempts >= MOST_ATTEMPTS:
        _finish_delivery(row, Delivery.State.FAILED, error)
        return
    pause = min(FIRST_RETRY_DELAY * 4 ** (row.attempts - 1), MAX_RETRY_DELAY) * (0.75 + random.random() / 2)  # noqa: S311
    Delivery.objects.filter(id=row.id).update(last_error=error[:300], next_attempt_at=timezone.now() + pause)


def _finish_delivery(row: Delivery, state: Delivery.State, error: str = "") -> None:
    values = {"state": state, "finished_at": timezone.now(), "last_error": error[:300]}
    Delivery.objects.filter(id=row.id, state=Delivery.State.PENDING).update(**values)


def delete_old_deliveries() -> int:
    """Delete deliveries and items that ended more than a month ago; return their number."""
    before = timezone.now() - RETENTION
    gone, _ = Delivery.objects.exclude(state=Delivery.State.PENDING).filter(created_at__lt=before).delete()
    items, _ = AttentionItem.objects.filter(resolved_at__lt=before).delete()
    return gone + items
