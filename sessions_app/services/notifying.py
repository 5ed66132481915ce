"""Telling people outside the pages: what is new becomes deliveries, and deliveries are given until they arrive.

Run by the worker once a minute. Every step may run twice: an item is planned once per receiver (unique in
the database), an attempt is claimed by a guarded UPDATE, and each carries the delivery's id (at least once).
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from sessions_app.domain.states import ENDED_STATES, DesiredState
from sessions_app.models import AttentionItem, DeliveredItem, Delivery, NotificationSettings, TaskSession, Webhook
from sessions_app.services import webhook_calls
from sessions_app.services.attention import for_user, inbox_of_team, mine, news_for, visible_items
from sessions_app.services.notification_texts import email_of, webhook_of
from sessions_app.services.rights import may_manage

log = logging.getLogger(__name__)
GRACE: Final = timedelta(seconds=20)
"""What is settled sooner is nobody's mail."""
PATIENCE: Final = timedelta(days=1)
"""What is older when somebody first asks to be told is no news."""
MOST_ATTEMPTS: Final = 8
FIRST_PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(hours=1)
CLAIM: Final = timedelta(minutes=5)
"""An attempt that nobody has told the end of is made again after so long."""
AT_ONCE: Final = 100
"""Items of one e-mail, and deliveries of one round, at most."""
ROUND: Final = 120.0
"""Seconds after which a round begins no other delivery: the worker ends a task that takes too long."""
KEPT: Final = timedelta(days=30)


def notify() -> dict[str, int]:
    """One round: plan what is new, give what is due, forget what is old; how many of each."""
    planned = plan()
    return {"planned": planned, "given": give_due(), "forgotten": forget_old()}


def plan() -> int:
    """Make a delivery of everything that somebody wants to be told and has not been."""
    people = NotificationSettings.objects.filter(email=True, user__is_active=True).select_related("user")
    made = [_plan_email(choice) for choice in people if choice.is_due()]
    hooks = Webhook.objects.filter(enabled=True).filter(Q(user=None) | Q(user__is_active=True))
    made += [_plan_webhook(hook) for hook in hooks.select_related("user", "team", "created_by") if _has_rights(hook)]
    return sum(made)


def _has_rights(hook: Webhook) -> bool:
    """Whether who gave a webhook to a team still looks after the team; else it is switched off.

    It goes to an address of that person's choice. A user's own is told what that user may see now.
    """
    if hook.team is None or (hook.created_by is not None and may_manage(hook.created_by, hook.team)):
        return True
    Webhook.objects.filter(id=hook.id).update(enabled=False)
    log.warning("webhook %s is switched off: who gave it to the team does not look after the team any more", hook.id)
    return False


def _plan_email(choice: NotificationSettings) -> int:
    user = choice.user
    rows = _untold(news_for(user), f"user:{user.pk}", choice.kinds)
    if choice.only_mine:
        rows = rows.filter(mine(user))
    items = list(rows[:AT_ONCE])
    if not items or not user.email or not _is_enough(choice):
        return 0
    now = timezone.now()
    with transaction.atomic():
        unchanged = NotificationSettings.objects.filter(pk=choice.pk, last_email_at=choice.last_email_at)
        if not unchanged.update(last_email_at=now):
            return 0  # another worker has just planned it
        delivery = Delivery.objects.create(channel="email", user=user, payload=email_of(items))
        _note(delivery, items, f"user:{user.pk}")
    return 1


def _is_enough(choice: NotificationSettings) -> bool:
    """Whether so many of the agents wait that the user wants to be told."""
    if not choice.minimum_share:
        return True
    running = TaskSession.objects.visible_to(choice.user).filter(desired_state=DesiredState.RUNNING)
    running = running.exclude(state__in=ENDED_STATES)
    if choice.only_mine:
        running = running.filter(owner_id=choice.user.pk)
    total = running.count()
    waiting = for_user(choice.user).filter(session__in=running).order_by().values("session").distinct().count()
    return total == 0 or waiting * 100 >= choice.minimum_share * total


def _plan_webhook(hook: Webhook) -> int:
    target = f"webhook:{hook.id}"
    rows = news_for(hook.user) if hook.user is not None else inbox_of_team(hook.team)
    made = 0
    for item in _untold(rows, target, hook.kinds).filter(created_at__gte=hook.created_at)[:AT_ONCE]:
        with transaction.atomic():
            delivery = Delivery(channel="webhook", webhook=hook)
            delivery.payload = webhook_of(item, str(delivery.id))
            delivery.save(force_insert=True)
            made += _note(delivery, [item], target)
    return made


