"""Write the rows of an imported session and of its execution, both stopped."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from executors_app.wire.agent_settings import MAX_SETTINGS, is_identifier
from sessions_app.agents.models import APPLIED, WAITING
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.kernel.rules.states import TERMINAL_STATES, DerivedStatus, DesiredState, SessionState, WorkState
from sessions_app.models import AgentSettings, TaskSession
from sessions_app.portable.rows.parents import SessionParents
from sessions_app.portable.snapshot_values import SnapshotValues
from sessions_app.recovery.rules.resumability import Policy

IMPORTED_ERROR_CODE: Final = "imported"


def write_session(
    session_id: uuid.UUID, snapshot: SnapshotValues, rows: SessionRebuild, parents: SessionParents, last_seq: int
) -> TaskSession:
    """Create the rows of the session and its execution, both stopped, whatever their recorded state."""
    session = TaskSession(
        id=session_id,
        task=parents.task,
        state=rows.state or SessionState.WAITING_FOR_INPUT,
        agent_profile=parents.profile,
        executor=parents.executor,
        owner=parents.owner,
        desired_state=DesiredState.STOPPED,
        stopped_by_user=True,
        policy=snapshot.one_of("policy", tuple(Policy), ""),
        has_agent=snapshot.flag("has_agent") is not False,
        model=snapshot.text("model", 200),
        executor_pool=snapshot.text("executor_pool", 100),
        placement_reason=snapshot.text("placement_reason", 1000),
        shares_worktree_of=_session_sharing_worktree(snapshot, parents),
        continue_prompts=snapshot.flag("continue_prompts"),
        error_code=rows.error_code,
        error_message=rows.error_message,
        last_seq=last_seq,
        told_status=_told_status(rows),
        agent_execution_id=_execution_id(snapshot),
    )
    # The snapshot is a file beside the log and may be older. The log's last states are then the right ones.
    recorded_state = snapshot.one_of("state", set(SessionState))
    if recorded_state and snapshot.number("last_seq") >= last_seq:
        session.state = recorded_state
        session.error_code = snapshot.text("error_code", 64)
        session.error_message = snapshot.text("error_message")
    session.work_state = _work_state(session.state, snapshot, rows)
    session.save(force_insert=True)
    TaskSession.objects.filter(id=session_id).update(created_at=snapshot.time("created_at") or session.created_at)
    _create_execution(session)
    return session


def _session_sharing_worktree(snapshot: SnapshotValues, parents: SessionParents) -> TaskSession | None:
    """Return the session whose worktree it shared, if that exists here; otherwise None."""
    owner_id = snapshot.id("shares_worktree_of")
    if owner_id:
        return TaskSession.objects.filter(id=owner_id, task=parents.task).first()
    return None


def _told_status(rows: SessionRebuild) -> str:
    if rows.told_status in set(DerivedStatus):
        return rows.told_status
    return DerivedStatus.IDLE


def _execution_id(snapshot: SnapshotValues) -> uuid.UUID:
    """Return the recorded id of the execution, or a new one if another session has it here."""
    execution_id = snapshot.id("agent_execution_id")
    if execution_id is None or ExecutorRunning.objects.filter(id=execution_id).exists():
        return uuid.uuid4()
    return execution_id


def _work_state(state: str, snapshot: SnapshotValues, rows: SessionRebuild) -> str:
    recorded = snapshot.one_of("work_state", set(WorkState)) or rows.work_state
    if recorded == WorkState.DONE and state in TERMINAL_STATES:
        return WorkState.DONE
    return WorkState.IDLE


def _create_execution(session: TaskSession) -> None:
    ExecutorRunning.objects.create(
        id=session.agent_execution_id,
        session=session,
        task=session.task,
        executor=session.executor,
        runtime=session.executor.runtime,
        status=ExecutorRunning.Status.STOPPED,
        status_reason=IMPORTED_ERROR_CODE,
        supports_workspace_only=agent_type(session.agent_profile.agent_type).supports_workspace_only,
    )


def write_chosen_settings(session: TaskSession, snapshot: SnapshotValues) -> None:
    """Write the settings of the agent that users chose; the first start applies them before the first prompt."""
    row = AgentSettings(session=session)
    for values in snapshot.rows("chosen_settings")[:MAX_SETTINGS]:
        setting, value = values.raw("setting"), values.raw("value")
        if not is_identifier(setting) or not (isinstance(value, bool) or is_identifier(value)):
            continue
        if values.flag("accepted") is True:
            row.choose(setting, change=_settings_change(value, APPLIED), value=value)
        else:
            row.choose(setting, change=_settings_change(value, WAITING))
    if row.chosen:
        row.save(force_insert=True)


def _settings_change(value: Any, state: str) -> dict[str, Any]:
    return {
        "id": uuid.uuid4().hex,
        "value": value,
        "state": state,
        "code": "",
        "reason": "",
        "by": "",
        "at": timezone.now().isoformat(),
    }
