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
from django.contrib.auth.models import User
from django.db import connection, models, transaction
from django.db.models import F, Q
from django.utils import timezone

from sessions_app.kernel.rules.wording import count_text


class TeamRole(models.Model):
    """The role of one member in one team (a group of users). Without a row a member is a full member.

    A role alone gives no rights: only ``User.groups`` makes someone a member.
    """

    class Role(models.TextChoices):
        """What a member may do in the team."""

        ADMIN = "admin", "Admin: a member who also manages the members"
        MEMBER = "member", "Member: reads and writes"
        VIEWER = "viewer", "Viewer: reads"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="team_roles")
    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="roles")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        db_table = "team_roles"
        ordering = ("team__name", "user__username")
        constraints = (models.UniqueConstraint(fields=("user", "team"), name="one_role_per_member"),)
        permissions = (
            ("operate_unisolated", "Can use shells and write files where agents are not isolated"),
            ("merge_branches", "Members can merge branches of sessions"),
            ("push_branches", "Members can push branches of sessions"),
        )

    def __str__(self) -> str:
        return f"{self.role} {self.user_id} of team {self.team_id}"


BROWSER_TIME_ZONE: Final = ""
"""Use the time zone of the browser."""


@cache
def time_zone_names() -> tuple[str, ...]:
    """Return the names of time zones that are places, such as ``Europe/Berlin``, and ``UTC``."""
    places = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "SystemV/")))
    return ("UTC", *places)


class Preferences(models.Model):
    """The display preferences of one user. Without a row everything follows the browser."""

    class Theme(models.TextChoices):
        """The color theme."""

        SYSTEM = "system", "Same as the system"
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
"""Rows kept at once (about 10 MB), so that attempts from ever new addresses cannot fill the disk."""
_TRIM_EVERY: Final = 100
"""On average, one in this many new rows triggers the deletion of expired rows."""


class AttemptCount(models.Model):
    """The attempts of one kind by one caller, within a window of time that begins with the first."""

    key = models.CharField(max_length=64, primary_key=True)
    """SHA-256 of kind and caller, so that rows contain no name or address."""
    tries = models.PositiveIntegerField()
    ends_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "attempt_counts"
        ordering = ("ends_at",)

    def __str__(self) -> str:
        return f"{count_text(self.tries, 'attempt')} until {self.ends_at}"

    @classmethod
    def add(cls, key: str, window: timedelta) -> int:
        """Count one attempt; return the number of attempts in this window, this one included."""
        now = timezone.now()
        adapt = connection.ops.adapt_datetimefield_value
        with transaction.atomic(), connection.cursor() as cursor:
            # One statement, so that concurrent attempts each get their own number and none slips under the limit.
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
        """Subtract one attempt."""
        cls.objects.filter(key=key, tries__gt=0).update(tries=F("tries") - 1)

    @classmethod
    def live(cls, key: str) -> AttemptCount | None:
        """Return the counter whose window is still open, or None."""
        return cls.objects.filter(key=key, ends_at__gt=timezone.now()).first()

    @classmethod
    def trim(cls) -> None:
        """Delete expired counters and, if there are too many, those that expire first."""
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
"""Lifetime of a link that is passed on by other means, such as a message."""


def secret_digest(secret: str) -> str:
    """Return the SHA-256 under which a link or token is stored; 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class LoginLink(models.Model):
    """A link that logs a user in once; only the hash of its secret is stored."""

    class Purpose(models.TextChoices):
        """What the link is for."""

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
        cls, user: User, lifetime: timedelta = LOGIN_LINK_LIFETIME, purpose: str = Purpose.LOGIN, made_by: Any = None
    ) -> str:
        """Create a link for ``user`` and return its secret, of which only the hash is stored."""
        secret = secrets.token_urlsafe(32)
        cls.objects.create(
            user=user,
            secret_hash=secret_digest(secret),
            purpose=purpose,
            made_by=made_by,
            expires_at=timezone.now() + lifetime,
        )
        return secret

    @classmethod
    def live(cls, secret: str) -> LoginLink | None:
        """Return the link of a valid secret without using it up; None for any other."""
        return cls._live(secret, timezone.now()).select_related("user").first()

    @classmethod
    def _live(cls, secret: str, now: datetime) -> models.QuerySet[LoginLink]:
        return cls.objects.filter(
            secret_hash=secret_digest(secret), used_at=None, expires_at__gt=now, user__is_active=True
        )

    @classmethod
    def consume(cls, secret: str) -> LoginLink | None:
        """Use up the link of a valid secret and return it; None for any other."""
        now = timezone.now()
        # One UPDATE checks and uses up the link, so that of two concurrent requests only one logs in.
        if cls._live(secret, now).update(used_at=now) != 1:
            return None
        return cls.objects.select_related("user").get(secret_hash=secret_digest(secret))

    @classmethod
    def forget(cls, user: User) -> None:
        """Expire all unused links of ``user``."""
        now = timezone.now()
        cls.objects.filter(user=user, used_at=None, expires_at__gt=now).update(expires_at=now)


KEY_PREFIX: Final = "kdv_"
"""Prefix of every token, so that secret scanners and people recognize one."""
SHOWN_CHARACTERS: Final = len(KEY_PREFIX) + 4
"""Characters of a token that lists show; the other 39 are not stored."""
LAST_USED_PRECISION: Final = timedelta(hours=1)
"""Precision of ``last_used_at``, so that frequent requests cause few writes."""


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    """A queryset of tokens."""

    def live(self, now: datetime | None = None) -> Self:
        """Return the tokens that are neither expired nor revoked, of active users."""
        lasts = Q(expires_at=None) | Q(expires_at__gt=now or timezone.now())
        return self.filter(lasts, revoked_at=None, user__is_active=True)


class ApiToken(models.Model):
    """A token with which a program acts for its user. Its secret is shown once, when it is created."""

    class Scope(models.TextChoices):
        """What the token allows; never more than its user may do."""

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
        """Whether the token is read-only."""
        return self.scope == self.Scope.READ

    @property
    def is_over(self) -> bool:
        """Whether the token has expired or was revoked."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= timezone.now())

    @classmethod
    def mint(cls, user: User, name: str, scope: str, lifetime: timedelta | None) -> tuple[ApiToken, str]:
        """Create a token; return its row and its secret, which is not stored. Without a lifetime it does not expire."""
        key = KEY_PREFIX + secrets.token_urlsafe(32)
        return cls.keep(user, key, name, scope, lifetime), key

    @classmethod
    def keep(cls, user: User, key: str, name: str, scope: str, lifetime: timedelta | None) -> ApiToken:
        """Store the hash of an existing token."""
        expires_at = None
        if lifetime:
            expires_at = timezone.now() + lifetime
        return cls.objects.create(
            user=user,
            name=name,
            scope=scope,
            secret_hash=secret_digest(key),
            begins_with=key[:SHOWN_CHARACTERS],
            expires_at=expires_at,
        )

    @classmethod
    def find_live(cls, key: str) -> ApiToken | None:
        """Return the row of a live token, with its user; None for any other."""
        return cls.objects.live().filter(secret_hash=secret_digest(key)).select_related("user").first()
