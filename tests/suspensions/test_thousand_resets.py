"""A thousand sessions reach the end of one limit, while the job that notices it dies at random places."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from executors_app.machine import crash_points
from sessions_app.models import Intent, Prompt, SessionEvent, Suspension, TaskSession
from sessions_app.suspensions import services
from sessions_app.suspensions.rules.suspension import FIRST_PAUSE, wake_time
from tests.supervisor.rows import change, execution_of
from tests.suspensions.test_services import suspended_session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]
SESSIONS = 1000
DEATHS = 0.05
"""Probability that the process dies at each of its crash points."""


@pytest.fixture(autouse=True)
def without_syncs() -> Iterator[None]:
    """Do not wait for the disk after each of thousands of transactions: the test kills no machine."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")
        yield
        cursor.execute("PRAGMA synchronous=FULL")


class Killed(BaseException):
    """The process was killed; nothing handles that."""


def create_copies(model: TaskSession, at: datetime, choice: random.Random) -> None:
    """Make ``SESSIONS`` suspended sessions out of one; they go on as the rule says after ``at``."""
    suspension = Suspension.objects.get(session=model)
    rows: list[Any] = [model.task, model, execution_of(model), model.runs.get(), model.prompts.get(), suspension]
    copies = [_copy(rows, at, choice) for _ in range(SESSIONS - 1)]
    with transaction.atomic():
        for made in zip(*copies, strict=True):
            type(made[0])._default_manager.bulk_create(made)
    Suspension.objects.filter(id=suspension.id).update(wakes_at=wake_time(at, SESSIONS, choice.random()))


def _copy(rows: Sequence[Any], at: datetime, choice: random.Random) -> Sequence[Any]:
    task, session, execution, turn, prompt, suspension = (copy(row) for row in rows)
    for row in (task, session, execution, turn, suspension):
        row.pk = uuid.uuid4()
    prompt.pk = None
    session.task_id, session.agent_execution_id = task.pk, str(execution.pk)
    for row in (execution, turn, prompt, suspension):
        row.session_id = session.pk
    suspension.run_id, suspension.wakes_at = turn.pk, wake_time(at, SESSIONS, choice.random())
    return task, session, execution, turn, prompt, suspension


def test_a_thousand_sessions_go_on_once_each_and_not_together(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    choice = random.Random(20260310)
    model = suspended_session(tool=True)
    change(execution_of(model), status="stopped", status_reason="idle")
    model = change(model, launch_id="")
    reset = timezone.now() + timedelta(hours=2)
    create_copies(model, reset, choice)
    deaths: Counter[str] = Counter()

    def die_at_random(name: str, session: object = "") -> None:
        if name.startswith("suspension.") and choice.random() < DEATHS:
            deaths[name] += 1
            raise Killed

    clock = reset
    monkeypatch.setattr(crash_points, "reached", die_at_random)
    monkeypatch.setattr(timezone, "now", lambda: clock)
    went_on: Counter[int] = Counter()
    while Suspension.objects.filter(ended_at=None).exists():
        before = Suspension.objects.filter(ended_at=None).count()
        try:
            services.end_due_suspensions()
        except Killed:
            continue  # the next supervisor begins again
        finally:
            went_on[int((clock - reset).total_seconds())] += before - Suspension.objects.filter(ended_at=None).count()
        next_wake = services.next_wake()
        clock = max(clock + timedelta(seconds=1), next_wake or clock)

    assert set(deaths) == {"suspension.continued", "suspension.committed"}, deaths
    again = Prompt.objects.filter(message_id__startswith="limit:")
    assert again.count() == again.values("session_id").distinct().count() == SESSIONS
    assert Prompt.objects.filter(message_id="p1", resent_as__isnull=False).count() == SESSIONS
    ended = SessionEvent.objects.filter(name="session.suspension.ended")
    assert ended.count() == ended.values("session_id").distinct().count() == SESSIONS
    starts = Intent.objects.filter(kind="start", done_at=None)
    assert starts.count() == starts.values("session_id").distinct().count() == SESSIONS
    assert max(went_on.values()) <= 12, "they go on one after the other"
    assert min(+went_on) >= FIRST_PAUSE.total_seconds()
    assert services.end_due_suspensions() == 0
