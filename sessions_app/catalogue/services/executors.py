"""Executors, and the executions on them: see, probe and delete them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from executors_app.models import Executor, ExecutorRunning
from executors_app.plugins import runtime
from executors_app.wire.errors import ExecutorError, RuntimeUnavailable
from executors_app.wire.executions import ExecutorStatus, Observed
from sessions_app.accounts.audit import record_change
from sessions_app.accounts.rate_limits import AttemptLimit
from sessions_app.catalogue.services.executor_settings import require_not_default
from sessions_app.kernel.rules.wording import describe_uses
from sessions_app.kernel.services.errors import ExecutorInUse
from sessions_app.models import TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.workflows.models import Workflow, WorkflowRun

UNFINISHED_STATUSES: Final = (ExecutorStatus.STARTING, ExecutorStatus.READY, ExecutorStatus.ERROR)
"""Statuses of executions that run or should run."""
_probes: Final = AttemptLimit("executor-probe", 20, 60)
"""Probes of one user: 20 a minute, because each contacts the executor and everything that runs there."""


def visible_executions(user: User) -> QuerySet[ExecutorRunning]:
    """Return the executions of the sessions of the user's teams."""
    return ExecutorRunning.objects.filter(session__in=TaskSession.objects.visible_to(user))


def uses_of_executor(executor: Executor) -> dict[str, int]:
    """Return how many sessions (also ended ones), executions, workflows and workflow runs use an executor."""
    return {
        "sessions": TaskSession.objects.filter(executor=executor).count(),
        "executions": ExecutorRunning.objects.filter(executor=executor).count(),
        "workflows": Workflow.objects.filter(executor=executor).count(),
        "workflow_runs": WorkflowRun.objects.filter(executor=executor).count(),
    }


def delete_executor(executor: Executor, by: User) -> None:
    """Delete an executor that nothing uses. The caller has checked that the user is staff.

    Raises DefaultExecutor, and ExecutorInUse, whose details count the sessions (also ended ones, which can be viewed
    and resumed), executions, workflows and workflow runs that use it.
    """
    with transaction.atomic():
        # Nothing cascades: if a session is created after these counts, the database refuses the deletion.
        uses = uses_of_executor(executor)
        if any(uses.values()):
            raise ExecutorInUse(f"{executor.name} is used by {describe_uses(uses)}. Delete those first.", **uses)
        require_not_default(executor)
        record_change(by, executor, "Deleted.")
        executor.delete()


def probe_executor(executor: Executor, user: User) -> dict[str, Any]:
    """Check an executor now: its configuration, and how many of its executions are alive, dead or unknown.

    The caller has checked that ``user`` is staff, because errors contain what only operators may read, such as
    addresses. Raises RuntimeUnavailable, UnknownPlugin, Throttled.
    """
    _probes.require(str(user.pk))
    place = runtime(executor.runtime)
    try:
        place.check_config(executor.config)
    except ValueError as error:
        raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error
    begun = time.monotonic()
    try:
        async_to_sync(place.check_availability)(executor.config)
    except ExecutorError as error:
        raise RuntimeUnavailable(error.message_for_staff) from error
    rows = ExecutorRunning.objects.filter(executor=executor, status__in=UNFINISHED_STATUSES)
    facts = [execution_facts_of(row, row.session) for row in rows.select_related("session__task__repository")]
    seen = async_to_sync(place.observe)(
        facts, timeout=settings.KANDEV_SWEEP_TIMEOUT, concurrency=settings.KANDEV_SWEEP_CONCURRENCY
    )
    counts = Counter(observation.observed for observation in seen.values())
    return {
        "ok": True,
        "runtime": place.name,
        "isolated": place.isolated,
        "observed": {observed.value: counts[observed] for observed in Observed},
        "duration_ms": round((time.monotonic() - begun) * 1000),
    }
