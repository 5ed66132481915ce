"""The tools that merge a session's branch."""

from __future__ import annotations

from django.contrib.auth.models import User

from sessions_app.finish import services
from sessions_app.finish.rules.finish import MAX_CONFLICTS, branch_name
from sessions_app.mcp_server import arguments, results
from sessions_app.mcp_server.reading import visible_session


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
        session_id=session.id,
        state=intent.state,
        branch_commit=intent.branch_commit,
        target=branch_name(intent.target_ref),
        result_commit=intent.result_commit,
        error_code=intent.error_code,
        error_message=intent.error_message,
        conflicts=[str(name) for name in intent.conflicts],
    )
