"""Models of accounts: team roles, preferences, attempt counters, login links and API tokens."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, Self
from zoneinfo import available_timezones

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import F, Q
from django.utils import timezone


class TeamRole(models.Model):
    """The role of one member in one team (a group of users). Without a row a member is a full member.

    It gives nothing to somebody who is not in the team: who is in it says ``User.groups`` alone.
    """

    class Role(models.TextChoices):
        """The roles of rule 39, and who looks after the team."""

        ADMIN = "admin", "Admin: a member who also says who is in the team"
        MEMBER = "member", "Member: reads and writes"
        VIEWER = "viewer", "Viewer: reads"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="team_roles")
    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="roles")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        db_table = "team_roles"
        ordering = ("team__name", "user__username")
        constraints = (models.UniqueConstraint(fields=("user", "team"), name="one_role_per_member"),)
        permissions = (("operate_unisolated", "Can use shells and write files where agents are not isolated"),)

    def __str__(self) -> str:
        return f"{self.role} {self.user_id} of team {self.team_id}"


BROWSER_TIME_ZONE: Final = ""
"""The zone of whoever looks is their browser's own."""


@cache
def time_zone_names() -> tuple[str, ...]:
    """The names of places that have a time: ``Europe/Berlin``, and ``UTC``."""
    places = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "SystemV/")))
    return ("UTC", *places)


class Preferences(models.Model):
    """One user's choices. Without a row everything follows the browser."""

    class Theme(models.TextChoices):
        """Light or dark."""

        SYSTEM = "system", "Like the system"
        LIGHT = "light", "Light"
        DARK = "dark", "Dark"

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="preferences")
    theme = models.CharField(max_length=6, choices=Theme.choices, default=Theme.SYSTEM)
    time_zone = models.CharField(max_length=64, blank=True, default=BROWSER_TIME_ZONE)

    class Meta:
        db_table = "preferences"
        verbose_name_plural = "preferences"

    def __str__(self) -> str:
        return f"preferences of {self.user_id}"


MAX_ATTEMPT_ROWS: Final = 50_000
"""Counts that are kept at once, for whoever tries from ever new addresses; about 10 MB."""
_TRIM_EVERY: Final = 100
"""About one in so many new counts deletes those that are over."""


class AttemptCount(models.Model):
    """The attempts of one kind by one caller, within a window of time that begins with the first."""

    key = models.CharField(max_length=64, primary_key=True)
    """SHA-256 of kind and caller, so that no row tells a name or an address."""
    tries = models.PositiveIntegerField()
    ends_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "attempt_counts"
        ordering = ("ends_at",)

    def __str__(self) -> str:
        return f"{self.tries} attempts until {self.ends_at}"

    @classmethod
    def add(cls, key: str, window: timedelta) -> int:
        """Count one attempt; how many there were in this window, with this one."""
        now = timezone.now()
        adapt = connection.ops.adapt_datetimefield_value
        with transaction.atomic(), connection.cursor() as cursor:
            # One statement: of many attempts at once each gets a number of its own.
            cursor.execute(
                "INSERT INTO attempt_counts (key, tries, ends_at) VALUES (%s, 1, %s) ON CONFLICT (key) DO UPDATE SET"
                " tries = CASE WHEN attempt_counts.ends_at <= %s THEN 1 ELSE attempt_counts.tries + 1 END, ends_at ="
                " CASE WHEN attempt_counts.ends_at <= %s THEN EXCLUDED.ends_at ELSE attempt_counts.ends_at END"
                " RETURNING tries",
                [key, adapt(now + window), adapt(now), adapt(now)],
            )
            tries = int(cursor.fetchone()[0])
        if tries == 1 and secrets.randbelow(_TRIM_EVERY) == 0:
            cls.trim()
        return tries

    @classmethod
    def take_back(cls, key: str) -> None:
        """One attempt less."""
        cls.objects.filter(key=key, tries__gt=0).update(tries=F("tries") - 1)

    @classmethod
    def live(cls, key: str) -> AttemptCount | None:
        """The count whose window is not over; None where nothing was tried."""
        return cls.objects.filter(key=key, ends_at__gt=timezone.now()).first()

    @classmethod
    def trim(cls) -> None:
        """Delete the counts that are over, and those that end first where there are too many."""
        cls.objects.filter(ends_at__lte=timezone.now()).delete()
        last_kept = (
            cls.objects.order_by("-ends_at")
            .values_list("ends_at", flat=True)[MAX_ATTEMPT_ROWS : MAX_ATTEMPT_ROWS + 1]
            .first()
        )
        if last_kept is not None:
            cls.objects.filter(ends_at__lte=last_kept).delete()


LOGIN_LINK_LIFETIME: Final = timedelta(minutes=10)
INVITATION_LIFETIME: Final = timedelta(hours=24)
"""For a link that reaches somebody by another way than at once."""


def _login_link_digest(secret: str) -> str:
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
    def mint(
        cls, user: Any, lifetime: timedelta = LOGIN_LINK_LIFETIME, purpose: str = Purpose.LOGIN, made_by: Any = None
    ) -> str:
        """A new secret for ``user``; shown once, stored as a hash."""
        secret = secrets.token_urlsafe(32)
        cls.objects.create(
            user=user,
            secret_hash=_login_link_digest(secret),
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
        return cls.objects.filter(
            secret_hash=_login_link_digest(secret), used_at=None, expires_at__gt=now, user__is_active=True
        )

    @classmethod
    def consume(cls, secret: str) -> LoginLink | None:
        """The link of a live secret, which is used up by this; None for any other."""
        now = timezone.now()
        if cls._live(secret, now).update(used_at=now) != 1:
            return None
        return cls.objects.select_related("user").get(secret_hash=_login_link_digest(secret))

    @classmethod
    def forget(cls, user: Any) -> None:
        """Whatever links of ``user`` are still about lead nowhere any more."""
        now = timezone.now()
        cls.objects.filter(user=user, used_at=None, expires_at__gt=now).update(expires_at=now)


KEY_PREFIX: Final = "kdv_"
"""How a key begins, so that whoever finds one lying about knows what it is."""
SHOWN_CHARACTERS: Final = len(KEY_PREFIX) + 4
"""Characters of a key that its list shows; the other 39 are known to nobody but who was given it."""
LAST_USED_PRECISION: Final = timedelta(hours=1)
"""How exactly the last use is kept: a program that asks often writes seldom."""


def token_digest(key: str) -> str:
    """What is kept of a key: SHA-256, which is enough for 256 random bits."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
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

    objects = ApiTokenQuerySet.as_manager()

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
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        return cls.keep(user, key, name, scope, lifetime), key

    @classmethod
    def keep(cls, user: Any, key: str, name: str, scope: str, lifetime: timedelta | None) -> ApiToken:
        """The row of a key that is known already."""
        return cls.objects.create(
            user=user,
            name=name,
            scope=scope,
            secret_hash=token_digest(key),
            begins_with=key[:SHOWN_CHARACTERS],
            expires_at=timezone.now() + lifetime if lifetime else None,
        )

    @classmethod
    def find_live(cls, key: str) -> ApiToken | None:
        """The live row of a key, with its user; None for any other."""
        return cls.objects.live().filter(secret_hash=token_digest(key)).select_related("user").first()
