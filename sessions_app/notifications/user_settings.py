"""Notification settings of users and teams: e-mail, webhooks and their secrets, tests."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Q, QuerySet
from django_q.tasks import async_task

from sessions_app.accounts.authorization import managed_teams, may_manage
from sessions_app.accounts.rate_limits import AttemptLimit
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.services.errors import Conflict, Invalid, NotFound, ReadOnly
from sessions_app.notifications import webhooks
from sessions_app.notifications.delivery import render_test_email, render_test_push
from sessions_app.notifications.models import (
    NOTIFIED_KINDS,
    Delivery,
    NotificationSettings,
    PushDevice,
    Webhook,
    new_secret,
)
from sessions_app.notifications.webhook_address import InvalidWebhookAddress

MAX_WEBHOOKS: Final = 10
"""Maximum number of webhooks of one user, and of one team."""
_test_limit: Final = AttemptLimit("notification-test", 10, 300)
"""Limit for all tests of one user together."""
_team_test_limit: Final = AttemptLimit("notification-test-team", 30, 300)
"""Limit for all tests of a team's webhooks, and of its members, together."""
GIVE_TASK: Final = "sessions_app.tasks.notifications.give"


def get_settings(user: User) -> NotificationSettings:
    """Return the e-mail settings of a user; an unsaved row if there are none."""
    found: NotificationSettings | None = NotificationSettings.objects.filter(user_id=user.pk).first()
    return found or NotificationSettings(user=user)


def kinds_for(user: User) -> list[str]:
    """Return the kinds of items that a user can be told of: those of the deployment are only for staff."""
    return [kind for kind in NOTIFIED_KINDS if user.is_staff or kind != AttentionKind.SYSTEM]


def _require_kinds(user: User, kinds: Collection[str]) -> None:
    if set(kinds) - set(kinds_for(user)):
        raise ReadOnly(f"Only staff can be notified of items of the kind “{AttentionKind.SYSTEM}”. Leave it out.")


def change_settings(user: User, values: Mapping[str, Any]) -> NotificationSettings:
    """Change e-mail settings, which form and serializer have checked; omitted ones stay.

    Raise Conflict without an address or a mail server, ReadOnly for a kind that is only for staff.
    """
    changed = dict(values)
    if "kinds" in changed:
        _require_kinds(user, changed["kinds"])
        # What is not offered is not unchosen: somebody who becomes staff later is told as everybody is at first.
        hidden = set(get_settings(user).kinds) - set(kinds_for(user))
        changed["kinds"] = [*changed["kinds"], *sorted(hidden)]
    if changed.get("email"):
        _require_mail(user)
    row, _ = NotificationSettings.objects.update_or_create(user_id=user.pk, defaults=changed)
    return row


def change_browser_kinds(user: User, kinds: Sequence[str]) -> None:
    """Choose the kinds of items of which the user's browsers show notifications."""
    values = {"browser_kinds": " ".join(kind for kind in NOTIFIED_KINDS if kind in kinds)}
    NotificationSettings.objects.update_or_create(user_id=user.pk, defaults=values)


def _require_mail(user: User) -> None:
    if not settings.KANDEV_EMAIL:
        raise Conflict("E-mail is not configured. Staff can set a mail server with KANDEV_EMAIL_URL.")
    if not user.email:
        raise Conflict("Your account has no e-mail address. Add it to your profile first.")


def list_webhooks(user: User) -> QuerySet[Webhook]:
    """Return the user's own webhooks and those of teams that the user manages; for staff, of every team."""
    teams = Q(team__in=managed_teams(user))
    if user.is_staff:
        teams = Q(user=None)
    return Webhook.objects.filter(Q(user_id=user.pk) | teams).select_related("team")


def find_webhook(user: User, webhook_id: uuid.UUID) -> Webhook:
    """Return one of these webhooks; raise NotFound for any other."""
    found: Webhook | None = list_webhooks(user).filter(id=webhook_id).first()
    if found is None:
        raise NotFound("There is no such webhook.")
    return found


