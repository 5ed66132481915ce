"""Keys of the API: named, for reading or for all that their user may do, with an end, and kept as hashes alone."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from datetime import datetime, timedelta
from typing import Any, Final, Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

PREFIX: Final = "kdv_"
"""How a key begins, so that whoever finds one lying about knows what it is."""
SHOWN: Final = len(PREFIX) + 4
"""Characters of a key that its list shows; the other 39 are known to nobody but who was given it."""
COARSE: Final = timedelta(hours=1)
"""How exactly the last use is kept: a program that asks often writes seldom."""


def digest_of(key: str) -> str:
    """What is kept of a key: SHA-256, which is enough for 256 random bits."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class ApiTokens(models.QuerySet["ApiToken"]):
    """Keys, and those that open something."""

    def live(self, now: datetime | None = None) -> Self:
        """Neither ended nor taken back, and of a user who is active."""
        lasts = Q(expires_at=None) | Q(expires_at__gt=now or timezone.now())
        return self.filter(lasts, revoked_at=None, user__is_active=True)


class ApiToken(models.Model):
    """A key for programs, in the name of its user. Its secret is shown once, when it is made."""

    class Scope(models.TextChoices):
        """What may be done with it; never more than its user may."""

        READ = "read", "Read"
        WRITE = "write", "Read and write"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    scope = models.CharField(max_length=5, choices=Scope.choices, default=Scope.READ)
    secret_hash = models.CharField(max_length=64, unique=True)
    begins_with = models.CharField(max_length=12, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = ApiTokens.as_manager()

    class Meta:
        db_table = "api_tokens"
        verbose_name = "API token"
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"API token {self.name!r} of {self.user_id}"

    @property
    def reads_only(self) -> bool:
        """Whether nothing can be changed with it."""
        return self.scope == self.Scope.READ

    @property
    def is_over(self) -> bool:
        """Whether it opens nothing any more."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= timezone.now())

    @classmethod
    def mint(cls, user: Any, name: str, scope: str, lifetime: timedelta | None) -> tuple[ApiToken, str]:
        """A new key of ``user``: the row, and the secret, which is nowhere else; without a lifetime it has no end."""
        key = PREFIX + secrets.token_urlsafe(32)
        return cls.keep(user, key, name, scope, lifetime), key

    @classmethod
    def keep(cls, user: Any, key: str, name: str, scope: str, lifetime: timedelta | None) -> ApiToken:
        """The row of a key that is known already."""
        return cls.objects.create(
            user=user,
            name=name,
            scope=scope,
            secret_hash=digest_of(key),
            begins_with=key[:SHOWN],
            expires_at=timezone.now() + lifetime if lifetime else None,
        )

    @classmethod
    def of_key(cls, key: str) -> ApiToken | None:
        """The live row of a key, with its user; None for any other."""
        return cls.objects.live().filter(secret_hash=digest_of(key)).select_related("user").first()
