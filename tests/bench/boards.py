"""The CPU time of a full board: tasks of every state, with sessions that have had turns."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import cycle
from time import process_time
from typing import Final

from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from sessions_app.board.services.board import TASKS_PER_COLUMN
from sessions_app.kernel.rules.states import RunState, TaskState
from sessions_app.models import Task, TaskSession, Turn
from tests.bench.figures import Figure
from tests.bench.world import AT_ONCE, World
from tests.support.fake_agentctl import plan_fleet

TURNS: Final = 40
"""Turns of each session."""
BUDGET: Final = 0.06
"""CPU seconds of one view of the board."""
SHOWN: Final = (TaskState.TODO, TaskState.IN_PROGRESS, TaskState.REVIEW, TaskState.DONE)


def of_tasks(world: World, tasks: int, rounds: int, *, limited: bool) -> Iterator[Figure]:
    """Measure one view of a board of ``tasks`` tasks, beside its budget and beside reading the rows that it shows."""
    _fill(world, tasks)
    client, path = Client(SERVER_NAME="127.0.0.1"), reverse("board")
    client.force_login(world.user)

    def view() -> None:
        answer = client.get(path)
        assert answer.status_code == 200, answer.status_code

    def read() -> None:
        for state in SHOWN:
            shown = Task.objects.filter(state=state, archived_at=None).order_by("-created_at", "id")
            ids = [task.id for task in shown[:TASKS_PER_COLUMN]]
            assert len(TaskSession.objects.filter(task__in=ids)) == len(ids)

    view()
    read()
    gc.collect()
    taken = [(_cpu_of(view), _cpu_of(read)) for _ in range(rounds)]
    seconds, floor = map(min, zip(*taken, strict=True))
    yield Figure(f"board of {tasks:,} tasks, CPU", seconds, "reading the rows that it shows", floor)
    limit = 1.0 if limited else None
    yield Figure(f"board of {tasks:,} tasks, CPU", seconds, "its budget", BUDGET, limit=limit)


def _cpu_of(run: Callable[[], None]) -> float:
    began = process_time()
    run()
    return process_time() - began


def _fill(world: World, count: int) -> None:
    """Create tasks of every state with a session each, whose turns have ended."""
    world.fill(plan_fleet(count, "127.9.0.1", 9))
    sessions = list(TaskSession.objects.order_by("id").values_list("id", "task"))
    tasks_of: dict[TaskState, list[uuid.UUID]] = {state: [] for state in SHOWN}
    for state, (_, task_id) in zip(cycle(SHOWN), sessions, strict=False):
        tasks_of[state].append(task_id)
    for state, ids in tasks_of.items():
        for some in _parts(ids):
            Task.objects.filter(id__in=some).update(state=state)
    began = timezone.now() - timedelta(days=1)
    turns = [
        Turn(
            session_id=session_id,
            message_id=f"p{number}",
            state=RunState.COMPLETED,
            started_at=began + timedelta(minutes=number),
            ended_at=began + timedelta(minutes=number + 1),
        )
        for session_id, _ in sessions
        for number in range(TURNS)
    ]
    Turn.objects.bulk_create(turns, batch_size=AT_ONCE)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _parts(keys: Sequence[uuid.UUID]) -> Iterator[Sequence[uuid.UUID]]:
    for start in range(0, len(keys), AT_ONCE):
        yield keys[start : start + AT_ONCE]
