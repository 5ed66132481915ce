"""Which versions of changed files a user has viewed, in a bounded list for each user and session."""

from __future__ import annotations

from typing import Final

from django.contrib.auth.models import User

from sessions_app.models import TaskSession, ViewedVersion

MAX_VIEWED: Final = 2000
"""Versions of one user in one session, as many as files are listed; beyond them, the oldest marks are removed."""


def viewed_versions(session: TaskSession, user: User) -> list[str]:
    """Return the versions that the user has marked, the oldest first."""
    return list(session.viewed_versions.filter(user=user).values_list("version", flat=True))


def mark_viewed(session: TaskSession, user: User, version: str, *, viewed: bool) -> None:
    """Set or remove the mark of one version; repeating this changes nothing."""
    own = ViewedVersion.objects.filter(session=session, user=user)
    if not viewed:
        own.filter(version=version).delete()
        return
    ViewedVersion.objects.bulk_create(
        [ViewedVersion(session=session, user=user, version=version)], ignore_conflicts=True
    )
    newest = own.order_by("-id").values_list("id", flat=True)
    oldest = list(newest[MAX_VIEWED : MAX_VIEWED + 1])
    if oldest:
        own.filter(id__lte=oldest[0]).delete()
