"""Models of notifications: settings, webhooks, devices, deliveries."""

from __future__ import annotations

import secrets
import uuid
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.encryption import EncryptedTextField
from executors_app.orm import ListField, ObjectField
from sessions_app.attention.models import AttentionItem
from sessions_app.attention.rules.notices import AttentionKind

NOTIFIED_KINDS: Final = tuple(kind.value for kind in AttentionKind)
CHANNELS: Final = ("email", "webhook", "push")
DIGEST_CHOICES: Final = ((5, "every 5 minutes"), (15, "every 15 minutes"), (60, "once an hour"), (1440, "once a day"))
"""Choices for the minimum number of minutes between two e-mails to one user."""


def all_kinds() -> list[str]:
    """Return every attention kind."""
    return list(NOTIFIED_KINDS)


def new_secret() -> str:
    """Return a new secret to sign webhook requests with (256 bits)."""
    return f"whsec_{secrets.token_urlsafe(32)}"


class NotificationSettings(models.Model):
    """The e-mail settings of one user. Without a row no e-mail is sent."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="notification_settings"
    )
    email = models.BooleanField("Send me e-mail", default=False)
    kinds = ListField(default=all_kinds, blank=True)
    only_mine = models.BooleanField("Only for sessions that I own", default=False)
    every = models.PositiveIntegerField("At most", choices=DIGEST_CHOICES, default=15)
    minimum_share = models.PositiveSmallIntegerField("Only when this share of the agents is waiting", default=0)
    """Minimum percentage of running sessions with open items; 0: no minimum."""
    browser_kinds = models.CharField(max_length=500, blank=True, default="", db_default="")
    """Kinds of which the user's browsers show notifications, separated by spaces; empty: none."""
    last_email_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "notification_settings"
        verbose_name_plural = "notification settings"

    def __str__(self) -> str:
        return f"notification settings of {self.user_id}"

    def is_due(self) -> bool:
        """Return whether the last e-mail was long enough ago."""
        return self.last_email_at is None or timezone.now() - self.last_email_at >= timedelta(minutes=self.every)


class Webhook(models.Model):
    """A URL that gets a signed request for each inbox item, of a user or of a whole team."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, blank=True, related_name="webhooks")
    team = models.ForeignKey("auth.Group", models.CASCADE, null=True, blank=True, related_name="webhooks")
    url = models.CharField(max_length=500)
    secret = EncryptedTextField(default=new_secret, editable=False)
    kinds = ListField(default=all_kinds, blank=True)
    enabled = models.BooleanField(default=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "webhooks"
        ordering = ("created_at", "id")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(user=None) ^ models.Q(team=None), name="webhook_of_a_user_or_of_a_team"
            ),
        )

    def __str__(self) -> str:
        return f"webhook {str(self.id)[:8]}"


class PushKey(models.Model):
    """A key with which this deployment signs what it hands to push services; each device keeps to one of them.

    There is one, and another one after the loss of the SECRET_KEY with which it is encrypted.
    """

    public_key = models.CharField(primary_key=True, max_length=100, editable=False)
    """An uncompressed point of P-256 in base64url, with which browsers subscribe."""
    private_key = EncryptedTextField(editable=False)
    """As PEM."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "push_keys"
        ordering = ("-created_at", "public_key")

    def __str__(self) -> str:
        return f"push key {self.public_key[:8]}"


class PushDevice(models.Model):
    """A browser that a user's notifications are pushed to while the user is signed in there."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="push_devices", db_constraint=False)
    name = models.CharField(max_length=80)
    kinds = ListField(default=list, blank=True)
    service = models.CharField(max_length=255)
    """The host of the push service."""
    endpoint = EncryptedTextField(editable=False)
    """The address of the subscription, which the browser got from its push service."""
    endpoint_digest = models.CharField(max_length=64, editable=False)
    signed_with = models.ForeignKey(PushKey, models.PROTECT, related_name="devices", editable=False)
    key = models.CharField(max_length=100, editable=False)
    auth = EncryptedTextField(editable=False)
    """With ``key``, what only this browser decrypts is encrypted with; both as the browser wrote them."""
    sign_in = EncryptedTextField(editable=False)
    """The key of the session in which the user is signed in there."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        db_table = "push_devices"
        ordering = ("created_at", "id")
        constraints = (
            models.UniqueConstraint(fields=("user", "endpoint_digest"), name="one_push_device_per_user_and_endpoint"),
        )

    def __str__(self) -> str:
        return f"{self.name} {str(self.id)[:8]}"


class Delivery(models.Model):
    """One e-mail, webhook request or push message, which is retried until it succeeds or has failed too often."""

    class State(models.TextChoices):
        """The state of a delivery."""

        PENDING = "pending"
        SENT = "sent"
        FAILED = "failed"
        DROPPED = "dropped"
        """Not sent, because its items were resolved before, or its receiver disabled it or may no longer get it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    """Sent with each attempt, so that the receiver can recognize a repetition."""
    channel = models.CharField(max_length=8, choices=[(name, name) for name in CHANNELS])
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, blank=True, related_name="+")
    webhook = models.ForeignKey(Webhook, models.CASCADE, null=True, blank=True, related_name="deliveries")
    device = models.ForeignKey(PushDevice, models.SET_NULL, null=True, blank=True, related_name="deliveries")
    """Where it is pushed to; null for other channels, and once the device was removed."""
    items = models.ManyToManyField(AttentionItem, through="DeliveredItem", related_name="deliveries")
    payload = ObjectField(default=dict)
    """The body of a webhook request, subject and text of an e-mail, or what a push message says."""
    is_test = models.BooleanField(default=False)
    state = models.CharField(max_length=8, choices=State.choices, default=State.PENDING)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(default=timezone.now)
    last_error = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "notification_deliveries"
        verbose_name_plural = "deliveries"
        ordering = ("-created_at", "id")
        indexes = (models.Index(fields=("state", "next_attempt_at"), name="delivery_due"),)

    def __str__(self) -> str:
        return f"{self.channel} {str(self.id)[:8]} ({self.state})"


class DeliveredItem(models.Model):
    """Records that one receiver is notified of one item, so that it happens only once."""

    delivery = models.ForeignKey(Delivery, models.CASCADE, related_name="+")
    item = models.ForeignKey(AttentionItem, models.CASCADE, related_name="told")
    target = models.CharField(max_length=64)
    """``user:<id>``, ``webhook:<id>`` or ``push:<id>``."""

    class Meta:
        db_table = "notification_items"
        constraints = (models.UniqueConstraint(fields=("item", "target"), name="one_telling_per_item_and_target"),)

    def __str__(self) -> str:
        return f"{self.item_id} to {self.target}"
