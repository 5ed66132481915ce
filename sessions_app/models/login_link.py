"""One-time login links: single use, ten minutes, confirmed by a POST (rule 42)."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

LIFETIME = timedelta(minutes=10)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class LoginLink(models.Model):
    """A link that logs a user in once; only the hash of its secret is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    secret_hash = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "login_links"
        ordering = ("-expires_at",)

    def __str__(self) -> str:
        return f"login link of {self.user_id}"

    @classmethod
    def mint(cls, user: Any) -> str:
        """A new secret for ``user``; shown once, stored as a hash."""
        secret = secrets.token_urlsafe(32)
        cls.objects.create(user=user, secret_hash=_digest(secret), expires_at=timezone.now() + LIFETIME)
        return secret

    @classmethod
    def user_of(cls, secret: str) -> Any | None:
        """The user of a live secret, which stays live; None for any other."""
        link = cls._live(secret, timezone.now()).select_related("user").first()
        return link.user if link else None

    @classmethod
    def _live(cls, secret: str, now: datetime) -> models.QuerySet[LoginLink]:
        return cls.objects.filter(secret_hash=_digest(secret), used_at=None, expires_at__gt=now, user__is_active=True)

    @classmethod
    def consume(cls, secret: str) -> Any | None:
        """The user of a live secret, which is used up by this; None for any other."""
        now = timezone.now()
        if cls._live(secret, now).update(used_at=now) != 1:
            return None
        return cls.objects.select_related("user").get(secret_hash=_digest(secret)).user
