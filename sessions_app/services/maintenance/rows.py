"""Rows that only tell of the past: links, logins, settled keys, sweeps, failed tasks."""

from __future__ import annotations

from django.conf import settings
from django.contrib.sessions.models import Session as WebSession
from django.db.models import Q
from django.utils import timezone
from django_q.models import Failure, Success

from sessions_app.domain.states import OPEN_RUN_STATES
from sessions_app.models import (
    AttemptCount,
    AttentionItem,
    Delivery,
    LoginLink,
    PermissionRequest,
    RecoverySweep,
    ResumeToken,
    SweepRequest,
    metric_count,
)
from sessions_app.services import counted
from sessions_app.services.maintenance.work import Work, before_now


def logins(work: Work) -> None:
    """One-time links, logins of browsers and counts of attempts that have run out."""
    now = timezone.now()
    work.remove_rows(LoginLink.objects.filter(expires_at__lt=now))
    work.remove_rows(WebSession.objects.filter(expire_date__lt=now))
    work.remove_rows(AttemptCount.objects.filter(ends_at__lt=now))


def keys(work: Work) -> None:
    """Keys of waits that were settled long ago, of runs that have ended; what they counted stays counted."""
    cutoff = before_now(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    settled = Q(consumed_at__lt=cutoff) | Q(revoked_at__lt=cutoff) | Q(expired_at__lt=cutoff)
    asked = PermissionRequest.objects.filter(state="pending").values("id")
    rows = ResumeToken.objects.filter(settled).exclude(run__state__in=OPEN_RUN_STATES).exclude(wait_id__in=asked)
    work.remove_rows(rows, counted.carry_over_tokens)


def sweeps(work: Work) -> None:
    """Sweeps with what they decided, and who asked for them; the newest one stays."""
    cutoff = before_now(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    newest = RecoverySweep.objects.order_by("-started_at").values("id")[:1]
    old = RecoverySweep.objects.filter(started_at__lt=cutoff).exclude(id__in=list(newest.values_list("id", flat=True)))
    work.remove_rows(SweepRequest.objects.filter(done_at__lt=cutoff))
    work.remove_rows(old)


def attention(work: Work) -> None:
    """What somebody had to know and is over, and what was sent about it."""
    cutoff = before_now(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    work.remove_rows(Delivery.objects.filter(finished_at__lt=cutoff))
    work.remove_rows(AttentionItem.objects.filter(resolved_at__lt=cutoff))


def worker(work: Work) -> None:
    """Tasks of the worker that ended long ago."""
    cutoff = before_now(settings.KANDEV_HISTORY_RETENTION)
    if cutoff is None:
        return
    work.remove_rows(Failure.objects.filter(stopped__lt=cutoff))
    work.remove_rows(Success.objects.filter(stopped__lt=cutoff))


def counts(work: Work) -> None:
    """Parts of numbers become one; no number changes by it."""
    if not work.dry_run:
        metric_count.fold()
