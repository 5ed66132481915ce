"""The history of teams and repositories: who changed their settings and members, and when.

It is Django's own history of the admin, so changes made on pages, by the API and in the admin are in one list.
"""

from __future__ import annotations

import logging
from typing import Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.db.models import Model

log = logging.getLogger(__name__)

SHOWN_CHANGES: Final = 10
_NAME_LENGTH: Final = 200


def record_change(by: User | None, row: Model, what: str) -> None:
    """Add a line to the history of ``row``, in the caller's transaction; after the commit, also to our own log.

    ``by`` is None for somebody at the command line, whom only the log of the process names.
    """
    kind, key = row._meta.verbose_name, str(row.pk)
    if by is None:
        about = {"kind": str(kind), "row": key}
        transaction.on_commit(lambda: log.info("%s %s: %s, at the command line", kind, row, what, extra=about))
        return
    LogEntry.objects.create(
        user=by,
        content_type=ContentType.objects.get_for_model(row),
        object_id=str(row.pk),
        object_repr=str(row)[:_NAME_LENGTH],
        action_flag=CHANGE,
        change_message=what,
    )
    user = by.pk
    known = {"kind": str(kind), "row": key, "user_id": user}
    transaction.on_commit(lambda: log.info("%s %s: %s, by user %s", kind, key, what, user, extra=known))


def recent_changes(row: Model) -> list[LogEntry]:
    """Return the newest lines of the history of ``row``."""
    kind = ContentType.objects.get_for_model(row)
    rows = LogEntry.objects.filter(content_type=kind, object_id=str(row.pk)).select_related("user")
    return list(rows.order_by("-action_time", "-id")[:SHOWN_CHANGES])
