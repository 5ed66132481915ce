"""Sessions that a sweep passes over because their rows hold what cannot be; each is said, and stops no other."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Exists, OuterRef

from executors_app.models import ExecutorRunning
from sessions_app.domain import soundness
from sessions_app.domain.states import DesiredState
from sessions_app.models import TaskSession
from sessions_app.services.soundness import plugin_flaws, unreadable
from sessions_app.supervisor.sweep.selection import Stored


@dataclass(frozen=True, slots=True)
class Damaged:
    """One session that is left alone, and what is wrong with its rows."""

    session_id: uuid.UUID
    task_id: uuid.UUID
    task_title: str
    runtime: str
    session_state: str
    executor_status: str
    said: str


def judge(one: Stored, agent_type: str) -> Damaged | None:
    """The damage of one row; None where it is sound."""
    values = {
        "state": one.session__state,
        "desired_state": one.session__desired_state,
        "work_state": one.session__work_state,
        "policy": one.session__policy,
        "metadata": one.session__metadata,
        "start_attempts": one.session__start_attempts,
        "status": one.status,
        "runtime_state": one.state,
        "auth_token": one.auth_token,
        "generation": one.generation,
        "journal_seq": one.journal_seq,
    }
    found = soundness.flaws(values, unreadable(values)) + plugin_flaws(agent_type)
    if not found:
        return None
    return Damaged(
        session_id=one.session_id,
        task_id=one.task_id,
        task_title=one.session__task__title,
        runtime=one.runtime,
        session_state=one.session__state,
        executor_status=one.status,
        said=soundness.said(found),
    )


def unreadable_row(session_id: uuid.UUID, error: Exception) -> Damaged:
    """A row that cannot even be read."""
    columns = ("task_id", "task__title", "executor__runtime")
    task_id, title, runtime = TaskSession.objects.values_list(*columns).get(id=session_id)
    return Damaged(session_id, task_id, title, runtime, "", "", soundness.said([f"a column cannot be read ({error})"]))


def dangling(sessions: Collection[uuid.UUID], runtime: str) -> list[Damaged]:
    """Sessions that should run, and name an execution that is not there; one query."""
    there = ExecutorRunning.objects.filter(id=OuterRef("agent_execution_id"))
    rows = TaskSession.objects.filter(~Exists(there), desired_state=DesiredState.RUNNING).exclude(
        agent_execution_id=None
    )
    if sessions:
        rows = rows.filter(id__in=sessions)
    if runtime:
        rows = rows.filter(executor__runtime=runtime)
    columns = ("id", "task_id", "task__title", "executor__runtime", "state", "agent_execution_id")
    return [
        Damaged(
            session_id,
            task_id,
            title,
            place,
            state,
            "",
            soundness.said([f"agent_execution_id names no execution: {key}"]),
        )
        for session_id, task_id, title, place, state, key in rows.values_list(*columns)
    ]
