"""The tools that merge a session's branch, and push it or its base."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User

from sessions_app.finish import services
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import MAX_CONFLICTS, FinishKind, branch_name
from sessions_app.mcp_server import arguments, results
from sessions_app.mcp_server.reading import visible_session
from sessions_app.models import FinishIntent
from sessions_app.remotes import push_requests


def preview_merge(user: User, values: arguments.PreviewMergeArguments) -> results.MergePreview:
    """Say what a merge would do."""
    session = visible_session(user, values.session_id)
    state = services.read_merge_state(session, values.strategy)
    uncommitted = services.read_uncommitted(session)
    return results.MergePreview(
        session_id=session.id,
        branch=state.branch,
        branch_commit=state.branch_commit,
        target=state.target,
        target_commit=state.target_commit,
        ahead=state.preview.ahead if state.preview else None,
        behind=state.preview.behind if state.preview else None,
        conflicts=list(state.preview.conflicts[:MAX_CONFLICTS]) if state.preview else [],
        uncommitted=list(uncommitted.paths) if uncommitted.is_known else None,
        problem=state.problem,
        message=state.message,
        suggested_message=services.suggested_message(session, state, values.strategy),
    )


def merge_session(user: User, values: arguments.MergeSessionArguments) -> results.Merge:
    """Request a merge; the same request again returns the same merge, with its present state."""
    session = visible_session(user, values.session_id)
    intent = services.request_merge(
        session,
        user,
        strategy=values.strategy,
        branch_commit=values.branch_commit,
        target_commit=values.target_commit,
        message=values.message,
    )
    return results.Merge(
        **_outcome_of(intent),
        branch_commit=intent.branch_commit,
        result_commit=intent.result_commit,
        target=branch_name(intent.target_ref),
        conflicts=[str(name) for name in intent.conflicts],
    )


def preview_push(user: User, values: arguments.PreviewPushArguments) -> results.PushPreview:
    """Say what a push would do. Asks the server only for those who may push."""
    session = visible_session(user, values.session_id)
    may_push = may_finish(user, session.task.team, FinishKind.PUSH)
    state = push_requests.read_push_state(session, values.target, look=may_push)
    return results.PushPreview(
        session_id=session.id,
        target=state.target,
        address=state.address,
        branch=state.name,
        commit=state.commit,
        remote_commit=state.remote_commit,
        overwrites=state.overwrites,
        problem=state.problem,
        message=state.message,
        warning=push_requests.CI_WARNING,
    )


def push_session(user: User, values: arguments.PushSessionArguments) -> results.Push:
    """Request a push; the same request again returns the same push, with its present state."""
    session = visible_session(user, values.session_id)
    intent = push_requests.request_push(
        session,
        user,
        target=values.target,
        commit=values.commit,
        expected=values.remote_commit,
        overwrite=values.overwrite,
    )
    return results.Push(
        **_outcome_of(intent),
        commit=intent.branch_commit,
        address=intent.remote,
        branch=branch_name(intent.target_ref),
        answer=intent.answer,
    )


def _outcome_of(intent: FinishIntent) -> dict[str, Any]:
    """Return the fields that the results of a merge and of a push share."""
    return {
        "session_id": intent.session_id,
        "state": intent.state,
        "error_code": intent.error_code,
        "error_message": intent.error_message,
    }
