"""A session whose worktree and branch are gone is refused when somebody asks for it, not minutes later by its start."""

from __future__ import annotations

import logging
import uuid

from executors_app.domain import WorkspaceState
from executors_app.errors import ExecutorError
from executors_app.plugins import UnknownPlugin, runtime
from executors_app.runtimes import ShowsWorkspace
from sessions_app.domain.states import SESSION, TERMINAL_STATES
from sessions_app.models import TaskSession, writing
from sessions_app.services.assessment import WORKTREE_MISSING, execution_of, is_running
from sessions_app.services.errors import WorktreeMissing
from sessions_app.services.soundness import flaws_of

log = logging.getLogger(__name__)


def refuse_lost_worktree(session_id: uuid.UUID) -> None:
    """Raise WorktreeMissing, with the reason, where this machine's disk shows that neither can be had any more.

    The session then says so, as it does when a sweep finds out. A running one is left alone, and so is one that
    cannot be looked at from here: its start will tell.
    """
    session = TaskSession.objects.select_related("task__repository", "agent_profile", "executor").get(id=session_id)
    ended = session.state in TERMINAL_STATES or session.task.is_over
    lost = "" if ended or is_running(session, execution_of(session)) else reason_lost(session)
    if not lost:
        return
    with writing(session_id) as draft:
        draft.move_executor("fail", error_code=WORKTREE_MISSING, error_message=lost)
        if SESSION.allows(draft.session.state, "fail"):
            draft.move("fail", error_code=WORKTREE_MISSING, error_message=lost)
            draft.set(next_restart_at=None)
    raise WorktreeMissing(f"{lost} Create a new session.")


def reason_lost(session: TaskSession) -> str:
    """Why the session's worktree cannot be had any more; empty where it can, or nobody can tell from here."""
    execution = execution_of(session)
    if execution is None or not execution.worktree_path or flaws_of(session, execution):
        return ""
    repository = session.task.repository
    facts = execution.facts(repository.path if repository else "", session.task.base_branch)
    try:
        place = runtime(execution.runtime)
        if not isinstance(place, ShowsWorkspace) or not place.is_here(facts):
            return ""
        state, reason = place.workspace_of(facts)
    except (UnknownPlugin, ExecutorError, OSError) as error:
        log.info("session %s: its worktree cannot be looked at: %s", session.id, error)
        return ""
    return reason if state is WorkspaceState.GONE else ""