def create_webhook(user: User, url: str, kinds: Sequence[str] | None = None, team: Group | None = None) -> Webhook:
    """Create a webhook of the user, or of a team that the user manages. Its secret is shown only once.

    ``kinds``: None: all that the user can be told of. Raises Invalid for an address that webhooks may not use, Conflict
    for too many, ReadOnly.
    """
    if kinds is None:
        kinds = kinds_for(user)
    _require_kinds(user, kinds)
    if team is not None and not may_manage(user, team):
        raise ReadOnly("Only staff and the team’s admins can add webhooks to the team.")
    _validate_url(url)
    owner: dict[str, Any] = {"user_id": user.pk}
    if team is not None:
        owner = {"team": team}
    with transaction.atomic():
        if Webhook.objects.filter(**owner).count() >= MAX_WEBHOOKS:
            raise Conflict(f"There are already {MAX_WEBHOOKS} webhooks. Remove one that is no longer used.")
        return Webhook.objects.create(url=url, kinds=list(kinds), created_by_id=user.pk, **owner)


def change_webhook(user: User, hook: Webhook, values: Mapping[str, Any]) -> Webhook:
    """Change URL or kinds, or switch the webhook on or off; omitted values stay.

    A team's webhook is called as long as the user who created it, or changed it last, manages the team.
    """
    _require_kinds(user, values.get("kinds", ()))
    if "url" in values:
        _validate_url(values["url"])
    for name, value in values.items():
        setattr(hook, name, value)
    hook.created_by_id = user.pk
    hook.save(update_fields=[*values, "created_by"])
    return hook


def rotate_secret(hook: Webhook) -> str:
    """Return a new secret, which is shown only once and replaces the earlier one."""
    secret = new_secret()
    hook.secret = secret
    hook.save(update_fields=["secret"])
    return secret


def _validate_url(url: str) -> None:
    try:
        webhooks.check_address(url)
    except InvalidWebhookAddress as error:
        raise Invalid(str(error), field="url") from error
    except OSError as error:
        raise Invalid("This host name cannot be resolved.", field="url") from error


def send_test_email(user: User) -> Delivery:
    """Have the worker send a test e-mail at once. Raise Conflict or Throttled."""
    _require_mail(user)
    _count_test(user, None)
    return _enqueue_delivery(Delivery(channel="email", user_id=user.pk, is_test=True, payload=render_test_email()))


def send_test_call(user: User, hook: Webhook) -> Delivery:
    """Have the worker send a ``ping`` to the webhook, once. Raise Throttled."""
    _count_test(user, hook.team_id)
    delivery = Delivery(channel="webhook", webhook=hook, is_test=True)
    delivery.payload = {"type": "ping", "delivery_id": str(delivery.id), "webhook_id": str(hook.id)}
    return _enqueue_delivery(delivery)


def send_test_push(user: User, device: PushDevice) -> Delivery:
    """Have the worker push a test to one of the user's devices, once. Raise Throttled."""
    _count_test(user, None)
    return _enqueue_delivery(
        Delivery(channel="push", user_id=user.pk, device=device, is_test=True, payload=render_test_push())
    )


def _count_test(user: User, team_id: int | None) -> None:
    """Count a test of the user for the team with this id, or for all teams of the user. Raise Throttled."""
    _test_limit.require(str(user.pk))
    team_ids = [team_id]
    if team_id is None:
        team_ids = list(user.groups.values_list("id", flat=True))
    for counted in team_ids:
        _team_test_limit.require(str(counted))


def _enqueue_delivery(delivery: Delivery) -> Delivery:
    """Store the delivery first: if the worker's task is lost, the next round sends it."""
    delivery.save(force_insert=True)
    transaction.on_commit(lambda: async_task(GIVE_TASK, delivery.id, task_name=f"delivery-{delivery.id}"))
    return delivery


def list_deliveries(user: User) -> QuerySet[Delivery]:
    """Return the deliveries to the user and to webhooks that the user can see, newest first."""
    rows = Delivery.objects.filter(Q(user_id=user.pk) | Q(webhook__in=list_webhooks(user)))
    return rows.select_related("webhook__team", "device").order_by("-created_at", "id")
