"""One-time login links: single use, a short life, confirmed by a POST (rule 42)."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import models
from django.utils import timezone

LIFETIME: Final = timedelta(minutes=10)
INVITATION: Final = timedelta(hours=24)
"""For a link that reaches somebody by another way than at once."""


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class LoginLink(models.Model):
    """A link that logs a user in once; only the hash of its secret is stored."""

    class Purpose(models.TextChoices):
        """What its user comes for."""

        LOGIN = "login", "Log in"
        PASSWORD = "password", "Set a new password"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    secret_hash = models.CharField(max_length=64, unique=True)
    purpose = models.CharField(max_length=10, choices=Purpose.choices, default=Purpose.LOGIN)
    made_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "login_links"
        ordering = ("-expires_at",)

    def __str__(self) -> str:
        return f"login link of {self.user_id}"

    @classmethod
    def mint(cls, user: Any, lifetime: timedelta = LIFETIME, purpose: str = Purpose.LOGIN, made_by: Any = None) -> str:
        """A new secret for ``user``; shown once, stored as a hash."""
        secret = secrets.token_urlsafe(32)
        cls.objects.create(
            user=user,
            secret_hash=_digest(secret),
            purpose=purpose,
            made_by=made_by,
            expires_at=timezone.now() + lifetime,
        )
        return secret

    @classmethod
    def live(cls, secret: str) -> LoginLink | None:
        """The link of a live secret, which stays live; None for any other."""
        return cls._live(secret, timezone.now()).select_related("user").first()

    @classmethod
    def _live(cls, secret: str, now: datetime) -> models.QuerySet[LoginLink]:
        return cls.objects.filter(secret_hash=_digest(secret), used_at=None, expires_at__gt=now, user__is_active=True)

    @classmethod
    def consume(cls, secret: str) -> LoginLink | None:
        """The link of a live secret, which is used up by this; None for any other."""
        now = timezone.now()
        if cls._live(secret, now).update(used_at=now) != 1:
            return None
        return cls.objects.select_related("user").get(secret_hash=_digest(secret))

    @classmethod
    def forget(cls, user: Any) -> None:
        """Whatever links of ``user`` are still about lead nowhere any more."""
        now = timezone.now()
        cls.objects.filter(user=user, used_at=None, expires_at__gt=now).update(expires_at=now)
