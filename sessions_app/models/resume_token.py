"""The single-use key that gates answering a wait; only the hash of its secret is stored (design 10)."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils import timezone

from sessions_app.domain.tokens import Scope, TokenFacts, TokenState, WaitKind, digest, secret_of, shown, state_of
from sessions_app.models.run import Run
from sessions_app.models.scoping import TeamModel, TeamQuerySet
from sessions_app.models.session import TaskSession


class TokenQuerySet(TeamQuerySet["ResumeToken"]):
    """Keys that still count."""

    def unsettled(self) -> TokenQuerySet:
        """Those of which nothing has been said since they were minted."""
        return self.filter(consumed_at=None, revoked_at=None, expired_at=None)

    def active(self, now: datetime) -> TokenQuerySet:
        """Those that can be consumed at ``now``."""
        return self.unsettled().filter(models.Q(expires_at=None) | models.Q(expires_at__gt=now))

    def due(self, now: datetime) -> TokenQuerySet:
        """Those that are too old, of which nobody has said so."""
        return self.unsettled().filter(expires_at__lte=now)


class ResumeToken(TeamModel):
    """One key: good for one wait, once. A wait that is asked for again gets another."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="tokens")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="tokens")
    wait_kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in WaitKind])
    wait_id = models.CharField(max_length=128)
    secret_hash = models.CharField(max_length=64, unique=True)
    """SHA-256, in hexadecimal."""
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    """Who asked for the wait; None: an agent."""
    expires_at = models.DateTimeField(null=True, blank=True)
    consumed_at = models.DateTimeField(null=True, blank=True)
    consumed_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    """None: whoever had the key."""
    revoked_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=64, blank=True, default="")
    """Why it was revoked."""
    idempotency_key = models.CharField(max_length=128, blank=True, default="")
    first_answer = models.JSONField(null=True, blank=True)
    """What whoever consumed it was answered; the same idempotency key gets it again."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TokenQuerySet.as_manager()  # type: ignore[misc]

    class Meta(TeamModel.Meta):
        abstract = False
        db_table = "resume_tokens"
        ordering = ("created_at", "id")
        indexes = (
            models.Index(fields=("session", "wait_id"), name="token_of_wait"),
            models.Index(
                fields=("expires_at",),
                condition=models.Q(consumed_at=None, revoked_at=None, expired_at=None),
                name="token_due",
            ),
        )

    def __str__(self) -> str:
        return f"key {str(self.id)[:8]} of a wait ({self.wait_kind})"

    @property
    def scope(self) -> Scope:
        """The one wait that it is good for."""
        run_id = None if self.run_id is None else str(self.run_id)
        return Scope(str(self.session_id), run_id, self.wait_kind, self.wait_id)

    def state(self, now: datetime) -> TokenState:
        """Whether it opens anything at ``now``."""
        return state_of(TokenFacts(self.consumed_at, self.revoked_at, self.expired_at, self.expires_at), now)

    def seal(self) -> str:
        """Give a new row the hash of its secret; the secret."""
        secret = secret_of(str(self.id), str(settings.SECRET_KEY))
        self.secret_hash = digest(secret)
        return secret

    def secret(self) -> str | None:
        """The secret, for somebody who may have it; None where the key that made it is gone."""
        keys = (str(settings.SECRET_KEY), *map(str, settings.SECRET_KEY_FALLBACKS))
        return shown(str(self.id), self.secret_hash, keys)

    @classmethod
    def of_secret(cls, secret: str) -> ResumeToken | None:
        """The row of a secret, whatever became of it."""
        return cls.objects.select_related("consumed_by").filter(secret_hash=digest(secret)).first()
