"""The processes that an agent's turns have left running: record reports of them, and say what is known."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import F, Q
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from sessions_app.agents.events import ProcessesReported
from sessions_app.background import models
from sessions_app.background.models import BackgroundWork
from sessions_app.background.rules.background_work import (
    BackgroundPolicy,
    BackgroundPolicySource,
    EffectiveBackgroundPolicy,
    ends_sentence,
    is_current,
    is_same_work,
    parse_report,
)
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import SessionTransaction, Task, TaskSession, session_transaction
from sessions_app.recovery.rules.resumability import UNREACHABLE
from sessions_app.recovery.services.assessment import execution_of, is_running

_KEY: Final = "background_processes"
"""Metadata key: ``{launch_id, processes: [{command, since}], count}``."""


@dataclass(frozen=True, slots=True)
class KnownProcesses:
    """The background processes of a session's agent, as they were last reported, and the policy for them."""

    applies: EffectiveBackgroundPolicy
    processes: Sequence[Mapping[str, Any]] = ()
    """At most 20: ``{command, since, cpu_seconds}``."""
    count: int = 0
    is_complete: bool = True
    cpu_seconds: float | None = None
    reported_at: datetime | None = None
    is_current: bool = True
    """False: it is unknown what runs now."""

    @property
    def policy(self) -> BackgroundPolicy:
        """What happens to them when the session has been idle for long enough to sleep."""
        return self.applies.policy

    @property
    def policy_source(self) -> BackgroundPolicySource:
        """Where that is set."""
        return self.applies.source

    @property
    def has_own_policy(self) -> bool:
        """Whether the session itself sets it."""
        return self.policy_source is BackgroundPolicySource.SESSION

    @property
    def commands(self) -> list[str]:
        """The listed command lines."""
        return [each["command"] for each in self.processes]


def record_processes(transaction: SessionTransaction, line: Mapping[str, Any]) -> None:
    """Store the processes in a journal line of kind ``agent.processes``, whose texts an agent can write.

    The log gets an event only if other commands run than before.
    """
    # By our clock: that of the agent's machine may be set wrong, and then nothing or everything would be current.
    session, now = transaction.session, timezone.now()
    report = parse_report(line, now)
    models.store_report(session, report, now)
    known = session.metadata.get(_KEY)
    has_count = _is_of_launch(known, session) and known["count"] == report.count
    if has_count and is_same_work(known["processes"], report.processes):
        return
    stored = {"launch_id": session.launch_id, "processes": report.identities, "count": report.count}
    transaction.set_fields(metadata={**session.metadata, _KEY: stored})
    transaction.record_event(ProcessesReported(processes=report.identities, count=report.count))


def process_count(session: TaskSession, *, is_running: bool) -> int:
    """Return how many background processes a running agent has, from the session's row alone."""
    known = session.metadata.get(_KEY)
    if not is_running or not _is_of_launch(known, session):
        return 0
    return int(known["count"])


def process_commands(session: TaskSession, *, is_running: bool) -> list[str]:
    """Return the command lines of background processes that are listed, from the session's row alone."""
    known = session.metadata.get(_KEY)
    if not is_running or not _is_of_launch(known, session):
        return []
    return [str(each.get("command", "")) for each in known["processes"]]


def ended_with_task(task: Task) -> str:
    """Return which background processes the end of a task ends with its sessions; empty if none is known."""
    unreachable = Q(executions__status=ExecutorStatus.ERROR, executions__error_code=UNREACHABLE)
    running = TaskSession.objects.filter(
        Q(executions__status=ExecutorStatus.READY) | unreachable,
        task=task,
        executions__id=F("agent_execution_id"),
    )
    commands: list[str] = []
    count = 0
    holds = True
    sessions = list(running.select_related("background_work").order_by("id"))
    executions = ExecutorRunning.objects.in_bulk([session.agent_execution_id for session in sessions])
    for session in sessions:
        ended = process_count(session, is_running=True)
        commands += process_commands(session, is_running=True)
        count += ended
        row, execution = getattr(session, "background_work", None), executions.get(session.agent_execution_id)
        holds = holds and (not ended or _is_current(session, execution, row))
    return ends_sentence(commands, count, is_current=holds)


def known_processes(session: TaskSession) -> KnownProcesses:
    """Return what is known of a session's background processes, with one query.

    Nothing runs of an agent that has ended. If its machine does not answer, the last report is returned as not current.
    """
    row = BackgroundWork.objects.filter(session=session).first()
    own = row.policy if row is not None else ""
    applies = models.effective_policy(own, session.agent_profile.background_policy)
    execution, stored = execution_of(session), session.metadata.get(_KEY)
    is_out_of_reach = _is_out_of_reach(execution)
    if not (is_out_of_reach or is_running(session, execution)) or not _is_of_launch(stored, session):
        return KnownProcesses(applies, is_current=not is_out_of_reach)
    holds = _is_current(session, execution, row)
    if row is None or not _is_last_report(row, session):
        processes = [{**each, "cpu_seconds": None} for each in stored["processes"]]
        return KnownProcesses(applies, processes, stored["count"], is_current=holds)
    return KnownProcesses(
        applies,
        row.processes,
        row.count,
        row.is_complete,
        row.cpu_seconds,
        row.reported_at,
        holds,
    )


def policy_of(session_id: uuid.UUID) -> BackgroundPolicy:
    """Return what happens to background processes when a session has been idle for long enough to sleep."""
    rows = TaskSession.objects.filter(id=session_id)
    chosen = rows.values_list("background_work__policy", "agent_profile__background_policy").first()
    own, of_profile = chosen or ("", "")
    return models.effective_policy(own or "", of_profile).policy


def set_background_policy(session_id: uuid.UUID, policy: str) -> None:
    """Set a session's own policy for background processes; empty: that of its profile or of the deployment.

    Raises Invalid.
    """
    if policy not in ("", *BackgroundPolicy):
        raise Invalid(f"policy must be one of {', '.join(BackgroundPolicy)}, or empty.", field="policy")
    with session_transaction(session_id) as transaction:
        models.set_policy(transaction, policy)


def _is_out_of_reach(execution: ExecutorRunning | None) -> bool:
    """Whether the machine of an agent does not answer, which may run on there."""
    if execution is None:
        return False
    return execution.status == ExecutorStatus.ERROR and execution.error_code == UNREACHABLE


def _is_last_report(row: BackgroundWork, session: TaskSession) -> bool:
    """Whether the row has the processes of the session's metadata; a supervisor of release 1.0 writes only those."""
    listed = session.metadata[_KEY]["processes"]
    return row.launch_id == session.launch_id and is_same_work(row.processes, listed)


def _is_current(session: TaskSession, execution: ExecutorRunning | None, row: BackgroundWork | None) -> bool:
    """Whether what was last reported still holds."""
    is_reached = session.error_code != UNREACHABLE and not _is_out_of_reach(execution)
    if row is None or not _is_last_report(row, session):
        return is_reached
    is_repeated = row.count > 0 and row.cpu_seconds is not None
    return is_current(row.reported_at, timezone.now(), is_reached=is_reached, is_repeated=is_repeated)


def _is_of_launch(known: Any, session: TaskSession) -> bool:
    return (
        isinstance(known, dict)
        and bool(session.launch_id)
        and known.get("launch_id") == session.launch_id
        and isinstance(known.get("processes"), list)
        and isinstance(known.get("count"), int)
    )
