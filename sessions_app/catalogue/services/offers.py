"""The executors that new sessions are offered, and the one that is used if nobody chooses."""

from __future__ import annotations

from django.db.models import F, QuerySet

from executors_app.models import Executor


def offered_executors() -> QuerySet[Executor]:
    """Return the executors that are not disabled, by name."""
    return Executor.objects.filter(disabled_at=None)


def executor_of_pool(pool: str) -> Executor | None:
    """Return an executor of a pool, which stands for it until a session is placed; None if all are disabled."""
    if not pool:
        return None
    return offered_executors().filter(pool=pool).order_by("created_at", "id").first()


def default_executor() -> Executor | None:
    """Return the executor that staff have made the default, else the oldest one; None if all are disabled.

    Never the first by name: adding an executor must not change where sessions run.
    """
    return offered_executors().order_by(F("is_default").desc(), "created_at", "id").first()