def _untold(rows: QuerySet[AttentionItem], target: str, kinds: Sequence[str]) -> QuerySet[AttentionItem]:
    now = timezone.now()
    told = DeliveredItem.objects.filter(item=OuterRef("pk"), target=target)
    return rows.filter(
        ~Exists(told), kind__in=kinds, created_at__lte=now - GRACE, created_at__gte=now - PATIENCE
    ).order_by("created_at", "id")


def _note(delivery: Delivery, items: Iterable[AttentionItem], target: str) -> int:
    """Say of items that this delivery tells them; where another does already, they are not told twice."""
    rows = [DeliveredItem(delivery=delivery, item=item, target=target) for item in items]
    DeliveredItem.objects.bulk_create(rows, ignore_conflicts=True)
    if DeliveredItem.objects.filter(delivery=delivery).exists():
        return 1
    delivery.delete()
    return 0


def give_due() -> int:
    """Give every delivery that is due; how many were tried."""
    due = Delivery.objects.filter(state=Delivery.State.PENDING, next_attempt_at__lte=timezone.now())
    given, until = 0, time.monotonic() + ROUND
    for key in list(due.order_by("next_attempt_at").values_list("id", flat=True)[:AT_ONCE]):
        if time.monotonic() > until:
            break  # the next round goes on
        given += give(key)
    return given


def give(delivery_id: Any) -> bool:
    """Try one delivery, if nobody else does; False where it is not due."""
    now = timezone.now()
    due = Delivery.objects.filter(id=delivery_id, state=Delivery.State.PENDING, next_attempt_at__lte=now)
    if not due.update(attempts=F("attempts") + 1, next_attempt_at=now + CLAIM):
        return False
    row = Delivery.objects.select_related("user", "webhook__user", "webhook__team", "webhook__created_by").get(
        id=delivery_id
    )
    if not _is_wanted(row):
        _end(row, Delivery.State.DROPPED)
        return True
    try:
        _send(row)
    except webhook_calls.CallFailed as error:
        _failed(row, str(error), permanent=error.permanent)
    except Exception as error:  # noqa: BLE001 - each mail backend has errors of its own
        log.warning("delivery %s failed: %s", row.id, type(error).__name__)
        _failed(row, f"{type(error).__name__}: the mail server did not take it.")
    else:
        _end(row, Delivery.State.SENT)
    return True


def _is_wanted(row: Delivery) -> bool:
    """Whether it still has a receiver who may know of it, and anything of it is still true."""
    user = row.user or (row.webhook.user if row.webhook else None)
    if user is not None and not (user.is_active and (row.webhook or user.email)):
        return False
    if row.is_test:
        return True
    if row.webhook is not None and not (row.webhook.enabled and _has_rights(row.webhook)):
        return False
    rows = for_user(user) if user is not None else AttentionItem.objects.filter(resolved_at=None)
    return bool(rows.filter(deliveries=row).exists())


def _send(row: Delivery) -> None:
    if row.channel == "email":
        assert row.user is not None  # noqa: S101
        told = row.payload if row.is_test else _still_theirs(row)
        EmailMessage(told["subject"], told["text"], None, [row.user.email]).send()
        return
    assert row.webhook is not None  # noqa: S101
    body = json.dumps(row.payload, ensure_ascii=False, separators=(",", ":")).encode()
    hook = row.webhook
    webhook_calls.call(webhook_calls.Call(hook.url, hook.secret, body, str(row.id), str(row.payload["type"])))


def _still_theirs(row: Delivery) -> dict[str, str]:
    """An e-mail without what its reader may not see any more, having left a team since it was planned."""
    seen = list(visible_items(row.user).filter(deliveries=row).order_by("created_at", "id"))
    payload: dict[str, str] = row.payload
    return payload if len(seen) == row.items.count() else email_of(seen)


def _failed(row: Delivery, error: str, *, permanent: bool = False) -> None:
    if permanent or row.is_test or row.attempts >= MOST_ATTEMPTS:
        _end(row, Delivery.State.FAILED, error)
        return
    pause = min(FIRST_PAUSE * 4 ** (row.attempts - 1), LONGEST_PAUSE) * (0.75 + random.random() / 2)  # noqa: S311
    Delivery.objects.filter(id=row.id).update(last_error=error[:300], next_attempt_at=timezone.now() + pause)


def _end(row: Delivery, state: Delivery.State, error: str = "") -> None:
    values = {"state": state, "finished_at": timezone.now(), "last_error": error[:300]}
    Delivery.objects.filter(id=row.id, state=Delivery.State.PENDING).update(**values)


def forget_old() -> int:
    """Forget deliveries and items that were over a month ago; how many."""
    before = timezone.now() - KEPT
    gone, _ = Delivery.objects.exclude(state=Delivery.State.PENDING).filter(created_at__lt=before).delete()
    items, _ = AttentionItem.objects.filter(resolved_at__lt=before).delete()
    return gone + items
